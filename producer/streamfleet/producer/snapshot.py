"""A queue at one instant, as an operator wants to see it, and how fast it moves between two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamfleet.common.broker import Broker
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.records import LaneAudit

NO_DEADLINE_MS = 8 * 10**15
"""Ranks beyond this stand for none at all."""
COUNTED_AT_MOST = 1_000


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane.

    Attributes:
        lane: which.
        outstanding: all of it that has not ended.
        ready: waiting, in order or about to be brought in order.
        running: with a worker.
        delayed: waiting for a retry to be due; None where the lane is too long to tell them from the ready ones.
        oldest_s: age of the oldest entry, seconds; None in an empty lane.
        nearest_s: seconds until the deadline (or, without one, the patience) of what runs next; negative when passed.
    """

    lane: Lane
    outstanding: int
    ready: int
    running: int
    delayed: int | None
    oldest_s: float | None
    nearest_s: float | None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker, as it last described itself.

    Attributes:
        name: its name.
        running: requests that it holds, as Redis counts them.
        state, engine, models, slots: its own words; empty and None for one that was never described.
        silent_s: seconds since its last sign of life; None for one that gave none.
    """

    name: str
    running: int
    state: str
    engine: str
    models: Sequence[str]
    slots: int | None
    silent_s: float | None


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

    @property
    def outstanding(self) -> int:
        return sum(lane.outstanding for lane in self.lanes)

    @property
    def finished(self) -> int:
        """All that ever ended."""
        return sum(self.ended.values())

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"outstanding": self.outstanding, "finished": self.finished}


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests per second between two snapshots."""

    enqueued: float
    finished: float


def rates(before: Snapshot, after: Snapshot) -> Rates | None:
    """How fast requests came and went; None when no time passed."""
    seconds = (after.now_ms - before.now_ms) / 1000
    if seconds <= 0:
        return None
    return Rates(
        max(0.0, (after.accepted - before.accepted) / seconds),
        max(0.0, (after.finished - before.finished) / seconds),
    )


async def take_snapshot(broker: Broker) -> Snapshot:
    """Look at the queue now. Cheap enough for once a second, however long the queue is."""
    audit = await broker.audit(COUNTED_AT_MOST)
    now_ms = await broker.now_ms()
    held: dict[str, int] = {}
    for lane in LANES:
        for worker, count in (await broker.running_by_worker(lane)).items():
            held[worker] = held.get(worker, 0) + count
    lanes = [lane_view(row, await broker.nearest(row.lane), now_ms) for row in audit.lanes]
    return Snapshot(
        queue=broker.keys.queue,
        now_ms=now_ms,
        lanes=lanes,
        workers=worker_views(await broker.workers(), held, now_ms),
        delayed=audit.delayed,
        dead_letters=audit.dead_letters,
        accepted=audit.accepted,
        ended=dict(audit.ended),
    )


def lane_view(row: LaneAudit, nearest: tuple[int | None, int | None], now_ms: int) -> LaneView:
    """A lane's view from what was counted, its oldest entry's time and its first rank (epoch ms)."""
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
    )


def worker_views(described: Mapping[str, Mapping[str, Any]], held: Mapping[str, int], now_ms: int) -> list[WorkerView]:
    """Workers by name: those that describe themselves, and any other that holds requests."""
    views: list[WorkerView] = []
    for name in sorted({*described, *held}):
        words = described.get(name, {})
        slots, models = words.get("slots"), words.get("models")
        views.append(
            WorkerView(
                name=name,
                running=held.get(name, 0),
                state=str(words.get("state", "")),
                engine=str(words.get("engine", "")),
                models=tuple(map(str, models)) if isinstance(models, list) else (),
                slots=slots if isinstance(slots, int) else None,
                silent_s=_silent_s(words.get("seen_ms"), now_ms),
            )
        )
    return views


def _silent_s(seen_ms: object, now_ms: int) -> float | None:
    # What is no time (not a number, or one beyond all times) stands for a sign of life that never came.
    known = isinstance(seen_ms, (int, float)) and 0 <= seen_ms < NO_DEADLINE_MS
    return (now_ms - seen_ms) / 1000 if known else None  # type: ignore[operator]
