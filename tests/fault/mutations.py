"""Guards of the system, each with the change that takes it out inside the processes of a run.

A change is a piece of a script's text and what stands in its place, or a patch of the worker's Python. That a piece is
still there is checked: a guard that was rewritten needs its mutation rewritten along with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.exceptions

from streamfleet.common import scripts
from streamfleet.common.broker.housekeeping import ExpiryScan
from streamfleet.common.broker.types import Claim
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.connection import Connection, connection
from streamfleet.common.connection.login import Login
from streamfleet.common.protocol import Lane
from streamfleet.worker import lease, pull
from streamfleet.worker.containment import PoisonIsolation
from streamfleet.worker.dispatcher import Dispatcher
from streamfleet.worker.engine.watchdog import Watchdog
from streamfleet.worker.execute import Executor
from streamfleet.worker.housekeeping import Housekeeper, ReclaimGuard
from streamfleet.worker.lease import LeaseKeeper
from streamfleet.worker.turns import Turns
from streamfleet.worker.worker import Worker

Change = tuple[str, str]


@dataclass(frozen=True)
class Mutation:
    """A guard taken out.

    Attributes:
        name: short, for commands.
        guard: what is missing then.
        how: what was changed, in words.
        scenario: the one that must fail then.
        expected: what the harness must say among all that it says: it must fail for this reason, not for any.
        lua: (text, what stands in its place) in the scripts.
        patch: changes this process.
    """

    name: str
    guard: str
    how: str
    scenario: str
    expected: str
    lua: tuple[Change, ...] = ()
    patch: Callable[[], None] | None = None

    def missing(self) -> list[str]:
        """Texts that no script holds any more."""
        return [old for old, _ in self.lua if not any(old in scripts.source(verb) for verb in scripts.VERBS)]


def apply(name: str) -> None:
    """Take a guard out of this process; nothing for an empty name."""
    if not name:
        return
    mutation = BY_NAME[name]
    if mutation.lua:
        original = scripts.source
        scripts.source = lambda verb: _changed(original(verb), mutation.lua)  # type: ignore[assignment]
    if mutation.patch is not None:
        mutation.patch()


def source(verb: str, name: str) -> str:
    """A script's text as processes with this mutation have it."""
    return _changed(scripts.source(verb), BY_NAME[name].lua if name else ())


def sha(verb: str, name: str) -> bytes:
    """The hash by which processes with this mutation call a script."""
    return hashlib.sha1(source(verb, name).encode(), usedforsecurity=False).hexdigest().encode()


def _changed(text: str, changes: tuple[Change, ...]) -> str:
    for old, new in changes:
        text = text.replace(old, new)
    return text


async def _nothing(*_: Any, **__: Any) -> Any:
    return 0


async def _for_ever(*_: Any) -> str:
    await asyncio.Event().wait()
    return ""


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _each(*patches: Callable[[], None]) -> Callable[[], None]:
    def apply_all() -> None:
        for patch in patches:
            patch()

    return apply_all


async def _head_of_what_no_tenant_may_run(self: WorkerBroker) -> tuple[Lane, float] | None:
    return (Lane.HIGH, 0.0) if self.keys.queue == "default" else None


async def _expired_none(*_: Any, **__: Any) -> tuple[int, ExpiryScan]:
    return 0, ExpiryScan()


def _without_noscript() -> None:
    """Scripts are called by their hash only; their text is never sent."""
    hashes = {verb: scripts.sha(verb) for verb in scripts.VERBS}

    def refuse(verb: str) -> str:
        raise redis.exceptions.NoScriptError(f"{verb} is not there")

    scripts.sha = hashes.__getitem__  # type: ignore[assignment]
    scripts.read_all = lambda: None
    scripts.source = refuse  # type: ignore[assignment]


def _groups_at_the_end() -> None:
    command = Connection.command

    async def changed(connection: Connection, *words: Any) -> Any:
        words = ("XGROUP", "CREATE", words[2], words[3], "$", "MKSTREAM") if words[0] == "XGROUP" else words
        return await command(connection, *words)

    Connection.command = changed  # type: ignore[assignment,method-assign]


