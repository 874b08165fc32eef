"""One reading of the queue for the exporter: the lanes, sums over the workers, and counts since the beginning.

The lanes are those of `snapshot`. The number of values does not depend on the contents of Redis.

**Deadline pressure** of a lane: the largest estimated lateness, in seconds, of its staged requests with a deadline.
Lateness is the time until a request will be taken (the requests waiting in more urgent lanes, those before it in its
own lane, and itself, divided by the throughput: the pace of the queue), minus the time until its deadline. Positive:
a deadline will be missed by so many seconds unless the fleet gets faster. Negative: the time to spare at the tightest
point. Requests without a deadline count as work, and have no lateness.

Only 17 places of each lane are read, spread evenly from its first to its last. A peak between two of them is
understated, at most by the time that a sixteenth of the lane takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamfleet.common.protocol import Lane, Status
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.broker.audit import Audit, Sample
from streamfleet.operator.fleet import silent_after_s
from streamfleet.operator.snapshot import LaneView, lane_views, read_queue
from streamfleet.operator.tenants import TenantView, read_tenants

LIVING_S = 30.0
"""Workers give a sign of life at least once per lease. One that is silent for this long, and for a lease and a half
(fleet.py), is not counted."""
STATES = ("starting", "ready", "unfit", "draining", "other")
LARGEST = 10**15


@dataclass(frozen=True, slots=True)
class WorkerSums:
    """Sums over the live workers."""

    by_state: Mapping[str, int]
    slots: int
    running: int


@dataclass(frozen=True, slots=True)
class View:
    """The whole queue; see docs/metrics.md.

    ``pressure_s`` has the lanes with a deadline once the throughput is known; ``throughput`` and ``work_s`` are None
    while it is unknown.
    """

    lanes: Sequence[LaneView]
    pressure_s: Mapping[Lane, float]
    workers: WorkerSums
    outstanding: int
    delayed: int
    dead_letters: int
    added: int
    duplicates: int
    reused: int
    ended: Mapping[str, int]
    throughput: float | None
    work_s: float | None
    tenants: Sequence[TenantView] = ()


async def read_view(broker: OperatorBroker) -> View:
    """Read the queue in a few round trips, whose cost does not grow with the queue."""
    await broker.refresh_configuration()
    audit, sample = await read_queue(broker)
    tenants = await read_tenants(broker) if await broker.has_tenants() else ()
    return replace(view(audit, sample, broker.limits.patience_ms), tenants=tenants)


def view(audit: Audit, sample: Sample, patience_ms: int) -> View:
    """Compute the numbers of one reading.

    Args:
        audit: all counts.
        sample: ages, deadlines, workers, the pace.
        patience_ms: default deadline for ranking, counted from enqueueing.
    """
    ended = {status.value: _within(audit.ended[status]) for status in Status}
    lanes = lane_views(audit, sample, patience_ms)
    per_second = sample.pace_per_s
    others = ("duplicate", "id_reused", "vanished")
    duplicates, reused, vanished = (_within(audit.counts.get(name, 0)) for name in others)
    return View(
        lanes=lanes,
        pressure_s=pressure_s(lanes, per_second) if per_second else {},
        workers=_worker_sums(sample),
        outstanding=audit.outstanding,
        delayed=audit.delayed,
        dead_letters=audit.dead_letters,
        added=_within(audit.accepted + duplicates + reused + vanished),
        duplicates=duplicates,
        reused=reused,
        ended=ended,
        throughput=per_second,
        work_s=audit.outstanding / per_second if per_second else None,
    )


def _worker_sums(sample: Sample) -> WorkerSums:
    living = [words for words in sample.workers.values() if _lives(words, sample.now_ms)]
    by_state = dict.fromkeys(STATES, 0)
    for words in living:
        state = words.get("state")
        by_state[state if isinstance(state, str) and state in STATES else "other"] += 1
    return WorkerSums(
        by_state=by_state,
        slots=sum(_amount(words.get("slots")) for words in living),
        running=sum(_amount(words.get("running")) for words in living),
    )


def _lives(words: Mapping[str, Any], now_ms: int) -> bool:
    seen_ms, most_s = words.get("seen_ms"), max(LIVING_S, silent_after_s(words.get("lease_ms")))
    return isinstance(seen_ms, int | float) and abs(now_ms - seen_ms) <= most_s * 1000


def _amount(value: Any) -> int:
    """Read a number of a worker's description; 0 if it is not valid."""
    return value if isinstance(value, int) and 0 <= value <= LARGEST else 0


def _within(count: int) -> int:
    return min(max(0, count), LARGEST)


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
