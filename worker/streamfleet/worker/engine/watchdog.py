"""Tells a hung engine from a busy one and from an idle one.

vLLM does not notice that its worker process stopped: health says ok while every request waits for good. The sign of
a hang is that requests are in the engine and no step has been reported for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

STEPS = 16


class Watchdog:
    """Counts the requests in the engine and remembers the time of its last step.

    Not thread-safe: all calls come from the event loop that runs the engine's front end.

    Args:
        limit_s: seconds without a step, with requests inside, after which the engine counts as hung. It must be longer
            than the longest single step: a whole unchunked prefill, or the compilation of a grammar.
        clock: monotonic seconds.
        max_gap_s: longest pause between two checks that counts in full. After a longer pause this process itself stood
            still (suspended machine, blocked event loop), and steps may wait unread: not the engine's fault.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float], max_gap_s: float = 2.0) -> None:
        if limit_s <= 0:
            raise ValueError(f"watchdog_s must be more than 0 seconds, not {limit_s}")
        self._limit_s = limit_s
        self._clock = clock
        self._max_gap_s = max_gap_s
        self._inside = 0
        self._moved_at = self._checked_at = clock()

    @property
    def inside(self) -> int:
        """Number of requests in the engine now."""
        return self._inside

    def entered(self) -> None:
        """Record that a request went into the engine."""
        if self._inside == 0:  # an idle engine owes no steps
            self._moved_at = self._clock()
        self._inside += 1

    def left(self) -> None:
        """Record that a request left the engine."""
        self._inside -= 1

    def stepped(self) -> None:
        """Record a step of the engine."""
        self._moved_at = self._clock()

    def check(self) -> str | None:
        """Return the reason why the engine counts as hung, or None. Call it more often than every ``max_gap_s``."""
        now = self._clock()
        lost_s = now - self._checked_at - self._max_gap_s
        if lost_s > 0:
            self._moved_at = min(now, self._moved_at + lost_s)
        self._checked_at = now
        still_s = now - self._moved_at
        if self._inside == 0 or still_s < self._limit_s:
            return None
        return f"the engine hangs: {self._inside} requests inside and no step for {still_s:.1f} s"


class StepLogger:
    """A vLLM stat logger that reports each step to the watchdog. Duck-typed: vLLM's base class may move.

    Attributes:
        kv_use: part of the KV cache in use after the last step, 0 to 1; None if vLLM has not told it.
        token_s: seconds from one token of a request to its next, a mean over about `STEPS` steps; 0 before the first.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self.kv_use: float | None = None
        self.token_s = 0.0

    def record(
        self, scheduler_stats: object = None, iteration_stats: object = None, *_args: object, **_kwargs: object
    ) -> None:
        """Called by vLLM after every step of an engine core."""
        self._watchdog.stepped()
        if gaps_s := getattr(iteration_stats, "inter_token_latencies_iter", None):
            self.token_s += (fmean(gaps_s) - self.token_s) / (STEPS if self.token_s else 1)
        self.kv_use = getattr(scheduler_stats, "kv_cache_usage", self.kv_use)

    def log(self) -> None:
        """Nothing to print."""

    def log_engine_initialized(self) -> None:
        """Nothing to print."""
