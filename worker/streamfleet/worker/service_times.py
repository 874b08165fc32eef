"""Times that requests take on this engine, by class of length, and the least that the next ones need. Pure.

The puller sends the needs to Redis, where a request with less time until its deadline is not started. A worker learns
them from its own runs; one that knows nothing yet lets everything start. Runs that were stopped at their deadline count
as well: otherwise only short ones would teach.

The needs are a quantile that follows how much of the engine's time such runs have wasted: with next to none, everything
starts; with little, all but what nearly none has managed; in overload only what will most likely be in time.
"""

from __future__ import annotations

import math
from collections import deque

MOST_SAMPLES, LEAST_SAMPLES = 300, 20
AGAIN = 10
"""Samples of a class until its needs are computed anew."""
KEPT = 0.997
"""Part of the sums of time that stays with each run: they cover about the last 300."""
QUANTILES = ((0.003, 0.0), (0.01, 0.1), (0.04, 0.5), (math.inf, 0.75))
"""Wasted part of the engine's time below which a quantile holds; 0 lets everything start."""


class _Class:
    __slots__ = ("fresh", "samples")

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=MOST_SAMPLES)
        self.fresh = 0


class ServiceTimes:
    """Times of runs by class of length.

    Attributes:
        needs: class of length to the milliseconds that its requests need at least, where that is known.
        quantile: the part of the runs of a class that took less.
    """

    def __init__(self) -> None:
        self._classes: dict[str, _Class] = {}
        self._wasted = self._spent = 0.0
        self.quantile = 0.0
        self.needs: dict[str, int] = {}

    def took(self, length: str, run_s: float, *, in_vain: bool) -> None:
        """Add a run of a class of length: its seconds, and true if it was stopped because its deadline passed."""
        self._spent = self._spent * KEPT + run_s
        self._wasted = self._wasted * KEPT + (run_s if in_vain else 0.0)
        known = self._classes.setdefault(length, _Class())
        known.samples.append(run_s)
        known.fresh += 1
        wasted = self._wasted / self._spent if self._spent else 0.0
        quantile = next(each for below, each in QUANTILES if wasted < below)
        if quantile != self.quantile:
            self.quantile, self.needs = quantile, {}
            for each in self._classes:
                self._compute(each)
        elif known.fresh >= AGAIN or length not in self.needs:
            self._compute(length)

    def _compute(self, length: str) -> None:
        known = self._classes[length]
        if self.quantile and len(known.samples) >= LEAST_SAMPLES:
            known.fresh = 0
            self.needs[length] = int(sorted(known.samples)[int(len(known.samples) * self.quantile)] * 1000)
