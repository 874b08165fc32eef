"""Protocol of batching policies, and the two policies that ignore latency: continuous, and by window.

The puller asks a policy for room, gives it the pulled requests, and starts those that it returns; the dispatcher tells
it the outcomes. A policy does not touch Redis or the engine.
"""

from __future__ import annotations

from typing import Protocol

from streamfleet.worker.credit import Load, credit
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.in_flight import InFlightRequest
from streamfleet.worker.outcome import Outcome

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
