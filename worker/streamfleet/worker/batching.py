"""Batching policies: they decide when to pull, how many requests, and when to start the pulled ones.

The puller asks a policy for room, gives it the pulled requests, and starts those that it returns; each outcome comes
back to it. A policy does not touch Redis or the engine.
"""

from __future__ import annotations

from typing import Any, Protocol

import structlog

from streamfleet.common.numbers import MOST_TOKENS
from streamfleet.common.protocol import Status
from streamfleet.common.results import tokens_used
from streamfleet.common.settings import WorkerSettings
from streamfleet.worker.credit import Load, credit
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.in_flight import InFlightRequest
from streamfleet.worker.latency_limit import LatencyLimit, Run, work
from streamfleet.worker.outcome import Finished, Outcome

log = structlog.get_logger(__name__)
DEFAULT_WINDOW = 32


class Policy(Protocol):
    """Decides when to pull, how many requests, and when to start the pulled ones."""

    def room(self, capacity: Capacity, load: Load, typical_tokens: float) -> int:
        """Return the number of requests to pull now."""
        ...

    def gather(self, pulled: list[InFlightRequest], now: float) -> list[InFlightRequest]:
        """Add pulled requests and return those to start now. `now` in monotonic seconds."""
        ...

    def wait_ms(self, now: float) -> int | None:
        """Return the longest wait until the next look if nothing arrives, in ms; None for no limit."""
        ...

    def ended(self, request: InFlightRequest, outcome: Outcome, now: float) -> None:
        """Record the outcome of a request that was started. `now` in monotonic seconds."""
        ...


class Continuous:
    """Starts everything at once; the engine batches by itself, step by step."""

    def __init__(self, prefetch: int, most: int = 0) -> None:
        self._prefetch, self._most = prefetch, most

    def room(self, capacity: Capacity, load: Load, typical_tokens: float) -> int:
        return credit(capacity, load, typical_tokens=typical_tokens, prefetch=self._prefetch, most=self._most)

    def gather(self, pulled: list[InFlightRequest], now: float) -> list[InFlightRequest]:  # noqa: ARG002 - part of the policy
        return pulled

    def wait_ms(self, now: float) -> int | None:  # noqa: ARG002 - part of the policy
        return None

    def ended(self, request: InFlightRequest, outcome: Outcome, now: float) -> None:
        """Ignore the outcome."""


class Window:
    """Gathers up to `size` requests for up to `timeout_ms`, runs them together, and only then gathers again."""

    def __init__(self, size: int, timeout_ms: int) -> None:
        self._size, self._timeout_s = size or DEFAULT_WINDOW, timeout_ms / 1000
        self._full = self._size
        self._gathered: list[InFlightRequest] = []
        self._opened_at: float | None = None

    def room(self, capacity: Capacity, load: Load, typical_tokens: float) -> int:
        # The engine may hold fewer requests than the window.
        self._full = credit(capacity, Load(), typical_tokens=typical_tokens, prefetch=0, most=self._size)
        waiting = sum(not request.done for request in self._gathered)
        return 0 if load.requests > waiting else max(0, self._full - waiting)

    def gather(self, pulled: list[InFlightRequest], now: float) -> list[InFlightRequest]:
        self._gathered = [request for request in self._gathered if not request.done] + pulled
        if not self._gathered:
            self._opened_at = None
            return []
        if self._opened_at is None:
            self._opened_at = now
        if len(self._gathered) < self._full and now < self._opened_at + self._timeout_s:
            return []
        batch, self._gathered, self._opened_at = self._gathered, [], None
        return batch

    def wait_ms(self, now: float) -> int | None:
        if self._opened_at is None:
            return None
        return max(1, int((self._opened_at + self._timeout_s - now) * 1000))

    def ended(self, request: InFlightRequest, outcome: Outcome, now: float) -> None:
        """Ignore the outcome: the load shows when the window is done."""


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


def policy_of(settings: WorkerSettings, prefetch: int) -> Policy:
    """Returns the policy that a worker's settings ask for; continuous batching holds `prefetch` beyond the slots."""
    if settings.batching == "window":
        return Window(settings.batch_size, settings.batch_timeout_ms)
    if settings.batching == "adaptive":
        return Adaptive(settings.target_latency_ms, settings.batch_size)
    return Continuous(prefetch, settings.batch_size)


def _work(request: InFlightRequest, usage: dict[str, Any]) -> float:
    """Length of a request, by the usage that the engine reports, which may be missing or wrong."""
    read, written = (tokens_used(usage, name) or 0 for name in ("prompt_tokens", "completion_tokens"))
    return work(min(read, MOST_TOKENS), min(written, MOST_TOKENS), request.demand.sequences)
