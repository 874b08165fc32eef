"""Batching policy that runs as many requests at once as keep their latency at a target.

The policy takes claimed requests and their outcomes, and returns the requests to start. `limit.py` computes the limit
from the run times; this module feeds it and touches nothing else.
"""

from __future__ import annotations

from typing import Any

import structlog

from streamfleet.common.protocol import Status
from streamfleet.worker.batching.limit import LatencyLimit, Run, work
from streamfleet.worker.credit import MOST_TOKENS, Load, credit
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.in_flight import InFlightRequest
from streamfleet.worker.outcome import Finished, Outcome

log = structlog.get_logger(__name__)


class Adaptive:
    """Starts everything at once, as `Continuous` does, up to a limit that follows the latency in the engine.

    Args:
        target_ms: wanted run time of a request of the usual length.
        most: cap on requests at once; 0 for no cap but the engine's slots.
    """

    def __init__(self, target_ms: int, most: int = 0) -> None:
        self._limit, self._most, self._target_ms = LatencyLimit(target_ms / 1000), most, target_ms
        self._runs: dict[InFlightRequest, Run] = {}
        self._warned = False

    def room(self, capacity: Capacity, load: Load, typical_tokens: float) -> int:
        self._limit.bound(min(capacity.slots, self._most or capacity.slots))
        # No prefetch: a request that waits in front of the engine gets late and does not give the engine more work.
        return credit(capacity, load, typical_tokens=typical_tokens, prefetch=0, most=self._limit.value)

    def gather(self, pulled: list[InFlightRequest], now: float) -> list[InFlightRequest]:
        for request in [request for request in self._runs if request.done]:  # handed back without having run
            self._limit.left(self._runs.pop(request), now)
        for request in pulled:
            self._runs[request] = self._limit.started(now)
        return pulled

    def wait_ms(self, now: float) -> int | None:  # noqa: ARG002 - part of the policy
        return None

    def ended(self, request: InFlightRequest, outcome: Outcome, now: float) -> None:
        """Use its run time to adjust the limit, if the outcome tells something about the engine's speed."""
        run = self._runs.pop(request, None)
        if run is None:
            return
        status = outcome.status if isinstance(outcome, Finished) and request.started_at is not None else None
        if isinstance(outcome, Finished) and status is Status.SUCCEEDED:
            thought_over = self._limit.finished(run, _work(request, outcome.usage), now)
        elif status is Status.EXPIRED:
            thought_over = self._limit.stopped(run, work(0, request.demand.tokens, request.demand.sequences), now)
        else:
            self._limit.left(run, now)
            return
        if thought_over:
            self._report()

    def _report(self) -> None:
        seen_ms = round((self._limit.latency_s or 0) * 1000)
        log.debug("latency_limit", limit=self._limit.value, latency_ms=seen_ms, target_ms=self._target_ms)
        if self._limit.out_of_reach and not self._warned:
            log.warning("target_latency_out_of_reach", alone_ms=seen_ms, target_ms=self._target_ms)
        self._warned = self._limit.out_of_reach


def _work(request: InFlightRequest, usage: dict[str, Any]) -> float:
    """Length of a request, by the usage that the engine reports, which may be missing or wrong."""
    read, written = (_tokens(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    return work(read, written, request.demand.sequences)


def _tokens(told: object) -> int:
    return min(told, MOST_TOKENS) if isinstance(told, int) and told > 0 else 0
