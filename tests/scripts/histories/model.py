"""Expected state of the queue after every step of a history, in Python, compared with the whole keyspace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamfleet.common.broker.types import Claim, Lease
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.keys import NOBODY
from streamfleet.common.protocol import LANES, check_name, digest_of_bytes
from tests.order.picks import rank_of
from tests.scripts.harness import LIMITS
from tests.scripts.keyspace import Dump, id_key

UNDELIVERED, HANDED_OUT, READY = ("undelivered",), ("handed out",), ("ready",)
Place = tuple[Any, ...]
HOME_MS = 10_000
"""Longest time for which a request that gave way waits for its worker."""
LATE_MS, URGENT_MS, OWN_MS = 3_000, 10_000, 1_000
"""A request is nearly late within the first of these times of its deadline. One that waits for a worker goes before
others of its tenant, unless one of them has to run within the second, and sooner than it by more than the third."""
_SET = re.compile(r"ready:(\w+)(?::(?:(t|th|h):(.*)|(held)))?$", re.DOTALL)
_LATER_FIELDS = re.compile(r"entry|lane|enqueued_ms|tenant|session|traceparent|meta|notified:.*|usage|resumed_tokens")


@dataclass(frozen=True)
class Entry:
    """Meaning of an entry's fields, by the protocol."""

    lane: str
    stream_id: str
    request_id: str
    reply: str
    enqueued: int
    deadline: int | None
    ttl: int | None
    size: int
    tenant: str
    refuses: bool = False
    """It is not to wait if it will likely be late."""
    digest: str = ""
    """Of its bytes."""

    @property
    def name(self) -> str:
        return f"{self.lane}:{self.stream_id}"

    @property
    def member(self) -> str:
        """Its name in `tries` and `delayed`."""
        return f"{[*LANES].index(self.lane) + 1}|{self.stream_id}"  # type: ignore[arg-type]


