"""One look at a queue as numbers; their count does not depend on the contents of Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamfleet.common.protocol import Lane, Status
from streamfleet.common.records import Audit, Glance, LaneAudit
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.exporter.pressure import Throughput, places, pressure_s, slack_s
from streamfleet.operator.fleet import silent_after_s

LIVING_S = 30.0
"""Workers give a sign of life at least once per lease. One that is silent for this long, and for a lease and a half
(fleet.py), is not counted."""
STATES = ("starting", "ready", "unfit", "draining", "other")
LARGEST = 10**15
DELAYED_AT_MOST = 1_000


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane; see docs/metrics.md.

    ``undelivered`` is None if too many requests are delayed to count them by lane; ``slack_s`` is None without a
    deadline; ``pressure_s`` also while the throughput is unknown.
    """

    lane: Lane
    entries: int
    ready: int
    running: int
    undelivered: int | None
    oldest_age_s: float
    slack_s: float | None
    pressure_s: float | None


@dataclass(frozen=True, slots=True)
class WorkersView:
    """Sums over the live workers. ``credit`` is None if none of them reports it."""

    by_state: Mapping[str, int]
    slots: int
    running: int
    credit: int | None


@dataclass(frozen=True, slots=True)
class View:
    """The whole queue; ``throughput`` and ``work_s`` are None while the throughput is unknown."""

    lanes: tuple[LaneView, ...]
    workers: WorkersView
    delayed: int
    dead_letters: int
    added: int
    duplicates: int
    ended: Mapping[str, int]
    throughput: float | None
    work_s: float | None

    @property
    def outstanding(self) -> int:
        """Number of requests that have not ended."""
        return sum(lane.entries for lane in self.lanes)


async def look(broker: OperatorBroker, throughput: Throughput) -> View:
    """Look at the queue in three round trips, whose cost does not grow with the queue."""
    await broker.refresh_configuration()
    audit = await broker.audit(0)
    glance = await broker.glance({row.lane: places(row.ready) for row in audit.lanes}, DELAYED_AT_MOST)
    return view(audit, glance, throughput, broker.limits.patience_ms)


def view(audit: Audit, glance: Glance, throughput: Throughput, patience_ms: int) -> View:
    """Compute the numbers of a look.

    Args:
        audit: all counts.
        glance: ages, deadlines, workers.
        throughput: gets the new counts.
        patience_ms: default deadline for ranking, counted from enqueueing.
    """
    ended = {status.value: _within(audit.ended[status]) for status in Status}
    waiting = {row.lane: row.ready for row in audit.lanes}
    answered = ended[Status.SUCCEEDED] + ended[Status.FAILED]
    waits = audit.outstanding > audit.delayed + sum(row.running for row in audit.lanes)
    per_second = throughput.saw(glance.now_ms, answered, waiting=waits)
    slack = slack_s(glance.ranked, patience_ms, glance.now_ms)
    pressure = pressure_s(glance.ranked, waiting, patience_ms, glance.now_ms, per_second) if per_second else {}
    lanes = tuple(
        LaneView(
            lane=row.lane,
            entries=row.length,
            ready=row.ready,
            running=row.running,
            undelivered=_undelivered(row, audit, glance),
            oldest_age_s=_age_s(row, glance),
            slack_s=slack.get(row.lane),
            pressure_s=pressure.get(row.lane),
        )
        for row in audit.lanes
    )
    return View(
        lanes=lanes,
        workers=_workers(glance),
        delayed=audit.delayed,
        dead_letters=audit.dead_letters,
        added=_within(audit.accepted + _count(audit, "duplicate") + _count(audit, "vanished")),
        duplicates=_count(audit, "duplicate"),
        ended=ended,
        throughput=per_second,
        work_s=audit.outstanding / per_second if per_second else None,
    )


def _undelivered(row: LaneAudit, audit: Audit, glance: Glance) -> int | None:
    """Number of undelivered entries: the lane's length minus entries handed out, ready, delayed or running."""
    if audit.delayed > DELAYED_AT_MOST:
        return None
    return max(0, row.length - row.ready - row.running - row.handed_out - glance.delayed.get(row.lane, 0))


def _age_s(row: LaneAudit, glance: Glance) -> float:
    enqueued_ms = glance.oldest_ms.get(row.lane)
    return 0.0 if enqueued_ms is None else max(0.0, (glance.now_ms - enqueued_ms) / 1000)


def _workers(glance: Glance) -> WorkersView:
    living = [words for words in glance.workers.values() if _lives(words, glance.now_ms)]
    by_state = dict.fromkeys(STATES, 0)
    for words in living:
        state = words.get("state")
        by_state[state if isinstance(state, str) and state in STATES else "other"] += 1
    told = [_amount(words["credit"]) for words in living if "credit" in words]
    return WorkersView(
        by_state=by_state,
        slots=sum(_amount(words.get("slots")) for words in living),
        running=sum(_amount(words.get("running")) for words in living),
        credit=sum(told) if told else None,
    )


def _lives(words: Mapping[str, Any], now_ms: int) -> bool:
    seen_ms, most_s = words.get("seen_ms"), max(LIVING_S, silent_after_s(words.get("lease_ms")))
    return isinstance(seen_ms, int | float) and abs(now_ms - seen_ms) <= most_s * 1000


def _amount(value: Any) -> int:
    """Read a number of a worker's description; 0 if it is not valid."""
    return value if isinstance(value, int) and 0 <= value <= LARGEST else 0


def _count(audit: Audit, name: str) -> int:
    return _within(audit.counts.get(name, 0))


def _within(count: int) -> int:
    return min(max(0, count), LARGEST)
