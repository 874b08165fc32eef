"""What a batching policy is, and the two that look at no latency: continuous, and by window."""

from __future__ import annotations

from typing import Protocol

from streamfleet.worker.credit import Load, credit
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.flights import Flight
from streamfleet.worker.outcome import Outcome

DEFAULT_WINDOW = 32


class Policy(Protocol):
    """When to pull, how much, and when to start what was pulled."""

    def room(self, capacity: Capacity, load: Load, typical_tokens: float) -> int:
        """How many requests to pull now."""
        ...

    def gather(self, pulled: list[Flight], now: float) -> list[Flight]:
        """Add what was pulled; what is to start now. `now` in monotonic seconds."""
        ...

    def wait_ms(self, now: float) -> int | None:
        """When to look again even if nothing comes, in ms; None for whenever."""
        ...

    def ended(self, flight: Flight, outcome: Outcome, now: float) -> None:
        """A flight that was started came to this outcome. `now` in monotonic seconds."""
        ...


class Continuous:
    """Start everything at once; the engine batches by itself, step by step."""

    def __init__(self, prefetch: int, most: int = 0) -> None:
        self._prefetch, self._most = prefetch, most

    def room(self, capacity: Capacity, load: Load, typical_tokens: float) -> int:
        return credit(capacity, load, typical_tokens=typical_tokens, prefetch=self._prefetch, most=self._most)

    def gather(self, pulled: list[Flight], now: float) -> list[Flight]:  # noqa: ARG002 - part of the policy
        return pulled

    def wait_ms(self, now: float) -> int | None:  # noqa: ARG002 - part of the policy
        return None

    def ended(self, flight: Flight, outcome: Outcome, now: float) -> None:
        """Nothing follows from it."""


class Window:
    """Gather up to `size` requests for up to `timeout_ms`, run them together, and only then gather again."""

    def __init__(self, size: int, timeout_ms: int) -> None:
        self._size, self._timeout_s = size or DEFAULT_WINDOW, timeout_ms / 1000
        self._full = self._size
        self._gathered: list[Flight] = []
        self._opened_at: float | None = None

    def room(self, capacity: Capacity, load: Load, typical_tokens: float) -> int:
        # An engine that holds fewer fills no larger window.
        self._full = credit(capacity, Load(), typical_tokens=typical_tokens, prefetch=0, most=self._size)
        waiting = sum(not flight.landed for flight in self._gathered)
        return 0 if load.requests > waiting else max(0, self._full - waiting)

    def gather(self, pulled: list[Flight], now: float) -> list[Flight]:
        self._gathered = [flight for flight in self._gathered if not flight.landed] + pulled
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

    def ended(self, flight: Flight, outcome: Outcome, now: float) -> None:
        """Nothing follows from it: the load says when the window is done."""