def _has_watched_for_long(guard: ReclaimGuard, now: float) -> None:
    guard._heard_at, guard._heard_since = now, now - 3_600


def _hand_back_all() -> None:
    deregister = Worker._deregister
    Worker._deregister = lambda worker, _: deregister(worker, [])  # type: ignore[method-assign,assignment]


async def _kept_with_get(broker: WorkerBroker, runs: Sequence[str]) -> list[Any]:
    return list(await broker.connection.pipeline([("GET", broker.keys.kept(run)) for run in runs]))


def _as_at_the_start() -> None:
    current = Login._current
    Login._current = lambda login: login._words if login.accepted else current(login)  # type: ignore[method-assign,assignment]


def _company_from_64() -> None:
    company = PoisonIsolation.company

    def from_64(isolation: PoisonIsolation, claim: Claim, _: int, most: int, *, suspect: bool = False) -> int | None:
        return company(isolation, claim, sys.maxsize, most, suspect=suspect)

    PoisonIsolation.company = from_64  # type: ignore[method-assign,assignment]


def _patient_waits() -> None:
    """No guard: idle workers look by themselves so seldom that only a wake-up brings them to work in time."""
    pull.WAIT_MS, pull.WATCHER_MS = 40_000, 60_000


_ANSWERED_AT_PULL = (
    "if asked and answered(request_id) then",
    "if false then",
)
_LATE_WHEN_STAGED = (
    "elseif not again and unfit(size, deadline) then",
    "elseif false then",
)
_LATE_AT_PULL = (
    "if not unfit(size, deadline) then return true end",
    "if true then return true end",
)
_NO_LIMITS_SEEN = (
    "    waiting[lane] = waiting[lane] > 0 and here + c.t + c.held + (at_home and at_home.own(lane) or 0) or 0",
    "    waiting[lane] = here + order().length(lane)",
)

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "fence",
        "fence of complete: who lost the lease publishes nothing",
        "complete.lua does not look whether the lease is held",
        "zombie",
        "zombie:",
        (
            (
                "if not holds(lane, id, attempt) then return published_before",
                "if false then return published_before",
            ),
        ),
    ),
    Mutation(
        "fence-attempt",
        "fence: the attempt counts, not only the worker",
        "fence.lua compares workers only",
        "same_worker_again",
        "an attempt that was taken away was published",
        (
            ("if holds[lane][id] ~= attempt then", "if not holds[lane][id] then"),
            ("return attempt == alone end", "return alone end"),
        ),
    ),
    Mutation(
        "written-once",
        "a status is written once (HSETNX)",
        "complete.lua and result.lua write the status whatever stands there",
        "cancelled_at_the_last_moment",
        "status: r a cancelled request ended as succeeded",
        (
            ("if not new and answered(request_id)\n      or other_request(", "if other_request("),
            (
                "if first == 0 then return false end",
                "if first == 0 then call('HSET', key, 'status', status) end",
            ),
        ),
    ),
    Mutation(
        "removed-last",
        "an entry stays in its lane until its result is published",
        "pull.lua removes what it gives out, complete.lua publishes without it",
        "killed_while_running",
        "lost: r0",
        (
            (
                "      claims[#claims + 1] = row\n",
                "      remove_entry(lane, id)\n      claims[#claims + 1] = row\n",
            ),
            (
                "if not holds(lane, id, attempt) then return published_before",
                "if false then return published_before",
            ),
        ),
    ),
    Mutation(
        "renewal",
        "leases are renewed while a request runs",
        "the lease thread renews nothing",
        "longer_than_the_lease",
        "ended as dead",
        patch=_set(LeaseKeeper, "_renew_all", _nothing),
    ),
    Mutation(
        "reclaim",
        "what a silent worker holds is taken back",
        "the housekeeping reclaims nothing",
        "killed_while_running",
        "lost: r0",
        patch=_set(Housekeeper, "_reclaim", _nothing),
    ),
    Mutation(
        "retry-cap",
        "a request that was delivered too often is given up",
        "reclaim.lua never gives up",
        "poison",
        "attempts: poison-0",
        (("elseif deliveries >= most then", "elseif false then"),),
    ),
    Mutation(
        "tries",
        "attempts go on counting over a reclaim",
        "reclaim.lua does not remember attempts",
        "poison",
        "uncounted: poison-0",
        (("    if deliveries > 0 then remember(lane, id, deliveries, worker) end\n", ""),),
    ),
    Mutation(
        "company",
        "a suspect runs in ever smaller company: the innocent are not given up with it",
        "suspects run beside any number of others",
        "poison_among_others",
        "healthy requests were given up",
        patch=_set(PoisonIsolation, "company", lambda *_, **__: None),
    ),
    Mutation(
        "company-slots",
        "where slots are few, company shrinks from them: the innocent keep tries to spare",
        "company shrinks from 64, whatever the slots",
        "poison_leaves_tries_to_spare",
        "beside a poisonous request",
        patch=_company_from_64,
    ),
    Mutation(
        "release",
        "a worker that leaves hands back what it holds at once",
        "release does nothing",
        "told_to_leave",
        "r is started 2 times",
        patch=_set(WorkerBroker, "release", _nothing),
    ),
    Mutation(
        "disown",
        "what a lost answer to a pull left in the worker's name is handed back",
        "disown does nothing",
        "pull_answer_lost",
        "lost: r",
        patch=_set(WorkerBroker, "disown", _nothing),
    ),
    Mutation(
        "pull-once",
        "a pull is sent once: its lost answer is noticed",
        "a pull is repeated like any other call",
        "pull_answer_lost",
        "lost: r",
        patch=lambda: setattr(Connection, "script_once", Connection.script),
    ),
    Mutation(
        "put-back",
        "what a watcher's read brought is put back by its pull",
        "pull.lua passes hints over",
        "watched",
        "not within 5 s: r has a result",
        (("elseif handed then\n      local fields", "elseif false then\n      local fields"),),
    ),
    Mutation(
        "nobody-uncounted",
        "what a dead watcher had been handed is taken back without counting an attempt",
        "reclaim.lua counts it",
        "watcher_killed",
        "ended as dead",
        (("    deliveries = 0\n", ""),),
    ),
    Mutation(
        "groups-at-0",
        "groups begin at 0: what came before the first worker counts",
        "groups are created at $",
        "before_the_first_worker",
        "audit: accepted 0 is not ended 5",
        patch=_groups_at_the_end,
    ),
    Mutation(
        "enqueue-record",
        "enqueueing again under the same id adds nothing",
        "enqueue.lua does not look at the record",
        "enqueue_answer_lost",
        "5 entries were duplicates",
        (("  if record then\n", "  if false then\n"),),
    ),
    Mutation(
        "settled-duplicates",
        "the second entry of an id is counted as a duplicate",
        "finish.lua counts it like a cancellation",
        "same_id_twice",
        "2 were counted",
        (("if result[2] then\n    count('duplicate')", "if false then\n    count('duplicate')"),),
    ),
    Mutation(
        "answered-at-pull",
        "the second entry of an id that was answered is not run",
        "pull.lua gives out what has a result",
        "same_id_twice",
        "started_late: r",
        (_ANSWERED_AT_PULL,),
    ),
    Mutation(
        "told-once",
        "a name is told once of each request",
        "notify does not remember whom it told",
        "same_id_twice",
        "was told 2 times",
        ((" or call('HMGET', result_key(request_id), notified_field(reply))[1] == '1' then", " then"),),
    ),
    Mutation(
        "tombstone",
        "what was cancelled before it came is dropped at the pull",
        "pull.lua gives out what has a result",
        "cancelled_before_it_comes",
        "started_late: r",
        (_ANSWERED_AT_PULL,),
    ),
    Mutation(
        "cancel-aborts",
        "a cancelled request leaves the engine",
        "the lease thread tells nobody",
        "cancelled_while_running",
        "next has a result",
        patch=_set(LeaseKeeper, "_tell", lambda *_: None),
    ),
    Mutation(
        "deadline-in-queue",
        "queued requests end at their deadline, engines full or not",
        "the housekeeping expires nothing",
        "late_behind_a_full_engine",
        "not within 4 s: r has a result",
        patch=_set(WorkerBroker, "expire", _expired_none),
    ),
    Mutation(
        "deadline-at-start",
        "nothing starts after its deadline",
        "neither housekeeping, nor pull.lua, nor the worker look at the clock",
        "late_when_its_turn_comes",
        "status: r a late request ended as succeeded",
        (_LATE_AT_PULL, _LATE_WHEN_STAGED),
        _each(_set(WorkerBroker, "expire", _expired_none), _set(Executor, "_remaining_s", lambda *_: math.inf)),
    ),
    Mutation(
        "deadline-while-running",
        "what runs is aborted at its deadline",
        "the worker does not look at the clock",
        "late_while_running",
        "status: r a late request ended as succeeded",
        patch=_set(Executor, "_remaining_s", lambda *_: math.inf),
    ),
    Mutation(
        "noscript",
        "scripts are sent again after they were flushed",
        "scripts are called by their hash only",
        "scripts_flushed",
        "lost: r",
        patch=_without_noscript,
    ),
    Mutation(
        "require-groups",
        "a script that misses a group stops before it writes",
        "scripts look at groups only when they come to them",
        "group_destroyed",
        "counts: 1 results",
        (("  for lane = 1, LANE_COUNT do call('XPENDING', lane_key(lane), GROUP, '-', '+', 1) end\n", ""),),
    ),
    Mutation(
        "watchdog",
        "an engine that hangs is noticed",
        "the watchdog never barks",
        "hanging_request",
        "lost: hang-0",
        patch=_set(Watchdog, "check", lambda _: None),
    ),
    Mutation(
        "loop-watchdog",
        "an event loop that hangs ends the process",
        "the lease thread renews for ever",
        "loop_hangs",
        "r is started 1 times",
        patch=_set(LeaseKeeper, "_end_if_hung", lambda _: None),
    ),
    Mutation(
        "engine-death",
        "a dead engine ends its worker instead of using up the queue",
        "nobody says that it died",
        "engine_dies",
        "w0.1 has ended",
        patch=_each(_set(Dispatcher, "_declare_dead", lambda *_: None), _set(Worker, "_engine_failed", _for_ever)),
    ),
    Mutation(
        "dead-connections",
        "a dead connection to Redis is given up while the leases last",
        "the lease thread waits for an answer as long as everybody, and nobody looks whether a connection is dead",
        "connections_die",
        "unexplained: r",
        patch=_each(_set(lease, "LEAST_ANSWER_S", 60.0), _set(connection, "CHECK_AFTER_S", 60.0)),
    ),
    Mutation(
        "password-read-again",
        "each new connection logs in with what the file says then",
        "it logs in with what the file said at the start",
        "password_changes",
        "lost: r0",
        patch=_as_at_the_start,
    ),
    Mutation(
        "password-waits",
        "whoever was let in before waits for another password",
        "a refused login ends the worker",
        "password_changes",
        "ended with 2, which nothing asked for",
        patch=_set(Connection, "_may_pass", lambda *_: False),
    ),
    Mutation(
        "outage",
        "after an outage of Redis live workers renew before anything is reclaimed",
        "reclaiming goes on at once",
        "outage_longer_than_the_lease",
        "unexplained: r",
        patch=_set(ReclaimGuard, "may_reclaim", lambda *_: True),
    ),
    Mutation(
        "outage-newcomer",
        "so do workers that come during the outage",
        "a newcomer does not watch Redis for a lease before it reclaims",
        "outage_as_workers_come",
        "unexplained: r",
        patch=_set(ReclaimGuard, "looks_from", _has_watched_for_long),
    ),
    Mutation(
        "redis-clock",
        "after a step of Redis's clock live workers renew before anything is reclaimed",
        "nobody reads Redis's clock",
        "redis_clock_forward",
        "unexplained: r",
        patch=_set(ReclaimGuard, "read_clock", lambda *_: 0.0),
    ),
    Mutation(
        "redis-clock-in-turn",
        "a reclaim whose clock has stepped since it was asked for takes nothing back",
        "reclaim.lua does not look at the clock",
        "redis_clock_forward_in_a_turn",
        "unexplained: r",
        (("if ARGV[5] ~= '' and now_ms() > tonumber(ARGV[5]) then", "if false then"),),
    ),
    Mutation(
        "redis-clock-back-turn",
        "a lock from before Redis's clock was set back holds up no housekeeping",
        "acquire_housekeeping_lock.lua waits until the lock expires",
        "redis_clock_back",
        "r is started 2 times",
        (("if since >= 0 and since <= 10 * tonumber(ARGV[2]) then return", "if true then return"),),
    ),
    Mutation(
        "redis-clock-back-lease",
        "a lease from before Redis's clock was set back counts anew",
        "reclaim.lua looks at idle times only",
        "redis_clock_back",
        "r is started 2 times",
        (("  count_anew(lane)\n", ""),),
    ),
    Mutation(
        "lost-wake-up",
        "wake-ups that were lost with a worker are said again",
        "tend_waiting.lua wakes nobody",
        "wake_up_lost",
        "not within 5 s: r has a result",
        (("left = waiting[lane] > 0 and not paused[lane] and lane or left end", "left = nil end"),),
        _patient_waits,
    ),
    Mutation(
        "opening-write",
        "a Redis at its memory limit can still be drained",
        "scripts do not begin with a write that a full server allows",
        "late_on_a_full_redis",
        "not within 3 s: r has a result",
        (
            (
                "local function open_for_writes() call('XACK', KEYS[1], GROUP, '0-0') end",
                "local function open_for_writes() end",
            ),
        ),
    ),
    Mutation(
        "unwritten-counts",
        "an attempt that the engine failed counts, also where Redis did not hear of it",
        "the worker hands back all that it has when it leaves",
        "engine_dies_unheard",
        "uncounted: r",
        patch=_hand_back_all,
    ),
    Mutation(
        "rest-at-limits",
        "workers rest while no tenant that waits may run more",
        "the end of a pull takes what no tenant may run for there to be taken",
        "tenant_at_its_limit",
        "script calls in",
        (_NO_LIMITS_SEEN,),
    ),
    Mutation(
        "queue-turns",
        "a queue whose pull took nothing lets the other queues of its engine go first",
        "the queue with the most urgent head, of a tenant at its limit too, has each turn; its worker pulls in vain",
        "other_queue_beside_a_limit",
        "not within 2 s: b has a result",
        (_NO_LIMITS_SEEN,),
        _each(
            _set(Turns, "_let_others_go", lambda *_: None),
            _set(WorkerBroker, "head", _head_of_what_no_tenant_may_run),
        ),
    ),
    Mutation(
        "kept-of-any-type",
        "kept output that was overwritten with another type counts as gone",
        "the worker reads it with GET",
        "kept_output_overwritten",
        "not within 10 s: r has a result",
        patch=_set(WorkerBroker, "kept", _kept_with_get),
    ),
    Mutation(
        "kept-goes",
        "kept output goes with its request",
        "the record goes without what it names",
        "cancelled_with_kept_output",
        "kept output is gone",
        (("if old and old ~= new then redis.pcall", "if false then redis.pcall"),),
    ),
)
PATIENT = Mutation(
    "patient", "none: for comparison", "idle workers look seldom", "wake_up_lost", "", patch=_patient_waits
)
BY_NAME = {mutation.name: mutation for mutation in (*MUTATIONS, PATIENT)}
