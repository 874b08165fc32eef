"""Snapshots of a queue for operators, and the rates between two snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.records import LaneAudit
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.fleet import WorkerView, worker_views

NO_DEADLINE_MS = 8 * 10**15
"""Ranks above this mean no deadline."""
COUNTED_AT_MOST = 1_000
LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane.

    Attributes:
        lane: the lane.
        outstanding: number of requests that have not ended.
        ready: number of waiting requests, staged or not yet staged.
        running: number of requests with workers.
        delayed: number of requests that wait for a retry; None if the lane is too long to tell them from ready ones.
        oldest_s: age of the oldest entry, seconds; None for an empty lane.
        nearest_s: seconds until the deadline (or the default deadline) of the next request; negative if passed.
        due: for some staged requests, the number that run before, and the seconds until the deadline, as above.
        paused_s: time since the lane was paused, seconds; None if it is not paused.
        mean_wait_s: mean time since enqueueing of staged requests, seconds, from a sample of up to nine; None for none.
    """

    lane: Lane
    outstanding: int
    ready: int
    running: int
    delayed: int | None
    oldest_s: float | None
    nearest_s: float | None
    due: Sequence[tuple[int, float]] = ()
    paused_s: float | None = None
    mean_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole queue."""

    queue: str
    now_ms: int
    lanes: Sequence[LaneView]
    workers: Sequence[WorkerView]
    delayed: int
    dead_letters: int
    accepted: int
    ended: Mapping[str, int]
    shares: Sequence[int] = (0,) * len(LANES)

    @property
    def outstanding(self) -> int:
        return sum(lane.outstanding for lane in self.lanes)

    @property
    def finished(self) -> int:
        """Number of requests that ever ended."""
        return sum(self.ended.values())

    def to_json(self) -> dict[str, Any]:
        """The snapshot as JSON values."""
        return asdict(self) | {"outstanding": self.outstanding, "finished": self.finished}


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests per second between two snapshots."""

    enqueued: float
    finished: float


def rates(before: Snapshot, after: Snapshot) -> Rates | None:
    """Rates between two snapshots; None if no time passed."""
    seconds = (after.now_ms - before.now_ms) / 1000
    if seconds <= 0:
        return None
    return Rates(
        max(0.0, (after.accepted - before.accepted) / seconds),
        max(0.0, (after.finished - before.finished) / seconds),
    )


async def take_snapshot(broker: OperatorBroker) -> Snapshot:
    """Take a snapshot. Cheap enough for once a second, even for a long queue."""
    audit = await broker.audit(COUNTED_AT_MOST)
    now_ms = await broker.now_ms()
    places = {row.lane: places_to_ask(row.ready) for row in audit.lanes}
    waiting, paused = await broker.waiting_at(places), await broker.paused()
    lanes = [
        lane_view(
            row,
            await broker.nearest(row.lane),
            now_ms,
            [(place, found) for place, found in zip(places[row.lane], waiting[row.lane], strict=True) if found],
            paused.get(row.lane),
        )
        for row in audit.lanes
    ]
    return Snapshot(
        queue=broker.keys.queue,
        now_ms=now_ms,
        lanes=lanes,
        workers=await look_at_workers(broker, now_ms),
        delayed=audit.delayed,
        dead_letters=audit.dead_letters,
        accepted=audit.accepted,
        ended=dict(audit.ended),
        shares=broker.limits.shares,
    )


async def look_at_workers(broker: OperatorBroker, now_ms: int) -> list[WorkerView]:
    """Workers with a description, and any other that holds requests."""
    held: dict[str, dict[str, int]] = {}
    for lane in LANES:
        for worker, count in (await broker.running_by_worker(lane)).items():
            held.setdefault(worker, {})[lane.value] = count
    return worker_views(await broker.workers(), held, now_ms)


def places_to_ask(ready: int) -> list[int]:
    """Places spread evenly over a ready set, as a sample of its deadlines."""
    return sorted({ready * part // LOOKED_AT for part in range(LOOKED_AT)} | {max(0, ready - 1)}) if ready else []


def lane_view(
    row: LaneAudit,
    nearest: tuple[int | None, int | None],
    now_ms: int,
    waiting: Sequence[tuple[int, tuple[int, int]]] = (),
    paused_ms: int | None = None,
) -> LaneView:
    """Build the view of a lane.

    Args:
        row: its counts.
        nearest: its oldest entry's time and its first rank, epoch ms.
        now_ms: Redis's clock, epoch ms.
        waiting: places of its ready set, each with the request's time of enqueueing and rank, epoch ms.
        paused_ms: time of the pause, epoch ms.
    """
    oldest_ms, first_ms = nearest
    delayed: int | None = None
    ready = row.length - row.running
    if row.undelivered is not None:
        ready = row.ready + row.undelivered + row.handed_out
        delayed = max(0, row.length - row.running - ready)
    return LaneView(
        lane=row.lane,
        outstanding=row.length,
        ready=ready,
        running=row.running,
        delayed=delayed,
        oldest_s=None if oldest_ms is None or row.length == 0 else max(0.0, (now_ms - oldest_ms) / 1000),
        nearest_s=None if first_ms is None or first_ms > NO_DEADLINE_MS else (first_ms - now_ms) / 1000,
        due=[(place, (rank - now_ms) / 1000) for place, (_, rank) in waiting if abs(rank) <= NO_DEADLINE_MS],
        paused_s=None if paused_ms is None else max(0.0, (now_ms - paused_ms) / 1000),
        mean_wait_s=fmean(max(0.0, (now_ms - enqueued) / 1000) for _, (enqueued, _) in waiting) if waiting else None,
    )
