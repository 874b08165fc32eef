"""Rates of a queue and mean times of its requests, from snapshots. Pure.

`RateMeter` takes snapshots one by one, and returns the change since the oldest one that it keeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from streamfleet.operator.snapshot import Snapshot

SPAN_MS, KEPT_MS = 10_000, 60_000
"""Rates use a reading of the first age if there is one, and none older than the second."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Change between two readings.

    Attributes:
        seconds: time between them.
        enqueued, finished: requests a second that arrived, and that ended.
        ended: requests a second that ended, by terminal status.
        waiting, running: mean numbers of requests in that time.
    """

    seconds: float
    enqueued: float
    finished: float
    ended: Mapping[str, float]
    waiting: float
    running: float

    def to_json(self) -> dict[str, Any]:
        """As JSON values. Mean times follow from Little's law: mean number of requests by those that leave a second."""
        leave = self.finished
        times = {"total_s": self.waiting + self.running, "waiting_s": self.waiting, "running_s": self.running}
        return {
            "over_s": round(self.seconds, 3),
            "enqueued_per_s": round(self.enqueued, 3),
            "finished_per_s": round(leave, 3),
            "ended_per_s": {status: round(rate, 3) for status, rate in self.ended.items()},
            "latency": {name: round(mean / leave, 4) for name, mean in times.items()} if leave > 0 else None,
        }


class RateMeter:
    """The last readings of one queue.

    Args:
        kept_ms: readings that are older are forgotten. At least twice the time between two readings.
    """

    def __init__(self, kept_ms: float = KEPT_MS) -> None:
        self._kept_ms = kept_ms
        self._readings: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> Rates | None:
        """Add a reading. Returns the change up to it, or None if there is none to compare with."""
        readings = self._readings
        if readings and snapshot.now_ms <= readings[-1].now_ms:
            readings.clear()  # a failover: another server's clock
        readings.append(snapshot)
        while readings[0].now_ms < snapshot.now_ms - self._kept_ms:
            readings.popleft()
        while len(readings) > 2 and readings[1].now_ms <= snapshot.now_ms - SPAN_MS:
            readings.popleft()
        return _between(list(readings)) if len(readings) > 1 else None


def _between(readings: list[Snapshot]) -> Rates:
    first, last = readings[0], readings[-1]
    seconds = (last.now_ms - first.now_ms) / 1000
    ended = {status: max(0.0, (count - first.ended.get(status, 0)) / seconds) for status, count in last.ended.items()}
    running = _mean([(each.now_ms, each.running) for each in readings])
    everywhere = _mean([(each.now_ms, each.outstanding) for each in readings])
    return Rates(
        seconds,
        max(0.0, (last.accepted - first.accepted) / seconds),
        max(0.0, (last.finished - first.finished) / seconds),
        ended,
        max(0.0, everywhere - running),
        running,
    )


def _mean(points: list[tuple[int, int]]) -> float:
    """Time-weighted mean of values that were read at some moments (epoch ms)."""
    area = sum((one[1] + two[1]) / 2 * (two[0] - one[0]) for one, two in pairwise(points))
    return area / (points[-1][0] - points[0][0])
