"""The requests that this worker holds: what the loops share, and all that they share."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from enum import Enum

from streamfleet.common.records import Claim, Lease
from streamfleet.worker.credit import Demand, Load


class Fate(Enum):
    """Why a request is stopped from outside."""

    CANCELLED = "cancelled"  # it has a result already: the engine must not go on with it
    LOST = "lost"  # the lease is another worker's: nothing may be written
    RELEASED = "released"  # this worker drains: hand it back, not counted
    WORKER_FAILED = "worker_failed"  # hand it back, counted: it may be what the worker or its engine failed of


@dataclass(eq=False, slots=True)
class Flight:
    """One request in this worker's hands, from the claim until its outcome is written.

    Attributes:
        claim: what the pull gave.
        claimed_at: monotonic seconds of the claim.
        claimed_ms: Redis's clock at the claim, epoch ms; the two together turn deadlines into local time.
        demand: what it asks of the engine; a guess until it is decoded.
        started_at: monotonic seconds of the hand-over to the engine; None before.
        landed: the engine is done with it, its outcome is being written.
    """

    claim: Claim
    claimed_at: float
    claimed_ms: int
    demand: Demand
    started_at: float | None = None
    landed: bool = False
    fate: asyncio.Future[Fate] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def lease(self) -> Lease:
        return self.claim.lease

    @property
    def enqueued_ms(self) -> int:
        """Epoch ms of the entry's stream id."""
        return int(self.lease.stream_id.split("-", 1)[0])

    def stop(self, fate: Fate) -> None:
        """Decide its fate; the first decision stands. Only on the event loop's thread."""
        if not self.fate.done():
            self.fate.set_result(fate)


class Flights:
    """All flights by lease. The lease thread may call `leases`, `held` and `find`; the rest is for the event loop."""

    def __init__(self) -> None:
        self._by_lease: dict[Lease, Flight] = {}
        self._lock = threading.Lock()
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._by_lease)

    def board(self, flight: Flight) -> None:
        with self._lock:
            self._by_lease[flight.lease] = flight

    def land(self, flight: Flight) -> None:
        """The engine has no more work with it: its room is free."""
        flight.landed = True
        self.changed.set()

    def revise(self, flight: Flight, demand: Demand) -> None:
        """Its demand is known now: what was guessed too high is free for others."""
        shrank = demand.sequences < flight.demand.sequences or demand.tokens < flight.demand.tokens
        flight.demand = demand
        if shrank:
            self.changed.set()

    def leave(self, flight: Flight) -> None:
        """Its outcome is written: it is nobody's business here any more."""
        with self._lock:
            if self._by_lease.get(flight.lease) is flight:  # handed back, it may be here again under an equal lease
                del self._by_lease[flight.lease]
        self.changed.set()

    def leases(self) -> list[Lease]:
        with self._lock:
            return list(self._by_lease)

    def held(self) -> list[Flight]:
        """Every flight that is here now; its lease may come back as another flight later."""
        with self._lock:
            return list(self._by_lease.values())

    def find(self, request_ids: set[str]) -> list[Flight]:
        """Flights of the given request ids."""
        with self._lock:
            return [flight for lease, flight in self._by_lease.items() if lease.request_id in request_ids]

    def active(self) -> list[Flight]:
        """Flights that need the engine, in the order in which they came."""
        return [flight for flight in self._by_lease.values() if not flight.landed]

    def load(self) -> Load:
        """What the active flights ask of the engine together."""
        active = self.active()
        return Load(
            requests=len(active),
            sequences=sum(flight.demand.sequences for flight in active),
            tokens=sum(flight.demand.tokens for flight in active),
        )
