"""Requests of a history, and the model of the order beside them: each is told what the scripts are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streamfleet.common.broker.types import Claim
from streamfleet.common.protocol import Lane
from tests.order.model import Charge, Entry, Taken, Use
from tests.scripts.histories.labelled_order import Order
from tests.scripts.histories.model import HANDED_OUT, READY, UNDELIVERED, Place, places_of
from tests.scripts.keyspace import Dump, id_key

FIRST_READ = 2
"""Most entries of each lane that a pull reads at first, and again, before it reads lane by lane."""


@dataclass(eq=False)
class Request:
    """One entry, until it ends.

    Attributes:
        entry: the request in the model.
        since: time since which it could be taken, epoch ms.
        place: as `places_of` tells it.
        held: until when it waits for the worker that it gave way on, and that worker.
    """

    lane: Lane
    stream_id: str
    id: str
    entry: Entry
    since: int
    place: Place = UNDELIVERED
    tries: int = 0
    held: tuple[int, str] = (0, "")
    cancelled: bool = False

    @property
    def name(self) -> str:
        return f"{self.lane}:{self.stream_id}"

    @property
    def member(self) -> str:
        return f"{self.lane.number}|{self.stream_id}"

    def late(self, at: int) -> bool:
        return self.entry.deadline is not None and self.entry.deadline <= at


class Books:
    """Requests by name, what the order knows of them, and how many ended in which way."""

    def __init__(self, shares: Sequence[int]) -> None:
        self.requests: dict[str, Request] = {}
        self.order = Order(shares)
        self.ended: Counter[str] = Counter()

    def waiting(self) -> list[Request]:
        places = UNDELIVERED, READY
        return [request for request in self.requests.values() if request.place in places and not request.cancelled]

    def held_by(self, worker: str) -> list[Request]:
        return [request for request in self.requests.values() if request.place[:2] == ("running", worker)]

    def charges(self) -> dict[str, Charge]:
        """By request, as `member`, what it is charged."""
        charges = {request.member: request.entry.charge for request in self.requests.values()}
        return {member: charge for member, charge in charges.items() if charge.runs or charge.kept}

    # -- what happens ----------------------------------------------------------------------------------------------

    def stage(self, back: Iterable[Request]) -> tuple[int, int]:
        """What a watcher's read delivered comes back, then what is new comes. Returns how many, and how many ended."""
        back, seen = [request for request in back if request.place == HANDED_OUT], Counter[Lane]()
        new = [request for request in self.requests.values() if request.place == UNDELIVERED]
        turns = {}
        for request in sorted(new, key=lambda request: id_key(request.stream_id)):
            turns[request] = min(seen[request.lane] // FIRST_READ, 2), request.lane.number, seen[request.lane]
            seen[request.lane] += 1
        before = self.ended.total()
        for request in [*back, *sorted(new, key=lambda request: turns[request])]:
            self.ready(request, came=request.place == UNDELIVERED)
        return len(back) + len(new), self.ended.total() - before

    def ready(self, request: Request, *, came: bool = False) -> None:
        """It waits for a worker from now on, unless it is too late."""
        if request.late(self.order.now):
            self.end(request, "expired")
            return
        request.place = READY
        self.order.ready(request.entry, request.member, request.held, came=came)

    def take(self, taken: Taken, worker: str, claims: Sequence[Claim]) -> int:
        """A worker has taken what the model says, and in its order. Returns how many requests ended instead."""
        by_entry = {request.entry: request for request in self.requests.values()}
        runs, names = [by_entry[entry] for entry in taken.runs], [claim.lease.entry for claim in claims]
        assert names == [request.name for request in runs], f"{worker} takes {names}, not {[*map(str, taken.runs)]}"
        for request, claim in zip(runs, claims, strict=True):
            lease, entry = claim.lease, request.entry
            assert lease.attempt == request.tries + 1, f"{request.name}: attempt {lease.attempt} after {request.tries}"
            assert lease.request_id == request.id
            passed = entry.home not in (0, self.order.number(worker)) and not entry.until
            assert claim.passed_ms == (self.order.now - entry.enqueued if passed else None), request.name
            request.place = ("running", worker, lease.attempt)
        for entry in taken.dropped:
            self._forget(by_entry[entry], "expired")
        return len(taken.dropped)

    def settle(self, request: Request, status: str, use: Use) -> None:
        """A worker ends its run, and the request with it."""
        self.order.ended(request.entry.lane, request.entry.id, use)
        self._forget(request, status)

    def end(self, request: Request, status: str) -> None:
        """It is gone; what nobody settled is not charged."""
        self.order.gone(request.entry)
        self._forget(request, status)

    def _forget(self, request: Request, status: str) -> None:
        self.ended["cancelled" if request.cancelled else status] += 1
        del self.requests[request.name]

    def hand_back(
        self, request: Request, generated: int | None, *, failed: bool = False, held: int | None = None
    ) -> None:
        """Its run ends before it does; `generated`: tokens that stay charged, None if its work is lost."""
        entry = request.entry
        self.order.handed_back(entry.lane, entry.id, generated=generated, failed=failed, held=held, ready=False)
        request.since = self.order.now

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        self.order.answered.add(request.entry)
        if request.place[0] != "running":
            self.end(request, "cancelled")

    # -- what must hold --------------------------------------------------------------------------------------------

    def compare(self, dump: Dump) -> None:
        """Every entry stands where it must, and the order is as the model says."""
        found, known = places_of(dump), {name: request.place for name, request in self.requests.items()}
        assert found == known, f"{found.items() ^ known.items()}"
        counts = {name: int(number) for name, number in dump.get("counts", {}).items() if name != "staged"}
        assert counts == +self.ended, f"{counts}, not {self.ended}"
        self.order.compare(dump, self.charges())
