"""All Redis key names of a queue: what each holds, who writes it, and when it goes.

All keys of a queue share the hash tag ``{queue}``, so that they live in one cluster slot and scripts may
touch them together. Scripts write what the workers' own business is; an empty stream with a group stays, any other key
goes when it is empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import LANES, check_name

GROUP = "workers"
NOBODY = "~"
"""Consumer that holds what was delivered but not yet given to a worker; no worker may have this name."""


class Origin(NamedTuple):
    """Source from which a key is made anew.

    Attributes:
        type: its type, as the command TYPE returns it.
        truth: what it follows from; empty for a key that is itself the truth.
        lost: what is lost with it.
        left: what is left of it at most once all requests have ended; empty for nothing but a stream's group.
    """

    type: str
    truth: str
    lost: str
    left: str = ""


UNTIL = "until it expires"
_LANES = "lanes, pending rows"
ORIGINS = {
    "lane": Origin("stream", "", "its requests; who enqueued them gets `dead`, code `vanished`"),
    "ready": Origin("zset", f"{_LANES}, `entries`", "nothing"),
    "turns": Origin(
        "zset", "who waits", "tokens of the last hours: all tenants go on at one level", "a number a tenant"
    ),
    "tickets": Origin("hash", f"{_LANES}, `sessions`", "homes of what waits: some get another"),
    "delayed": Origin("zset", _LANES, "delays: these requests are ready at once"),
    "lane_states": Origin(
        "hash",
        f"{_LANES}, `entries`",
        "pauses; shares owed; when ids ahead of the clock were staged",
        "6 fields a lane, 3 more",
    ),
    "counts": Origin("hash", "lanes", "what ended before; with `lanes`, it counts as vanished", "10 numbers"),
    "served": Origin(
        "hash",
        "runs to come",
        "what tenants were charged, learnt lengths, how many of a tenant run",
        "for an hour 2 fields a tenant, of 2,000; 2 a lane, 4 more",
    ),
    "sessions": Origin(
        "hash",
        "requests to come",
        "homes of sessions: caches are filled anew",
        "for an hour 100,000 sessions; 2 fields a worker, 1 more",
    ),
    "loads": Origin("zset", "pulls", "nothing", "a number a worker"),
    "workers": Origin("hash", "heartbeats", "nothing", "the killed, until they are forgotten"),
    "clock": Origin("hash", "the housekeeping", "nothing", "20 fields"),
    "pace": Origin("string", "the housekeeping", "measured paces, for a minute", "one text"),
    "wake": Origin("stream", "pulls", "nothing", "`watchers` hints"),
    "waiting": Origin("zset", "pulls", "nothing", "the killed, until they are forgotten"),
    "watch": Origin("zset", "pulls", "nothing", "the killed, until they are forgotten"),
    "wake_up": Origin("list", "pulls", "nothing", UNTIL),
    "cancels": Origin(
        "stream", "results", "notices: a worker hears of a cancellation as it renews", "about `notices_cap`"
    ),
    "dead_parts": Origin(
        "hash",
        "dead letters to come",
        "their bound in bytes counts from zero",
        "a number for each 16 MiB of `dead_bytes`, 3 more",
    ),
    "arrivals": Origin(
        "hash",
        "requests to come",
        "counts of who has unstaged requests",
        "a field a tenant and lane, 2 more; 8,192",
    ),
    "maintain": Origin("string", "the housekeeping", "nothing", UNTIL),
    "tries": Origin("hash", "", "attempts: these requests have all of them again"),
    "entries": Origin("hash", "", "output that was kept; when ids ahead of the clock were staged", "one number"),
    "dead": Origin("stream", "", "dead letters", "`dead_cap`, `dead_bytes`, for `dead_ttl_ms`"),
    "cancel_requests": Origin("stream", "", "cancellations that no worker has read"),
    "tenants": Origin(
        "hash",
        "",
        "weights and limits that operators have set; gateways set theirs again",
        "what was set",
    ),
    "meta": Origin("hash", "", "the queue's configuration; workers write their own", "a field a limit"),
    "result": Origin(
        "hash",
        "",
        "the answer; a client that waits gets `dead`, code `vanished`, after a minute; if its role may not end "
        "requests, it gets that after `audit --repair`",
        UNTIL,
    ),
    "request": Origin("string", "", "that its id is taken: sent again, it runs twice", UNTIL),
    "reply": Origin("stream", "", "notifications: its client asks for the results now and then", UNTIL),
    "tokens": Origin("stream", "", "partial output; the result has all of it", UNTIL),
    "kept": Origin("string", "", "output of an interrupted run, which begins anew", UNTIL),
    "ended": Origin("list", "", "which results of a tenant are the oldest", UNTIL),
}
"""Keys by their names in `Keys`: of the queue, of each lane (`EACH_LANE`), request, client, worker or tenant."""
EACH_LANE = ("lane", "ready", "turns")


def check_prefix(value: str) -> str:
    """Check a key prefix: without braces, so that the queue's name stays the hash tag.

    Raises:
        InvalidRequest: it holds braces.
    """
    if set(value) & set("{}"):
        raise InvalidRequest("must not contain braces: they would take the place of the queue's hash tag", "key_prefix")
    return value


def gateway_base(prefix: str) -> str:
    """Prefix of the keys that all gateways share and that belong to no queue.

    A queue's keys have a colon after the hash tag and these have a slash. So no queue's name can collide with them, and
    no ACL rule for all queues (``{*}:*``) covers API keys or signing secrets.

    Raises:
        InvalidRequest: the prefix is not usable.
    """
    return f"{check_prefix(prefix)}{{gateway}}/"


@dataclass(frozen=True)
class Keys:
    """Key names of one queue.

    Args:
        queue: queue name, 1 to 256 printable ASCII characters, no braces.
        prefix: prefix of every key, for a shared Redis; may be empty, no braces.

    Raises:
        InvalidRequest: the queue's name or the prefix is not usable.
    """

    queue: str
    prefix: str = ""
    base: str = field(init=False)

    def __post_init__(self) -> None:
        check_name(self.queue, "queue", forbidden="{}")
        check_prefix(self.prefix)
        object.__setattr__(self, "base", f"{self.prefix}{{{self.queue}}}:")

    def lane(self, lane: str) -> str:
        """Stream of outstanding requests. Clients add; an entry goes when its request ends."""
        return f"{self.base}lane:{lane}"

    def ready(self, lane: str) -> str:
        """Sorted set of staged requests without a label, by rank (deadline in epoch ms).

        Requests with a tenant, or with a home (a worker that they wait for), stand in sets whose names begin alike:

        - ``:t:<tenant>``: those of a tenant that wait for nobody; members ``<encoded id> <bytes of the body> <limit>``.
        - ``:th:<tenant>`` and ``:ht:<home>``: those with both, each in both sets; ``<home>`` or ``<tenant>`` is added.
        - ``:h:<home>``: those with a home alone; members as here.
        - ``:held``: interrupted ones that wait for their worker; members as in ``:ht:``.
        - ``:firsts``: home to the rank of the first in its ``:h:``.
        - ``:late``: tenant to a rank no later than its first deadline, while tenants share the lane.
        - ``:past``: tenants whose passed deadlines a pull has met, until the housekeeping has ended those requests.

        The scripts that make a request ready write them. A member goes when its request is taken or ends.
        """
        return f"{self.base}ready:{lane}"

    def result(self, request_id: str) -> str:
        """Hash of an answer, with TTL. Written once, by the script that ends the request."""
        return f"{self.base}result:{request_id}"

    def request(self, request_id: str) -> str:
        """Record of an id, ``<digest> <lane>:<stream id> <reply>``, with TTL.

        Written as a client enqueues the request, or at its end where it came by plain XADD under an id of its own.
        """
        return f"{self.base}request:{request_id}"

    def reply(self, client: str) -> str:
        """Stream of notifications for one client, with TTL. Scripts that end requests add; the client deletes it."""
        return f"{self.base}reply:{client}"

    def ended(self, tenant: str) -> str:
        """List of a tenant's `bounded` requests that have ended, each with the bytes of all up to it, with TTL."""
        return f"{self.base}ended:{tenant}"

    def tokens(self, request_id: str) -> str:
        """Stream of partial output of one request, with TTL. Its worker adds."""
        return f"{self.base}tokens:{request_id}"

    def kept(self, run: str) -> str:
        """Output of an interrupted run, with TTL. Its worker writes it; goes when `entries` names it no more."""
        return f"{self.base}kept:{run}"

    def turns(self, lane: str) -> str:
        """Sorted set of tenants that share a lane, by tokens for their weight; below zero while they do not wait."""
        return f"{self.base}turns:{lane}"

    @property
    def tickets(self) -> str:
        """Hash ``<lane number>|<stream id>`` to ``<home> <bytes> <limit> <tenant>`` of requests that wait for a home.

        Scripts write a field when its request becomes ready; it goes when that request is taken or ends.
        """
        return f"{self.base}tickets"

    @property
    def served(self) -> str:
        """Hash of what tenants were charged, by one-letter prefixes:

        - ``t|<tenant>``: its record, 8 little-endian doubles: running, requests, charged, tokens, lost, missed, last
          seen, last credit (epoch ms). Goes an hour after the tenant.
        - ``l|<tenant>``: lengths of its answers, for each class of limit ``;<class> <number> <mean output> <prompt
          tokens a byte>[ x]``; ``x`` if a run has exceeded such a limit. Goes with the record.
        - ``c|<lane number>|<stream id>``: charge of a request, ``<prompt> <output> <weight> <kept> <bytes>:<limit>
          <counted> <tenant>``; ``counted`` is 1 if it counts in ``running``. Goes when the request ends.

        Beside them ``level|<lane number>``, the most tokens that a tenant had when it was picked in its turn;
        ``new|<lane number>``, the tokens at which the next name without history starts; ``usual``, the tokens that a
        request without a tenant costs until its body is read; and ``known``, the number of records.
        """
        return f"{self.base}served"

    @property
    def arrivals(self) -> str:
        """Hash of tenants' requests that no worker has staged yet, and of who enqueued last. Clients write it."""
        return f"{self.base}arrivals"

    @property
    def of_shares(self) -> list[str]:
        """Keys by which enqueue.lua counts what a tenant has waiting, beside the ready sets of tenants."""
        return [*map(self.ready, LANES), self.arrivals, self.lane_states, self.served, self.delayed]

    @property
    def tenants(self) -> str:
        """Hash of tenant to ``<weight> <most running> <when> <key>``. Operators and gateways write it; stays."""
        return f"{self.base}tenants"

    @property
    def sessions(self) -> str:
        """Hash of homes: numbers of workers, new at each start. A field goes an hour after its use or with its home:

        - ``s<hash>`` of a session, ``p<hash>`` of a beginning of prompts: ``<last use> <uses lately> <home>,…``.
        - ``f<hash>`` of a program: ``<last use> <first arrival>``.
        - ``n|<worker>``: ``<home> <start>``. ``w|<home>``: ``<last pull> <worker>``. ``#``: last number.
        """
        return f"{self.base}sessions"

    @property
    def loads(self) -> str:
        """Sorted set of these workers' numbers, by what each holds and what waits for it. Goes with the worker."""
        return f"{self.base}loads"

    @property
    def waiting(self) -> str:
        """Sorted set of workers that wait for work, by their room and then by the requests that they hold (wake.lua).

        A pull that leaves its worker with room adds it; the next one, or whoever forgets the worker, removes it.
        """
        return f"{self.base}waiting"

    @property
    def watch(self) -> str:
        """Sorted set of those of them that block on the streams, by the end of their watch, epoch ms."""
        return f"{self.base}watch"

    def wake_up(self, worker: str) -> str:
        """List of at most one token, with TTL. Scripts that leave work behind add; its worker pops it."""
        return f"{self.base}wake:{worker}"

    @property
    def wake(self) -> str:
        """Stream of an entry for each worker that watches. Scripts that leave work behind add; a pull removes."""
        return f"{self.base}wake"

    @property
    def lane_states(self) -> str:
        """Hash of what is known of the lanes; stays. Of each lane, by its name:

        - ``credit:``: what it is owed of its share, in thousandths of a pick; pulls and releases write it.
        - ``staged:``: the last stream id that was staged; pulls write it.
        - ``again:``: the same when its group was made anew, by whoever made it; goes as the counters are mended.
        - ``ahead:``: the last stream id that was ahead of the clock when it was staged, by whoever staged it.
        - ``paused:``: when an operator paused it, epoch ms; goes when it is resumed.
        - ``mending:``: while its sets are made anew: how far, and up to where, as stream ids; reconciliations write it.

        Beside them, because each call asks for all of it at once: ``ever_staged``, the number of entries that pulls
        have staged; ``interrupted``, the number of such records in `entries`; ``tenants`` and ``sessions``, which the
        order writes while one is known; ``labelled``, how many wait with a label: for each lane, in order, ``<in :t:>
        <with tenant and home> <in :h:> <held>;`` (see `ready`), absent while none does.
        """
        return f"{self.base}lanes"

    @property
    def entries(self) -> str:
        """Hash of what is known of single entries; by ``<lane number>|<stream id>``, and goes with its entry:

        - ``enqueued:``: when it was staged, epoch ms, if its id was ahead of the clock; by whoever staged it.
        - ``interrupted:``: ``<how often it gave way> <run> <bytes> <until> <worker>``; releases and renewals write it.

        ``kept_bytes`` are the bytes of all output that these records name.
        """
        return f"{self.base}entries"

    @property
    def clock(self) -> str:
        """Hash of what the housekeeping knows of its turns, and how far it has come; stays. Epoch ms, or a stream id:

        - ``turn``, ``turns_from``: the last turn of a worker, and the first of those without a gap. ``turns``: number
          of all turns.
        - ``reclaimed``: the last look at which no lease had expired. ``forgot``: at which nobody had gone.
        - ``services``: the last turn of the services. ``scan:<key>``: the cursor with which they go on in that hash.
        - ``examined``, ``swept``: lane or part, and the cursor behind it, where looking for damage goes on.
          ``begun:<lane>``: number of the turn in which it was last made anew.
        - ``leases:<lane>``: how far leases from before the clock was set back were looked through; goes at the end of
          the lane.
        """
        return f"{self.base}clock"

    @property
    def pace(self) -> str:
        """JSON of how fast requests come and are taken. The housekeeping writes it; stays."""
        return f"{self.base}pace"

    @property
    def dead(self) -> str:
        """Stream of dead letters. Scripts that end requests add; the housekeeping trims."""
        return f"{self.base}dead"

    @property
    def dead_parts(self) -> str:
        """Hash by which dead letters are bounded in bytes; the scripts that write letters write it.

        ``bytes`` ever written; ``<number of a part of 16 MiB>``: its first letter, which goes with the part; and
        ``from``, the first part that is left.
        """
        return f"{self.base}dead_parts"

    @property
    def tries(self) -> str:
        """Hash ``<lane number>|<stream id>`` to ``<attempts>[ <worker>…]``; these workers were lost with it."""
        return f"{self.base}tries"

    @property
    def delayed(self) -> str:
        """Sorted set ``<lane number>|<stream id>`` by due time in epoch ms. The housekeeping takes what is due."""
        return f"{self.base}delayed"

    @property
    def counts(self) -> str:
        """Hash of lifetime counters: staged, each terminal status, duplicate, id_reused, vanished, requeued,
        forgotten. Stays.
        """
        return f"{self.base}counts"

    @property
    def cancels(self) -> str:
        """Short stream of cancelled ids, read by every worker. Whoever cancels, drains or configures adds."""
        return f"{self.base}cancels"

    @property
    def cancel_requests(self) -> str:
        """Stream of ids to cancel, from clients that may not write results; goes as the housekeeping processes it."""
        return f"{self.base}cancel_requests"

    @property
    def workers(self) -> str:
        """Hash of worker name to a JSON description with its last sign of life. Goes when the worker is forgotten."""
        return f"{self.base}workers"

    @property
    def meta(self) -> str:
        """Hash of the queue's configuration, by setting. Workers add what is missing, operators change it; stays."""
        return f"{self.base}meta"

    @property
    def maintain(self) -> str:
        """Lock with TTL: one worker at a time does the queue's housekeeping."""
        return f"{self.base}maintain"

    @property
    def lanes(self) -> list[str]:
        """The lanes' streams, most urgent first."""
        return [self.lane(lane) for lane in LANES]

    def shared(self) -> list[str]:
        """The keys that every script of a queue gets first, in the order of lua/lib/keys.lua."""
        return [
            *self.lanes,
            *(self.ready(lane) for lane in LANES),
            *(self.turns(lane) for lane in LANES),
            self.wake,
            self.lane_states,
            self.entries,
            self.dead,
            self.tries,
            self.delayed,
            self.waiting,
            self.watch,
            self.counts,
            self.cancels,
            self.workers,
            self.dead_parts,
            self.tickets,
            self.served,
            self.tenants,
            self.sessions,
            self.loads,
        ]

    def typed(self, *, derived: bool = False) -> dict[str, str]:
        """Types of all keys of the queue itself; or of those alone that can be made anew."""
        found: dict[str, str] = {}
        for name, origin in ORIGINS.items():
            known = getattr(self, name)
            keys = [known] if isinstance(known, str) else [*map(known, LANES)] if name in EACH_LANE else []
            if origin.truth or not derived:
                found |= dict.fromkeys(keys, origin.type)
        return found