def understand(lane: str, stream_id: str, fields: Mapping[str, str]) -> Entry:
    """The entry that these fields make."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in fields.items())
    of_bytes = digest_of_bytes({name.encode(): value.encode() for name, value in fields.items()})
    return Entry(
        lane,
        stream_id,
        request_id=_name(fields.get("id", "")) or f"{lane}:{stream_id}",
        reply=_name(fields.get("reply", "")),
        enqueued=id_key(stream_id)[0],
        deadline=_milliseconds(fields.get("deadline", "")),
        ttl=_milliseconds(fields.get("ttl", "")),
        size=size,
        tenant=fields.get("tenant", "") if fields.get("tenant", "").isprintable() else "other",
        refuses=fields.get("if_late") == "refuse",
        digest=of_bytes,
    )


@dataclass(frozen=True)
class Charge:
    """Tokens that an entry is charged: for its run, 0 if none runs, and for what earlier runs generated."""

    tenant: str
    run: int
    kept: int
    counted: bool
    """Its tenant had a limit when the run began."""

    @classmethod
    def read(cls, words: str) -> Charge:
        prompt, output, _, kept, _, counted, tenant = words.split(" ", 6)
        return cls(tenant, int(prompt) + int(output), int(kept), counted == "1")


class Model:
    """Place of every entry, and everything said about every request."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.places: dict[str, Place] = {}
        self.tries: dict[str, int] = {}
        self.lost_with: dict[str, list[str]] = {}
        """Entry to the workers that its attempts were lost with."""
        self.counts: Counter[str] = Counter()
        self.results: dict[str, tuple[str, str | None]] = {}
        """Request id to its status and the entry that it was counted for."""
        self.records: dict[str, tuple[str, str, str]] = {}
        """Request id to the digest, the entry and the reply name that its record has."""
        self.notifications: Counter[tuple[str, str, str]] = Counter()
        self.told: set[tuple[str, str]] = set()
        self.letters: Counter[tuple[str, str, str, str, str]] = Counter()
        self.ghosts: set[str] = set()
        """Deleted by hand, and not noticed yet."""
        self.written: dict[str, dict[str, str]] = {}
        self.now = 0
        self.interrupted: dict[str, tuple[int, str]] = {}
        """Number of times that a request gave way, and what is known of its kept output."""
        self.outputs: set[str] = set()
        """Runs whose output was stored."""
        self.homes: dict[str, tuple[int, str]] = {}
        """Of what gave way and was kept: until when it waits for its worker, epoch ms, and that worker."""
        self.anybodys: set[str] = set()
        """Of these, those that wait for nobody since that time; a clock that is set back changes nothing in that."""
        self.kept: dict[str, int] = {}
        """Times at which entries were staged whose ids lay ahead of the clock."""
        self.ranks: dict[str, int] = {}
        """Of what is ready."""
        self.staged_up_to: dict[str, tuple[int, int]] = {}
        self.needs_ms = 0
        """Time that every request needs, as workers say; 0 if they do not judge deadlines."""
        self.charges: dict[str, Charge] = {}
        self.left_behind: dict[str, Charge] = {}
        """Charges by member of runs whose entry a renewal found deleted."""
        self.settled: Counter[str] = Counter()
        self.lost_tokens: Counter[str] = Counter()
        self.most: dict[str, int] = {}
        """Most of a tenant that run at once."""
        self.sessions = False
        """True if some requests are of sessions: what waits for another worker is passed over."""
        self.without: Sequence[str] = ()
        """Policies that the scripts are without: a label that only these know means nothing."""

    # -- deadlines and order -----------------------------------------------------------------------------------

    def enqueued(self, entry: Entry) -> int:
        """Time at which an entry was enqueued, as far as its id can be believed."""
        return self.kept.get(entry.name, min(entry.enqueued, self.now))

    def deadline(self, entry: Entry) -> int | None:
        if entry.deadline is None and entry.ttl is not None:
            return self.enqueued(entry) + entry.ttl
        return entry.deadline

    def is_late(self, entry: Entry, at: int | None = None) -> bool:
        deadline = self.deadline(entry)
        return deadline is not None and deadline <= (self.now if at is None else at)

    def unfit(self, entry: Entry, at: int | None = None) -> str:
        """Status with which an entry ends that must not run; empty for one that may."""
        if self.is_late(entry, at):
            return "expired"
        return "failed" if entry.size > LIMITS.max_entry_bytes else ""

    def out_of_reach(self, name: str, at: int) -> bool:
        """True if it must not start because it cannot be done by its deadline."""
        if "judging" in self.without:
            return False
        deadline = self.deadline(self.entries[name])
        judged = deadline is not None and name not in self.tries and name not in self.interrupted
        return judged and (deadline or 0) - at < self.needs_ms

    def may_run(self, name: str, claimed: Iterable[str] = ()) -> bool:
        """True unless its tenant has as many running as it may; `claimed` run too."""
        tenant = self.entries[name].tenant
        mine = [each for each in claimed if self.entries[each].tenant == tenant]
        return tenant not in self.most or self._running(tenant) + len(mine) < self.most[tenant]

    def _running(self, tenant: str) -> int:
        """Number of its runs that count for its limit."""
        charges = [*self.charges.values(), *self.left_behind.values()]
        return sum(charge.tenant == tenant and charge.run > 0 and charge.counted for charge in charges)

    def order(self, name: str) -> tuple[int, tuple[int, int]]:
        """Place in its lane: by deadline, then first in, first out."""
        return self.ranks[name], id_key(self.entries[name].stream_id)

    def _rank(self, name: str) -> None:
        """An entry comes to be ready: what its rank is counted from does not change any more."""
        entry = self.entries[name]
        if entry.enqueued > self.now:
            self.kept.setdefault(name, self.now)
        deadline = self.deadline(entry)
        self.ranks[name] = rank_of(self.enqueued(entry), deadline, LIMITS.patience_ms)

    def rank_anew(self) -> None:
        """Rank entries from now if they were staged ahead of a clock that was set back since."""
        for name, entry in self.entries.items():
            ahead = entry.enqueued > self.now and self.places[name] not in (UNDELIVERED, HANDED_OUT)
            if ahead and name not in self.kept and name not in self.ghosts:
                self.kept[name] = self.now
                if self.places[name] == READY:
                    self._rank(name)

    # -- what happens ------------------------------------------------------------------------------------------

    def arrive(self, entry: Entry) -> None:
        self.entries[entry.name] = replace(entry, tenant="") if "tenants" in self.without else entry
        self.places[entry.name] = UNDELIVERED

    def deliver(self, name: str) -> None:
        """Into the ready set, from wherever."""
        if self.places[name] in (UNDELIVERED, HANDED_OUT):
            self.counts["staged"] += 1
        self.places[name] = READY
        if name not in self.ghosts:
            self._rank(name)
        self.anybodys.discard(name)
        if name in self.homes and (self.homes[name][0] <= self.now or "order" in self.without):
            self.anybodys.add(name)

    def come_back(self, name: str) -> bool:
        """Into the ready set again; False where it must not run, which is its end."""
        self.deliver(name)
        if status := self.unfit(self.entries[name]):
            self.end(name, status, self.tries.get(name, 0))
            return False
        return True

    def holds(self, worker: str, lease: Lease) -> bool:
        """True if the fence lets this worker write about its lease."""
        return self.places.get(lease.entry) == ("running", worker, lease.attempt)

    def end(self, name: str, status: str, attempts: int, *, letter: bool = True) -> bool:
        """An entry is gone; False when its id had ended before, so that this changed nothing about the request."""
        entry = self.entries[name]
        if name in self.ghosts and status == "vanished":
            self.counts["vanished"] += 1
        elif self._is_another(entry):
            self.counts["id_reused"] += 1
            self.letters[entry.request_id, "failed", name, str(attempts), ""] += 1
            self.notifications[entry.reply, entry.request_id, "id_reused"] += 1 if entry.reply else 0
            self._remove(name)
            return False
        elif entry.request_id in self.results:
            self._settle(entry)
            self._remove(name)
            return False
        else:
            self.results[entry.request_id] = (status, name)
            self.counts[status] += 1
            if letter and status in ("failed", "expired", "dead"):
                workers = " ".join(self.lost_with.get(name, [])) if status == "dead" else ""
                self.letters[entry.request_id, status, name, str(attempts), workers] += 1
            self._record(entry)
            self._tell(entry.reply, entry.request_id)
        self._remove(name)
        return True

    def _is_another(self, entry: Entry) -> bool:
        """True if the id of an entry is that of another request."""
        digest, name, _ = self.records.get(entry.request_id, (entry.digest, entry.name, ""))
        return name != entry.name and digest[-16:] != entry.digest

    def _record(self, entry: Entry) -> None:
        """A request by plain XADD is known by its bytes once it has ended."""
        if entry.request_id != entry.name:
            self.records.setdefault(entry.request_id, (entry.digest, entry.name, entry.reply))

    def interrupt(self, name: str, worker: str, output: str) -> None:
        """A running request gave way; without new output, what was kept before still counts."""
        if name not in self.ghosts:
            times, before = self.interrupted.get(name, (0, ""))
            self.interrupted[name] = times + 1, output or before
            if output or before:
                deadline = self.deadline(self.entries[name])
                wait_ms = HOME_MS if deadline is None else min(HOME_MS, (deadline - self.now) / 4)
                self.homes[name] = int(f"{self.now + wait_ms:.0f}"), worker

    def lose(self, name: str, worker: str) -> None:
        """An attempt ended with its worker."""
        self.lost_with.setdefault(name, []).append(worker)

    def cancel(self, request_id: str, reply: str, name: str) -> None:
        """A request is cancelled; what is known as its entry leaves its lane, unless a worker has it."""
        if request_id in self.results:
            return
        self.results[request_id] = ("cancelled", None)
        self._tell(reply, request_id)
        entry = self.entries.get(name)
        if entry and entry.request_id == request_id and name not in self.ghosts:
            self._record(entry)
            if self.places[name][0] != "running":
                self.deliver(name)
                self.end(name, "cancelled", 0)

    def find(self, request_id: str) -> str:
        """Name of the first entry of a request that no record names; empty for none."""
        mine = [
            each for each in self.entries.values() if each.request_id == request_id and each.name not in self.ghosts
        ]
        return min(mine, key=lambda each: (each.member[0], id_key(each.stream_id))).name if mine else ""

    def forget(self, request_id: str) -> None:
        """A dead letter gets another life."""
        self.results.pop(request_id, None)
        self.written.pop(request_id, None)
        self.told = {told for told in self.told if told[1] != request_id}

    def _settle(self, entry: Entry) -> None:
        status, counted_for = self.results[entry.request_id]
        self.counts["duplicate" if counted_for else status] += 1
        self.results[entry.request_id] = (status, counted_for or entry.name)
        if not counted_for:
            self._record(entry)
        self._tell(entry.reply, entry.request_id)

    def _tell(self, reply: str, request_id: str) -> None:
        if reply and (reply, request_id) not in self.told:
            self.told.add((reply, request_id))
            self.notifications[reply, request_id, self.results[request_id][0]] += 1

    # -- charges, whose amount at the pick is the script's choice -------------------------------------------------

    def settle(self, name: str, used: int | None, resumed: int, status: str) -> None:
        """A run ends; `used`: its tokens, if the engine counted them."""
        if charge := self._charged_run(name):
            cost = charge.run if status == "succeeded" else 0
            if used is not None:
                cost = used - min(charge.kept, resumed)
            self.settled[charge.tenant] += cost + charge.kept

    def _charged_run(self, name: str) -> Charge | None:
        """Takes the charge of a run; None for one that is not charged: what earlier runs generated stays."""
        return self.charges.pop(name) if name in self.charges and self.charges[name].run else None

    def hand_back(self, name: str, generated: int | None) -> None:
        """A run ends before its request does; `generated`: None if it was lost."""
        charge = self._charged_run(name)
        if charge is None:
            return
        if generated is None:
            self.lost_tokens[charge.tenant] += charge.run
        if kept := charge.kept + min(charge.run, generated or 0):
            self.charges[name] = replace(charge, run=0, kept=kept)

    def vanish(self, name: str) -> None:
        """A renewal finds that an entry was deleted by hand: its charge stays until the upkeep comes."""
        if charge := self.charges.pop(name, None):
            self.left_behind[self.entries[name].member] = charge
        self.end(name, "vanished", 0)

    def upkeep(self, tickets: Mapping[str, str]) -> None:
        """The housekeeping finds charges of runs that are over, and of what was deleted by hand while it waited.

        One with a ticket is known to wait: its charge stays until a pull finds that it is gone.
        """
        for name in self.ghosts & self.charges.keys():
            if self.places[name] in (READY, HANDED_OUT) and self.entries[name].member not in tickets:
                self.left_behind[self.entries[name].member] = self.charges.pop(name)
        for charge in self.left_behind.values():
            self.lost_tokens[charge.tenant] += charge.run
            self.settled[charge.tenant] += charge.kept
        self.left_behind.clear()

    def _compare_tenants(self, dump: Dump) -> None:
        served = dump.get("served", {})
        found = {field[2:]: Charge.read(words) for field, words in served.items() if field.startswith("c|")}
        charges = self.left_behind | {self.entries[name].member: charge for name, charge in self.charges.items()}
        assert found == charges, f"{found}, not {charges}"
        for name, charge in self.charges.items():
            free = not charge.tenant and charge.run == 0  # it runs, and no tenant waited when it was picked
            assert (charge.run > 0) == (self.places[name][0] == "running") or free, f"{name}: {charge}"
        records = {
            name[2:]: [int(part) for part in value.split()] for name, value in served.items() if name[:2] == "t|"
        }
        for counter in (self.settled, self.lost_tokens):
            for name in [*counter]:
                if name not in records:  # forgotten: it has been gone for an hour
                    del counter[name]
        assert {name: record[3] for name, record in records.items() if record[3]} == +self.settled, (
            records,
            self.settled,
        )
        assert {name: record[4] for name, record in records.items() if record[4]} == +self.lost_tokens
        assert all(record[0] == self._running(name) for name, record in records.items()), records
        self._compare_waiting(dump)

    def _compare_waiting(self, dump: Dump) -> None:
        """Each stands in a set of its tenant, at its rank, and tenants of which some wait are in turn."""
        tenants: dict[str, set[str]] = {lane: set() for lane in LANES}
        free: dict[str, set[str]] = {lane: set() for lane in LANES}
        for name, kind, tenant, rank in waiting_in(dump):
            entry = self.entries[name]
            assert (rank, tenant) == (self.ranks[name], entry.tenant), f"{name} waits in {kind or 'ready'} of {tenant}"
            if kind != "held":
                tenants[entry.lane].add(tenant)
                free[entry.lane] |= {tenant} if self.may_run(name) else set()
        for lane, names in tenants.items():
            shared = names != {""} and bool(names)
            turns = {tenant for tenant, score in dump.get(f"turns:{lane}", []) if score >= 0}
            least = free[lane] if shared else set()
            assert least <= turns <= names, f"{lane}: {turns} are in turn, and {names} wait"

    def _remove(self, name: str) -> None:
        if charge := self.charges.pop(name, None):
            self.settled[charge.tenant] += charge.kept
        del self.entries[name], self.places[name]
        self.tries.pop(name, None)
        self.lost_with.pop(name, None)
        self.kept.pop(name, None)
        self.interrupted.pop(name, None)
        self.homes.pop(name, None)
        self.anybodys.discard(name)
        self.ranks.pop(name, None)
        self.ghosts.discard(name)

    # -- pulls, whose staging and lanes are the script's choice ---------------------------------------------------

    def pull(self, worker: str, now: int, hints: Iterable[str], claims: Iterable[Claim], after: Dump) -> None:
        """Take over what a pull chose, having checked that it was allowed to."""
        self._put_back(hints)
        seen = places_of(after)
        ended = set()
        claimed = [claim.lease.entry for claim in claims]
        undelivered = [name for name, place in self.places.items() if place == UNDELIVERED]
        staged_now = [name for name in undelivered if seen.get(name) != UNDELIVERED]
        for name in staged_now:
            entry = self.entries[name]
            staged = self.staged_up_to.get(entry.lane, (0, 0))
            self.staged_up_to[entry.lane] = max(staged, id_key(entry.stream_id))
            self.deliver(name)
            judged = entry.refuses and self.deadline(entry) and entry.request_id not in self.results
            if status := self.unfit(entry):
                assert name not in seen, f"{name} has not {status} when it came"
                ended.add(name)
            # What ended its id may have waited before: then it was taken, and found that it had ended.
            elif judged and name not in seen and _ended_by(after, entry.request_id) in staged_now:
                ended.add(name)  # the script judges that it would be late
        self._drop(sorted(ended), now, after)
        pool = {name for name, place in self.places.items() if place == READY}
        gone = sorted(name for name in pool - set(claimed) if name not in seen)
        self._check_order(pool, claimed, gone, self._theirs(worker, now), worker, now)
        self._let_go(pool, now, after)
        for claim in claims:
            self._claim(worker, now, claim, pool)
            entry = self.entries[claim.lease.entry]
            if words := after.get("served", {}).get(f"c|{entry.member}"):
                before = self.charges.get(entry.name)
                charge = self.charges[entry.name] = Charge.read(words)
                known = Charge(entry.tenant, charge.run, before.kept if before else 0, entry.tenant in self.most)
                assert charge == known, f"{entry.name} is charged {charge}, and should be {known}"
            else:
                assert not entry.tenant, f"{entry.name} is a tenant's, and not charged"
        self._drop(gone, now, after)

    def _put_back(self, hints: Iterable[str]) -> None:
        for name in hints:
            if self.places.get(name) == HANDED_OUT:
                if name in self.ghosts:
                    self.deliver(name)
                    self.end(name, "vanished", 0)
                else:
                    self.come_back(name)

    def _theirs(self, worker: str, now: int) -> set[str]:
        """Requests that wait for another worker."""
        held = self.homes.keys() - self.anybodys
        return {name for name in held if self.homes[name][1] != worker and self.homes[name][0] > now}

    def _let_go(self, pool: set[str], now: int, after: Dump) -> None:
        """A pull makes anybody's what it sees after its time."""
        for name in pool & self.homes.keys():
            lane, _, stream_id = name.partition(":")
            held = {member.split(" ")[0] for member, _ in after.get(f"ready:{lane}:held", [])}
            if self.homes[name][0] <= now and stream_id not in held:
                self.anybodys.add(name)

    def _goes_first(self, name: str, others: set[str], worker: str, now: int) -> bool:
        """It is nearly late; or it waits for this worker, and nothing else of its tenant has to run soon."""
        deadline = self.deadline(self.entries[name])
        if deadline is not None and deadline <= now + LATE_MS:
            return True
        if name in self.anybodys or self.homes.get(name, (0, ""))[1] != worker:
            return False
        first = min(self.ranks[other] for other in others)
        return not (first <= now + URGENT_MS and self.ranks[name] > first + OWN_MS)

    def _check_order(
        self, pool: set[str], claimed: list[str], gone: list[str], theirs: set[str], worker: str, now: int
    ) -> None:
        for lane in [] if self.sessions else LANES:
            here = {name for name in pool | set(claimed) if name.startswith(f"{lane}:")}
            left = here - set(claimed) - set(gone)
            taken = [name for name in claimed if name in here]
            others = {name for name in left - theirs if self.may_run(name, claimed)}
            assert not others or not theirs & set(taken), f"{lane}: others were there before {theirs}"
            dropped = [name for name in gone if self.entries[name].lane == lane and name not in theirs]
            for tenant in {self.entries[name].tenant for name in here}:  # the order within each
                own = {name for name in here if self.entries[name].tenant == tenant}
                waits, mine = own.difference(gone), []
                for name in [name for name in taken if name in own]:
                    mine += [] if self._goes_first(name, waits, worker, now) else [name]
                    waits.discard(name)  # what was taken before has to run no more
                self._check_taken(lane, [name for name in mine if name in theirs], left & theirs & own)
                ended = [
                    name for name in dropped
                    if name in own and not self._goes_first(name, waits | {name}, worker, now)
                ]  # fmt: skip
                self._check_taken(lane, [name for name in mine if name not in theirs], (left - theirs) & own, ended)

    def _check_taken(self, lane: str, names: list[str], left: set[str], dropped: Sequence[str] = ()) -> None:
        taken = [self.order(name) for name in names]
        assert taken == sorted(taken), f"{lane}: {taken} is not by deadline"
        popped, waits = taken + [self.order(name) for name in dropped], [self.order(name) for name in left]
        assert not popped or not waits or max(popped) < min(waits), f"{lane}: {min(waits)} waits behind {max(popped)}"

    def _claim(self, worker: str, now: int, claim: Claim, pool: set[str]) -> None:
        name = claim.lease.entry
        assert name in pool, f"{name} was given out, but it was {self.places.get(name)}"
        entry = self.entries[name]
        assert name not in self.ghosts, f"{name} was deleted by hand, and given out"
        times, output = self.interrupted.get(name, (0, ""))
        assert (claim.interrupted, claim.kept) == (times, output.strip().partition(" ")[0])
        assert claim.lease.request_id == entry.request_id
        assert claim.lease.attempt == self.tries.get(name, 0) + 1, f"{name}: attempt {claim.lease.attempt}"
        assert entry.request_id not in self.results, f"{entry.request_id} was given out, but has ended"
        assert not self.is_late(entry, now), f"{name} was given out after its deadline"
        assert not self.out_of_reach(name, now), f"{name} was given out too late to be done by its deadline"
        assert entry.size <= LIMITS.max_entry_bytes, f"{name} was given out with {entry.size} bytes"
        self.places[name] = ("running", worker, claim.lease.attempt)

    def _drop(self, gone: list[str], now: int, after: Dump) -> None:
        # Of several entries of one id, the one that the result names ended it; the others found it ended.
        for name in sorted(gone, key=lambda name: _ended_by(after, self.entries[name].request_id) != name):
            entry = self.entries[name]
            if name in self.ghosts:
                self.end(name, "vanished", 0)
                continue
            status = self.unfit(entry, now)
            if not status and (entry.refuses or self.out_of_reach(name, now)):
                status = "expired"
            assert status or entry.request_id in self.results, f"{name} was dropped for no reason"
            self.end(name, status, self.tries.get(name, 0))

    # -- the comparison --------------------------------------------------------------------------------------------

    def compare(self, dump: Dump, most: int) -> None:
        """Nothing in Redis differs from what is to be expected.

        Raises:
            AssertionError: something does.
        """
        assert places_of(dump) == self.places
        tries = {
            self.entries[name].member: " ".join([str(number), *self.lost_with.get(name, [])])
            for name, number in self.tries.items()
        }
        assert dump.get("tries", {}) == tries
        self._compare_interruptions(dump, dump.get("lanes", {}), dump.get("entries", {}))
        self._compare_tenants(dump)
        assert {name: int(number) for name, number in dump.get("counts", {}).items()} == +self.counts
        assert _notifications(dump) == +self.notifications
        found = {name.removeprefix("request:"): record for name, record in dump.items() if name.startswith("request:")}
        assert found == {request_id: " ".join(record) for request_id, record in self.records.items()}
        letters = [
            (letter["_id"], letter["_status"], letter["_entry"], letter["_attempts"], letter.get("_workers", ""))
            for letter in dump.get("dead", [])
        ]
        assert Counter(letters) == +self.letters
        assert all(place[2] <= most for place in self.places.values() if place[0] == "running")
        self._compare_results(dump)

    def _compare_interruptions(self, dump: Dump, lanes: dict[str, str], entries: dict[str, str]) -> None:
        found = {name: value for name, value in entries.items() if name.startswith("interrupted:")}
        known = {
            self.entries[name].member: " ".join([f"{times}{output}", *map(str, self.homes.get(name, ()))])
            for name, (times, output) in self.interrupted.items()
        }
        assert found == {f"interrupted:{member}": record for member, record in known.items()}
        assert int(lanes.get("interrupted", 0)) == len(known)
        outputs = [output.split() for _, output in self.interrupted.values() if output]
        assert int(entries.get("kept_bytes", 0)) == sum(int(size) for _, size in outputs)
        counting = {f"kept:{run}" for run, _ in outputs if run in self.outputs}
        assert {name for name in dump if name.startswith("kept:")} == counting

    def _compare_results(self, dump: Dump) -> None:
        found = {key.removeprefix("result:"): value for key, value in dump.items() if key.startswith("result:")}
        assert {key: (value["status"], value.get("entry")) for key, value in found.items()} == self.results
        for request_id, fields in found.items():
            kept = {name: value for name, value in fields.items() if not _LATER_FIELDS.fullmatch(name)}
            assert self.written.setdefault(request_id, kept) == kept, f"the result of {request_id} was changed"


