"""The requests that this worker holds; the only state that its loops share.

The puller adds them, admission sets their demand, the dispatcher marks them done, and the completer removes them once
their outcomes are written. The lease thread reads them under a lock. Nothing here touches Redis or the engine.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from streamfleet.common.broker.types import Claim, Lease
from streamfleet.common.protocol import Lane
from streamfleet.worker.credit import Demand, Load, credit
from streamfleet.worker.engine.base import Capacity, EngineRequest, Partial
from streamfleet.worker.tracing import Trace

if TYPE_CHECKING:
    from streamfleet.worker.publishing import Tokens


class StopReason(Enum):
    """Reason to stop a request from outside."""

    CANCELLED = "cancelled"  # it has a result already: the engine must not go on with it
    LOST = "lost"  # another worker has the lease: nothing may be written
    RELEASED = "released"  # this worker drains: hand the request back, attempt not counted
    WORKER_FAILED = "worker_failed"  # hand it back, attempt counted: it may be the cause of the failure
    LATE = "late"  # its deadline passed: nobody wants the answer
    GAVE_WAY = "gave_way"  # an urgent request needs its room: hand it back, attempt not counted


@dataclass(eq=False, slots=True)
class InFlightRequest:
    """One request that this worker holds, from the claim until its outcome is written.

    Attributes:
        claim: the result of the pull.
        claimed_at: monotonic seconds of the claim.
        claimed_ms: Redis's clock at the claim, epoch ms; with `claimed_at` it turns deadlines into local time.
        demand: its demand on the engine; a guess until it is decoded.
        owed: true if there was no room for its lane, and it came by the lane's guaranteed share: it gives no way.
        admitted: true if it is decoded, and fits into the engine.
        enqueued_ms: time of its enqueueing, epoch ms.
        late_at: monotonic seconds of its deadline; infinite if it has none, or is not decoded yet.
        started_at: monotonic seconds of the hand-over to the engine; None before.
        done: true if the engine is done with it, and its outcome is being written.
        stop_reason: reason to stop it; None if there is none.
        abort: callback that stops it, set while the engine has it.
        trace: its spans; None if tracing is off.
        tokens: gets its chunks; None if it is not streamed.
        resume: output of an earlier run, from which it goes on; None to begin anew.
        kept_tokens: output tokens of the last checkpoint.
        kept_run: name under which output is stored that is not known to count; empty if there is none.
        asked: the request as the engine has it; None before.
    """

    claim: Claim
    claimed_at: float
    claimed_ms: int
    demand: Demand
    owed: bool = False
    enqueued_ms: int = field(init=False)
    late_at: float = math.inf
    started_at: float | None = None
    done: bool = False
    admitted: bool = False
    stop_reason: StopReason | None = None
    abort: Callable[[], object] | None = None
    trace: Trace | None = None
    tokens: Tokens | None = None
    resume: Partial | None = None
    kept_tokens: int = 0
    kept_run: str = ""
    asked: EngineRequest | None = None

    @property
    def lease(self) -> Lease:
        return self.claim.lease

    def __post_init__(self) -> None:
        self.enqueued_ms = self.claim.enqueued_ms

    def stop(self, reason: StopReason) -> None:
        """Stop it for this reason, unless it is stopped already. Only on the event loop's thread."""
        if self.stop_reason is None:
            self.stop_reason = reason
            if self.abort is not None:
                self.abort()


@dataclass(slots=True)
class OnEngine:
    """Load that the queues of one engine have in common.

    Attributes:
        queues: the in-flight requests of each queue.
        asked, admitted: demand of all active requests, and of those that are admitted.
        active: number of active requests of each lane.
        awaited_tokens: KV tokens of a request that did not fit and went back, and for which room is made. 0 for none.
    """

    queues: list[InFlight] = field(default_factory=list)
    asked: Load = field(default_factory=Load)
    admitted: Load = field(default_factory=Load)
    active: Counter[Lane] = field(default_factory=Counter)
    awaited_tokens: int = 0


