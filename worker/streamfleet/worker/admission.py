"""Admission: how many requests to pull, and which of the pulled ones fit into the engine.

The puller asks for room before each pull. The executor hands in each claimed request, and later its outcome, from which
the estimates learn. Nothing here touches Redis; of the engine, only its capacity is read.
"""

from __future__ import annotations

from typing import Any

import structlog

from streamfleet.common.protocol import Request, decode
from streamfleet.common.records import QueueLimits
from streamfleet.common.settings import ENVELOPE_BYTES, WorkerSettings
from streamfleet.worker.batching import policy_of
from streamfleet.worker.cost.check import checked_demand, for_engine
from streamfleet.worker.cost.limits import CostLimits
from streamfleet.worker.credit import Demand, Typical, within
from streamfleet.worker.engine.base import Engine
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from streamfleet.worker.outcome import Finished, Outcome, tokens_used

log = structlog.get_logger(__name__)


class Admission:
    """Compares the demand of requests with the capacity of the engine.

    Args:
        engine: tells its capacity.
        in_flight: the load on it; gets a request's demand once that is known.
        settings: batching, prefetch and the cost limits of one request.
        max_body_bytes: largest body accepted.

    Attributes:
        policy: decides when pulled requests start.
    """

    def __init__(self, engine: Engine, in_flight: InFlight, settings: WorkerSettings, max_body_bytes: int) -> None:
        self._engine, self._in_flight, self._max_body_bytes = engine, in_flight, max_body_bytes
        self._limits, self._prefetch, self._batch_size = CostLimits.of(settings), settings.prefetch, settings.batch_size
        self._typical = Typical()
        self.policy = policy_of(settings)

    def configure(self, limits: QueueLimits) -> None:
        """Accept bodies by these limits from now on."""
        self._max_body_bytes = limits.max_entry_bytes - ENVELOPE_BYTES

    @property
    def slots(self) -> int:
        """Most requests that may run together; at least 1."""
        slots = self._engine.capacity().slots
        return min(slots, self._batch_size or slots) or 1

    @property
    def expected(self) -> Demand:
        """Demand of a claimed request, as a guess until it is decoded."""
        return Demand(1, int(self._typical.tokens))

    def room(self, awaited_tokens: int) -> int:
        """Number of requests to pull now.

        Args:
            awaited_tokens: KV tokens of a request that did not fit, and for which room is made; 0 for none.
        """
        next_tokens = max(self._typical.tokens, awaited_tokens)
        return self.policy.room(self._engine.capacity(), self._in_flight.load(), next_tokens)

    def admit(self, request: InFlightRequest) -> Request | None:
        """Returns the decoded request; None if it does not fit into the engine, now that its size is known.

        Raises:
            InvalidRequest: it cannot be decoded, or asks for too much.
        """
        claim = request.claim
        lease = claim.lease
        decoded = decode(claim.fields, lease.lane, lease.stream_id, self._max_body_bytes, claim.enqueued_ms)
        capacity, size, ratio = self._engine.capacity(), len(claim.fields[b"body"]), self._typical.prompt_ratio
        # Only requests that may run count: one absurd body must not make the next hundred requests look large.
        demand = checked_demand(decoded.body, size, self._limits, capacity.max_model_len, decoded.endpoint, ratio)
        if not self._in_flight.admit(request, within(demand, capacity.slots), capacity, self._prefetch):
            log.debug("request_does_not_fit", tokens=request.demand.tokens, sequences=request.demand.sequences)
            return None
        self._typical.saw(request.demand)
        return decoded

    def for_engine(self, decoded: Request) -> dict[str, Any]:
        """Returns the body that the engine gets. Raises InvalidRequest, as `check.for_engine` does."""
        return for_engine(decoded.body, decoded.endpoint, self._limits, self._engine.capacity().max_model_len)

    def learn(self, request: InFlightRequest, outcome: Outcome, now: float) -> None:
        """Adjust the estimates and the batching by the outcome of a request that was started, in monotonic seconds."""
        if isinstance(outcome, Finished) and outcome.response:  # if a run was ended early, some engines only guess
            self._typical.counted(request.demand, tokens_used(outcome.usage, "prompt_tokens"))
        self.policy.ended(request, outcome, now)
