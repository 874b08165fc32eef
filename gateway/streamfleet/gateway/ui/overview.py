"""The page's view of a queue at one instant, and its rates and mean latencies. Pure.

A snapshot, the queue's rates and the next entries go in; JSON values come out. `RateMeter` takes snapshots one by one,
and returns the change since the oldest one that it keeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from streamfleet.common.protocol import Lane
from streamfleet.gateway.ui.texts import line
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.lateness import Lateness, lateness
from streamfleet.operator.snapshot import NO_DEADLINE_MS, LaneView, Rates, Snapshot, rates

SPAN_MS, KEPT_MS = 10_000, 60_000
"""Rates use a reading of the first age if there is one, and none older than the second."""


@dataclass(frozen=True, slots=True)
class QueueRates:
    """Change between two readings.

    Attributes:
        seconds: time between them.
        rates: requests a second that arrived, and that ended.
        ended: requests a second that ended, by terminal status.
        waiting, running: mean numbers of requests in that time.
    """

    seconds: float
    rates: Rates
    ended: Mapping[str, float]
    waiting: float
    running: float

    def to_json(self) -> dict[str, Any]:
        """As JSON values. Mean times follow from Little's law: mean number of requests by those that leave a second."""
        leave = self.rates.finished
        times = {"total_s": self.waiting + self.running, "waiting_s": self.waiting, "running_s": self.running}
        return {
            "over_s": round(self.seconds, 3),
            "enqueued_per_s": round(self.rates.enqueued, 3),
            "finished_per_s": round(leave, 3),
            "ended_per_s": {status: round(rate, 3) for status, rate in self.ended.items()},
            "latency": {name: round(mean / leave, 4) for name, mean in times.items()} if leave > 0 else None,
        }


class RateMeter:
    """The last readings of one queue, without their workers."""

    def __init__(self) -> None:
        self._readings: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> QueueRates | None:
        """Add a reading. Returns the change up to it, or None if there is none to compare with."""
        readings = self._readings
        if readings and snapshot.now_ms <= readings[-1].now_ms:
            readings.clear()  # a failover: another server's clock
        readings.append(snapshot)
        while readings[0].now_ms < snapshot.now_ms - KEPT_MS:
            readings.popleft()
        while len(readings) > 2 and readings[1].now_ms <= snapshot.now_ms - SPAN_MS:
            readings.popleft()
        return _rates_between(list(readings))


def _rates_between(readings: list[Snapshot]) -> QueueRates | None:
    first, last = readings[0], readings[-1]
    moved = rates(first, last)
    if moved is None:
        return None
    seconds = (last.now_ms - first.now_ms) / 1000
    ended = {status: max(0.0, (count - first.ended.get(status, 0)) / seconds) for status, count in last.ended.items()}
    running = _mean([(each.now_ms, running_in(each)) for each in readings])
    everywhere = _mean([(each.now_ms, each.outstanding) for each in readings])
    return QueueRates(seconds, moved, ended, max(0.0, everywhere - running), running)


def running_in(snapshot: Snapshot) -> int:
    """Number of requests that workers hold."""
    return sum(lane.running for lane in snapshot.lanes)


def _mean(points: list[tuple[int, int]]) -> float:
    """Time-weighted mean of values that were read at some moments (epoch ms)."""
    area = sum((one[1] + two[1]) / 2 * (two[0] - one[0]) for one, two in pairwise(points))
    return area / (points[-1][0] - points[0][0])


WITHIN_S = (0, 10, 60, 300)
MOST_WORKERS = 200


@dataclass(frozen=True, slots=True)
class Head:
    """Head of an entry: its request's id, its tenant (None for none), and the size of its body."""

    id: str
    tenant: str | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Next:
    """An entry that runs soon: its stream id, its rank (epoch ms), and its head; None if the head was not read."""

    stream_id: str
    rank_ms: int
    head: Head | None