class InFlight:
    """All in-flight requests of a queue, by lease.

    The lease thread may call `leases`, `held` and `find`; the rest is for the event loop.

    Args:
        beside: requests of another queue on the same engine: loads, room and `awaited_tokens` are those of both.

    Attributes:
        changed: set when there may be more room.
        on_engine: what it has in common with the queues beside it.
    """

    def __init__(self, beside: InFlight | None = None) -> None:
        self._by_lease: dict[Lease, InFlightRequest] = {}
        self._lock = threading.Lock()
        self.on_engine: OnEngine = OnEngine() if beside is None else beside.on_engine
        self.on_engine.queues.append(self)
        self.changed = asyncio.Event()

    @property
    def awaited_tokens(self) -> int:
        """KV tokens of a request that did not fit and went back, and for which room is made. 0 for none."""
        return self.on_engine.awaited_tokens

    @awaited_tokens.setter
    def awaited_tokens(self, tokens: int) -> None:
        self.on_engine.awaited_tokens = tokens

    def __len__(self) -> int:
        return len(self._by_lease)

    def add(self, request: InFlightRequest) -> None:
        with self._lock:
            self._by_lease[request.claim.lease] = request
        self.on_engine.asked.add(request.demand, 1)
        self.on_engine.active[request.claim.lease.lane] += 1

    def done(self, request: InFlightRequest) -> None:
        """Record that the engine is done with the request, which frees its room."""
        if not request.done:
            request.done = True
            self.on_engine.asked.add(request.demand, -1)
            self.on_engine.active[request.claim.lease.lane] -= 1
            if request.admitted:
                self.on_engine.admitted.add(request.demand, -1)
        self._room_changed()

    def _room_changed(self) -> None:
        for each in self.on_engine.queues:
            each.changed.set()

    def admit(
        self, request: InFlightRequest, demand: Demand, capacity: Capacity, prefetch: int, *, urgent: bool = False
    ) -> bool:
        """Set its demand, now that it is known. Returns True if it fits into the engine beside the admitted requests.

        If it does not fit, it is to go back, and nothing is admitted until there is room for it, not even a small
        request: otherwise small requests would always pass a large one. Only urgent requests do.
        """
        self._revise(request, demand)
        needed = demand.tokens if urgent else max(demand.tokens, self.awaited_tokens)
        if credit(capacity, self.on_engine.admitted, typical_tokens=needed, prefetch=prefetch) == 0:
            self.awaited_tokens = max(needed, self.awaited_tokens)
            return False
        if not urgent:
            self.awaited_tokens = 0
        if not request.done:
            request.admitted = True
            self.on_engine.admitted.add(demand, 1)
        return True

    def _revise(self, request: InFlightRequest, demand: Demand) -> None:
        """Replace the guessed demand; a guess that was too high frees room for others."""
        before, request.demand = request.demand, demand
        if not request.done:
            self.on_engine.asked.change(before, demand)
        if demand.sequences < before.sequences or demand.tokens < before.tokens:
            self._room_changed()

    def remove(self, requests: Collection[InFlightRequest]) -> None:
        """Remove requests whose outcomes are written."""
        with self._lock:
            for request in requests:
                lease = request.claim.lease
                if self._by_lease.get(lease) is request:  # after a hand-back it may be here again under an equal lease
                    del self._by_lease[lease]
        for request in requests:
            if not request.done:
                self.done(request)
        self._room_changed()

    def leases(self) -> list[Lease]:
        with self._lock:
            return list(self._by_lease)

    def held(self) -> list[InFlightRequest]:
        """Every request that is here now; its lease may come back as another object later."""
        with self._lock:
            return list(self._by_lease.values())

    def find(self, request_ids: set[str]) -> list[InFlightRequest]:
        """Requests of the given request ids."""
        with self._lock:
            return [request for lease, request in self._by_lease.items() if lease.request_id in request_ids]

    def active(self) -> list[InFlightRequest]:
        """Requests that need the engine, in the order of their arrival."""
        return [request for request in self._by_lease.values() if not request.done]

    def active_on_engine(self) -> list[InFlightRequest]:
        """Requests of all queues that need the engine."""
        return [request for each in self.on_engine.queues for request in each.active()]

    def active_in(self, lanes: Iterable[Lane]) -> int:
        """Number of requests of these lanes that need the engine."""
        return sum(self.on_engine.active[lane] for lane in lanes)

    def load(self) -> Load:
        """Demand of all active requests together; it changes as they come and go."""
        return self.on_engine.asked

    def admitted(self) -> Load:
        """Demand of the active requests that are decoded and fit into the engine."""
        return self.on_engine.admitted

    def give_way(self, request: InFlightRequest) -> None:
        """Stop a running request for an urgent one; its room counts as free at once."""
        self.done(request)
        request.stop(StopReason.GAVE_WAY)
