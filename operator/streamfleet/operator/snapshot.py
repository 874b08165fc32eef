"""The read model of a queue: `read_queue` reads Redis, `lane_views` counts each lane, for commands, page and exporter.

`take_snapshot` adds the workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from streamfleet.common.protocol import LANES, Lane
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.broker.audit import Audit, LaneAudit, Ranked, Sample
from streamfleet.operator.fleet import WorkerView, worker_views

NO_DEADLINE_MS = 8 * 10**15
"""Ranks above this mean no deadline."""
DELAYED_AT_MOST = 10_000


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane.

    Attributes:
        lane: the lane.
        outstanding: number of requests that have not ended.
        ready: number of waiting requests, staged or not yet staged.
        running: number of requests with workers.
        delayed: number of requests that wait for a retry; None if too many are delayed to count them by lane, and then
            `ready` includes them.
        oldest_s: age of the oldest entry, seconds; None for an empty lane.
        nearest_s: seconds until the deadline (or the default deadline) of the next request; negative if passed.
        due: for some staged requests, the number that run before, and the seconds until the deadline, as above.
        deadlines: the part of `due` that has a deadline of its own, not the default one.
        paused_s: time since the lane was paused, seconds; None if it is not paused.
        mean_wait_s: mean time since enqueueing of staged requests, seconds, from a sample; None for none.
        staged: number of waiting requests that are in order.
    """

    lane: Lane
    outstanding: int
    ready: int
    running: int
    delayed: int | None
    oldest_s: float | None
    nearest_s: float | None
    due: Sequence[tuple[int, float]] = ()
    deadlines: Sequence[tuple[int, float]] = ()
    paused_s: float | None = None
    mean_wait_s: float | None = None
    staged: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole queue. `pace_per_s` as in `Sample`."""

    queue: str
    now_ms: int
    lanes: Sequence[LaneView]
    workers: Sequence[WorkerView]
    delayed: int
    dead_letters: int
    accepted: int
    ended: Mapping[str, int]
    shares: Sequence[int] = (0,) * len(LANES)
    pace_per_s: float | None = None

    @property
    def outstanding(self) -> int:
        return sum(lane.outstanding for lane in self.lanes)

    @property
    def running(self) -> int:
        """Number of requests that workers hold."""
        return sum(lane.running for lane in self.lanes)

    @property
    def finished(self) -> int:
        """Number of requests that ever ended."""
        return sum(self.ended.values())


async def take_snapshot(broker: OperatorBroker) -> Snapshot:
    """Take a snapshot. Cheap enough for once a second, even for a long queue."""
    audit, sample = await read_queue(broker)
    return Snapshot(
        queue=broker.keys.queue,
        now_ms=sample.now_ms,
        lanes=lane_views(audit, sample, broker.limits.patience_ms),
        workers=worker_views(sample.workers, await _held(broker), sample.now_ms),
        delayed=audit.delayed,
        dead_letters=audit.dead_letters,
        accepted=audit.accepted,
        ended=dict(audit.ended),
        shares=broker.limits.shares,
        pace_per_s=sample.pace_per_s,
    )


async def read_queue(broker: OperatorBroker) -> tuple[Audit, Sample]:
    """Read all counts and a sample of what waits, in a few round trips whose cost does not grow with the queue."""
    audit = await broker.audit(0)
    return audit, await broker.sample({row.lane: row.ready for row in audit.lanes}, DELAYED_AT_MOST)


async def read_workers(broker: OperatorBroker) -> list[WorkerView]:
    """Workers with a description, and any other that holds requests."""
    return worker_views(await broker.workers(), await _held(broker), await broker.now_ms())


async def _held(broker: OperatorBroker) -> dict[str, dict[str, int]]:
    """Number of requests that each worker holds, by lane."""
    held: dict[str, dict[str, int]] = {}
    for lane in LANES:
        for worker, count in (await broker.running_by_worker(lane)).items():
            held.setdefault(worker, {})[lane.value] = count
    return held


def lane_views(audit: Audit, sample: Sample, patience_ms: int) -> list[LaneView]:
    """Views of all lanes.

    Args:
        audit, sample: as `read_queue` returns them.
        patience_ms: default deadline for ranking, counted from enqueueing.
    """
    countable = audit.delayed <= DELAYED_AT_MOST
    return [_lane_view(row, sample, patience_ms, countable=countable) for row in audit.lanes]


def _lane_view(row: LaneAudit, sample: Sample, patience_ms: int, *, countable: bool) -> LaneView:
    lane, now_ms = row.lane, sample.now_ms
    delayed = sample.delayed.get(lane, 0) if countable else None
    ready = max(0, row.length - row.running - (delayed or 0))
    oldest_ms, first_ms, paused_ms = sample.oldest_ms.get(lane), sample.first_ms.get(lane), sample.paused_ms.get(lane)
    waiting = [each for each in sample.ranked if each.lane is lane]
    due = [each for each in waiting if abs(each.rank_ms) <= NO_DEADLINE_MS]
    own = [each for each in due if each.rank_ms != each.enqueued_ms + patience_ms]
    return LaneView(
        lane=lane,
        outstanding=row.length,
        ready=ready,
        running=row.running,
        delayed=delayed,
        oldest_s=None if oldest_ms is None else _since_s(oldest_ms, now_ms),
        nearest_s=None if first_ms is None or first_ms > NO_DEADLINE_MS else (first_ms - now_ms) / 1000,
        due=[(each.place, (each.rank_ms - now_ms) / 1000) for each in due],
        deadlines=[(each.place, (each.rank_ms - now_ms) / 1000) for each in own],
        paused_s=None if paused_ms is None else _since_s(paused_ms, now_ms),
        mean_wait_s=_mean_wait_s(waiting, now_ms),
        staged=row.ready,
    )


def _mean_wait_s(waiting: Sequence[Ranked], now_ms: int) -> float | None:
    ages = [_since_s(each.enqueued_ms, now_ms) for each in waiting]
    return fmean(ages, [each.number for each in waiting]) if ages else None


def _since_s(moment_ms: int, now_ms: int) -> float:
    return max(0.0, (now_ms - moment_ms) / 1000)