def places_of(dump: Dump) -> dict[str, Place]:
    """Returns the place of every entry.

    Raises:
        AssertionError: one stands nowhere, or in two places.
    """
    places: dict[str, Place] = {}

    def stand(name: str, place: Place) -> None:
        assert name not in places, f"{name} is {places[name]} and {place}"
        places[name] = place

    for lane in LANES:
        stream = dump.get(f"lane:{lane}", {})
        for stream_id in stream.get("undelivered", []):
            stand(f"{lane}:{stream_id}", UNDELIVERED)
        for stream_id, (owner, deliveries) in stream.get("pending", {}).items():
            stand(f"{lane}:{stream_id}", HANDED_OUT if owner == NOBODY else ("running", owner, deliveries))
    for name, *_ in waiting_in(dump):
        stand(name, READY)
    for member, due in dump.get("delayed", []):
        number, stream_id = member.split("|")
        stand(f"{LANES[int(number) - 1]}:{stream_id}", ("delayed", int(due)))
    for lane in LANES:
        for stream_id in dump.get(f"lane:{lane}", {}).get("entries", {}):
            assert f"{lane}:{stream_id}" in places, f"{lane}:{stream_id} is lost: it stands nowhere"
    return places


def waiting_in(dump: Dump) -> Iterator[tuple[str, str, str, float]]:
    """Entries of the sets of what waits: name, kind of set, tenant and rank."""
    for key, rows in dump.items():
        if match := _SET.match(key):
            lane, kind, label = match[1], match[2] or match[4] or "", match[3] or ""
            for member, rank in rows:
                stream_id, *size = member.split(" ", 3)
                tenant = size[-1] if kind == "held" else label if kind in ("t", "th") else ""
                yield f"{lane}:{stream_id}", kind, tenant, rank


def _ended_by(dump: Dump, request_id: str) -> str | None:
    """The entry that the result of a request names."""
    named: str | None = dump.get(f"result:{request_id}", {}).get("entry")
    return named


def _notifications(dump: Dump) -> Counter[tuple[str, str, str]]:
    replies = {key.removeprefix("reply:"): value for key, value in dump.items() if key.startswith("reply:")}
    return Counter((reply, item["id"], item["status"]) for reply, items in replies.items() for item in items)


def _milliseconds(value: str) -> int | None:
    return min(int(value), 9 * 10**15) if re.fullmatch("[0-9]{1,16}", value) else None


def _name(value: str) -> str:
    try:
        return check_name(value, "name")
    except InvalidRequest:
        return ""