def overview(
    snapshot: Snapshot, queue_rates: QueueRates | None, upcoming: Mapping[Lane, Sequence[Next]]
) -> dict[str, Any]:
    """Returns a queue as JSON values.

    Args:
        snapshot: its state.
        queue_rates: its change up to now; None if unknown.
        upcoming: the next entries, by lane.
    """
    late = lateness(snapshot)
    resting = sum(lane.paused_s is not None for lane in snapshot.lanes)
    return {
        "now_ms": snapshot.now_ms,
        "paused": "none" if not resting else "all" if resting == len(snapshot.lanes) else "some",
        "lanes": [
            _lane(lane, judged, upcoming.get(lane.lane, ()), snapshot.now_ms)
            for lane, judged in zip(snapshot.lanes, late, strict=True)
        ],
        "totals": {
            "outstanding": snapshot.outstanding,
            "ready": sum(lane.ready for lane in snapshot.lanes),
            "running": running_in(snapshot),
            "delayed": snapshot.delayed,
            "dead_letters": snapshot.dead_letters,
            "accepted": snapshot.accepted,
            "finished": snapshot.finished,
        },
        "ended": dict(snapshot.ended),
        "rates": queue_rates.to_json() if queue_rates else None,
        "workers": [_worker(worker) for worker in snapshot.workers[:MOST_WORKERS]],
        "workers_total": len(snapshot.workers),
    }


def pressure(lane: LaneView) -> tuple[list[dict[str, int]], bool]:
    """Returns the ready requests that are due soon (deadline, or default patience), by time, and True if that is exact.

    Of a long lane only some places were read; between two of them, due times are taken to be evenly spread.
    """
    points = [(0.0, float("-inf")), *((place + 1.0, left_s) for place, left_s in lane.due)]
    counts = [{"within_s": within_s, "count": min(lane.ready, _due_by(within_s, points))} for within_s in WITHIN_S]
    return counts, len(lane.due) >= lane.ready


def _due_by(within_s: float, points: Sequence[tuple[float, float]]) -> int:
    """Number of requests due by then, interpolated between points that give a number and its due time."""
    reached = max(index for index, (_, left_s) in enumerate(points) if left_s <= within_s)
    count, left_s = points[reached]
    if reached + 1 == len(points):
        return int(count)
    above, above_s = points[reached + 1]
    if left_s == float("-inf") or above_s <= left_s:
        return int(count)
    return int(count + (above - count - 1) * (within_s - left_s) / (above_s - left_s))


def _lane(lane: LaneView, judged: Lateness, upcoming: Sequence[Next], now_ms: int) -> dict[str, Any]:
    counts, exact = pressure(lane)
    values = asdict(lane)
    del values["due"], values["deadlines"]
    return values | {
        "pressure": counts,
        "pressure_exact": exact,
        "late": judged.late,
        "will_be_late": judged.will_be,
        "cause": judged.cause.value,
        "why": line(judged.text),
        "next": [_next(lane.lane, each, now_ms) for each in upcoming],
    }


def _next(lane: Lane, each: Next, now_ms: int) -> dict[str, Any]:
    head = each.head
    return {
        "entry": f"{lane}:{each.stream_id}",
        "id": head.id if head else None,
        "tenant": head.tenant if head else None,
        "waited_s": max(0.0, (now_ms - int(each.stream_id.partition("-")[0])) / 1000),
        "left_s": None if each.rank_ms > NO_DEADLINE_MS else (each.rank_ms - now_ms) / 1000,
        "bytes": head.size_bytes if head else None,
    }


def _worker(worker: WorkerView) -> dict[str, Any]:
    return {
        "name": line(worker.name, 200),
        "state": line(worker.state),
        "alive": worker.alive,
        "takes_requests": worker.takes_requests,
        "why_not": line(worker.why_not),
        "engine": line(worker.engine),
        "models": [line(model) for model in worker.models],
        "version": line(worker.version),
        "running": worker.running,
        "slots": worker.slots,
        "held": dict(worker.held),
        "silent_s": worker.silent_s,
        "age_s": worker.age_s,
        "oldest_held_s": worker.oldest_held_s,
    }
