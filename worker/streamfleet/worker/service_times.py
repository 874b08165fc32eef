"""Times that requests take on this engine, by class of length and tenant, and the least that the next ones need. Pure.

The puller sends the needs to Redis, where a request with less time until its deadline is not started. A worker learns
them from its own runs; one that knows nothing yet lets everything start. Runs that were stopped at their deadline count
as well, as longer than they lasted: otherwise only short ones would teach.

The needs are a quantile that follows how much of a tenant's time such runs have wasted: with next to none, everything
starts; with little, all but what nearly none has managed; in overload only what will most likely be in time. A tenant's
runs decide about its own requests alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping

MOST_SAMPLES, LEAST_SAMPLES = 300, 20
MOST_CLASSES = 256
"""Beyond these, the class with the oldest last run is forgotten: anybody may name any tenant."""
AGAIN = 10
"""Samples of a class until its needs are computed anew."""
KEPT = 0.997
"""Part of a tenant's sums of time that stays with each run: they cover about its last 300."""
QUANTILES = ((0.003, 0.0), (0.01, 0.1), (0.04, 0.5), (math.inf, 0.75))
"""Wasted part of a tenant's time below which a quantile holds; 0 lets everything start."""
BEHIND_S = 30.0
"""A fleet that was through with its queue within this time keeps up: a burst is no overload. One that is through
because requests have ended without a run does not keep up."""


def quantile_of(runs: Collection[tuple[float, bool]], quantile: float) -> float:
    """Seconds within which a part of the runs would have ended, had none been stopped (Kaplan and Meier).

    Args:
        runs: seconds of each, and true if it was stopped: it would have taken longer.
        quantile: the part; if it is beyond the longest run, that one's seconds.
    """
    left, running = len(runs), 1.0
    for run_s, stopped in sorted(runs):
        if not stopped:
            running *= 1 - 1 / left
            if 1 - running >= quantile:
                return run_s
        left -= 1
    return max(runs)[0]


class _Tenant:
    __slots__ = ("quantile", "spent", "wasted")

    def __init__(self) -> None:
        self.spent = self.wasted = self.quantile = 0.0


class _Class:
    __slots__ = ("fresh", "samples")

    def __init__(self) -> None:
        self.samples: deque[tuple[float, bool]] = deque(maxlen=MOST_SAMPLES)
        self.fresh = 0


class ServiceTimes:
    """Times of runs by class, which is one of length and tenant.

    Attributes:
        needs: class to the milliseconds that its requests need at least, where that is known.
    """

    def __init__(self) -> None:
        self._classes: dict[str, _Class] = {}
        self._tenants: dict[str, _Tenant] = {}
        self.needs: dict[str, int] = {}

    def took(self, length: str, run_s: float, *, in_vain: bool) -> None:
        """Add a run of a class: its seconds, and true if it was stopped because its deadline passed."""
        tenant = self._tenant(length)
        tenant.spent = tenant.spent * KEPT + run_s
        tenant.wasted = tenant.wasted * KEPT + (run_s if in_vain else 0.0)
        known = self._classes[length] = self._classes.pop(length, _Class())
        if len(self._classes) > MOST_CLASSES:
            oldest = next(iter(self._classes))
            del self._classes[oldest]
            self.needs.pop(oldest, None)
        known.samples.append((run_s, in_vain))
        known.fresh += 1
        wasted = tenant.wasted / tenant.spent if tenant.spent else 0.0
        quantile = next(each for below, each in QUANTILES if wasted < below)
        if quantile != tenant.quantile:
            tenant.quantile = quantile
            for each in self._classes:
                if _tenant_of(each) == _tenant_of(length):
                    self.needs.pop(each, None)
                    self._compute(each, quantile)
        elif known.fresh >= AGAIN or length not in self.needs:
            self._compute(length, quantile)

    def _tenant(self, length: str) -> _Tenant:
        """The tenant of a class. The one whose last run is oldest is forgotten, as its classes are."""
        name = _tenant_of(length)
        tenant = self._tenants[name] = self._tenants.pop(name, _Tenant())
        if len(self._tenants) > MOST_CLASSES:
            del self._tenants[next(iter(self._tenants))]
        return tenant

    def _compute(self, length: str, quantile: float) -> None:
        known = self._classes[length]
        if quantile and len(known.samples) >= LEAST_SAMPLES:
            known.fresh = 0
            self.needs[length] = int(quantile_of(known.samples, quantile) * 1000)


def _tenant_of(length: str) -> str:
    return length.partition(" ")[2]


class Judge:
    """Tells the needs by which a queue's pulls judge deadlines: none while the fleet keeps up with the queue.

    Args:
        times: of the engine.
        now: monotonic seconds.
    """

    def __init__(self, times: ServiceTimes, now: float) -> None:
        self._times, self._through_at, self._dropped_at = times, now, -math.inf

    def needs(self, now: float) -> Mapping[str, int]:
        return {} if now - self._through_at < BEHIND_S else self._times.needs

    def pulled(self, ready: int, dropped: int, now: float) -> None:
        """Record that so many requests wait after a pull, and how many it has ended."""
        if dropped:
            self._dropped_at = now
        if ready == 0 and now - self._dropped_at >= BEHIND_S:
            self._through_at = now
