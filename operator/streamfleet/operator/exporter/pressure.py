"""Throughput of a queue, and estimated lateness of its waiting requests. Pure.

**Throughput** is measured from the counters between readings: requests that succeeded or failed, per second, over the
last two minutes, but only between two readings at which requests were waiting, because an idle fleet does not show its
speed. If no request ended in that time, one is counted, so that the estimate for a stuck fleet grows and stays finite.
The last value stays until there is a newer one.

**Deadline pressure** of a lane: the largest estimated lateness, in seconds, of its staged requests with a deadline.
Lateness is the time until a request will have run (the requests waiting in more urgent lanes, those before it in its
own lane, and itself, divided by the throughput), minus the time until its deadline. Positive: a deadline will be missed
by so many seconds unless the fleet gets faster. Negative: the time to spare at the tightest point. Requests without a
deadline count as work, and have no lateness.

Only 17 places of each lane are read, spread evenly from its first to its last. A peak between two of them is
understated, at most by the time that a sixteenth of the lane takes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from streamfleet.common.protocol import Lane
from streamfleet.operator.snapshot import LaneView

WINDOW_MS = 120_000
LEAST_MS = 1_000


@dataclass(frozen=True, slots=True)
class _Count:
    now_ms: int
    answered: int
    waiting: bool


class Throughput:
    """Requests per second while requests were waiting; None until it is known."""

    def __init__(self) -> None:
        self._counts: deque[_Count] = deque()
        self.per_second: float | None = None

    def saw(self, now_ms: int, answered: int, *, waiting: bool) -> float | None:
        """Add a reading.

        Args:
            now_ms: Redis's clock, epoch ms.
            answered: number of requests that ever succeeded or failed.
            waiting: True if any was waiting for a worker.

        Returns:
            Requests per second, as of now.
        """
        self._counts.append(_Count(now_ms, answered, waiting))
        while len(self._counts) > 2 and self._counts[0].now_ms < now_ms - WINDOW_MS:
            self._counts.popleft()
        ended = milliseconds = 0
        for before, after in itertools.pairwise(self._counts):
            took_ms, more = after.now_ms - before.now_ms, after.answered - before.answered
            # Skip counters that were reset and clocks that were set back.
            if before.waiting and after.waiting and took_ms > 0 and more >= 0:
                ended, milliseconds = ended + more, milliseconds + took_ms
        if milliseconds >= LEAST_MS:
            self.per_second = max(ended, 1) * 1000 / milliseconds
        return self.per_second


def pressure_s(lanes: Sequence[LaneView], per_second: float) -> dict[Lane, float]:
    """Deadline pressure of each lane that has a deadline, in seconds.

    Args:
        lanes: all lanes, most urgent first.
        per_second: the throughput, more than 0.
    """
    found: dict[Lane, float] = {}
    ahead = 0
    for lane in lanes:
        if lane.deadlines:
            found[lane.lane] = max((ahead + place + 1) / per_second - left_s for place, left_s in lane.deadlines)
        ahead += lane.staged
    return found
