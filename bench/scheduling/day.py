"""A day of traffic at a hundred times its speed: quiet nights, busy afternoons, bursts, four lanes, deadlines.

All times of the trace shrink: gaps, lives, default deadlines, the latencies of the simulated engine. streamfleet's own
time does not shrink: a millisecond of it counts as a tenth of a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.rounds import percentile
from bench.core.series import thinned
from bench.core.workers import workers
from bench.scheduling.feeding import drained, queue_settings, read_outcomes, replay
from bench.scheduling.outcomes import Outcome, cdf
from bench.scheduling.parts import Part, Say
from bench.scheduling.traces import Arrival, Kind, capacity_per_s, day_bursts, diurnal
from streamfleet.common.protocol import LANES
from streamfleet.producer import Client
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU as PROFILE
from tests.broker import Broker

SPEED, WORKERS, SEED = 100, 2, 7
PATIENCE_MS = 300_000
PROMPT_TOKENS = 2
KINDS = (
    Kind(0.02, "critical", (30, 30), (16, 64)),
    Kind(0.28, "high", (60, 120), (64, 256)),
    Kind(0.40, "normal", (600, 1_800), (64, 256)),
    Kind(0.30, "low", None, (128, 384)),
)
"""An alarm, somebody who waits, somebody who looks in later, and what has time."""
LOAD = 0.3
"""Mean of the day, of what the engines can do by their profile: afternoons come to 0.5, bursts in them to 1.3. At this
speed, timers that wake a little late at every step take a good third of it."""
QUICK_HOURS, FULL_HOURS = (15.0, 15.5), (0.0, 24.0)


@dataclass(frozen=True)
class Sample:
    """State of the queue at one time: hour of the day, entries in each lane, requests running."""

    hour: float
    depth: Mapping[str, int]
    running: int


@dataclass(frozen=True)
class Day:
    """Observations of the day.

    Attributes:
        trace: arrivals.
        outcomes: outcome of each arrival, in the same order.
        samples: the queue over time.
        late_s: delay of the latest request at its sending, in s of real time.
        problems: contradictions that the audit found.
        accepted: requests that the queue counts.
        took_s: real time from the first request to the last outcome.
    """

    trace: Sequence[Arrival]
    outcomes: Sequence[Outcome]
    samples: Sequence[Sample]
    late_s: float
    problems: Sequence[str]
    accepted: int
    took_s: float


def measure(quick: bool, say: Say, hours: tuple[float, float] | None = None) -> Part:
    """Replay the day, or a part of it."""
    hours = hours or (QUICK_HOURS if quick else FULL_HOURS)
    tokens = sum(kind.weight * sum(kind.tokens) / 2 for kind in KINDS)
    per_s = LOAD * WORKERS * capacity_per_s(PROFILE, PROFILE.slots, tokens, PROMPT_TOKENS)
    trace = diurnal(SEED, hours, KINDS, per_s, day_bursts(SEED))
    say(
        f"{hours[0]:g} to {hours[1]:g} o'clock, {len(trace):,} requests in {(hours[1] - hours[0]) * 3600 / SPEED:.0f} s"
    )
    environment = {
        "STREAMFLEET_ENGINE": "simulated",
        "STREAMFLEET_SIMULATED_PROFILE": "smollm2-cpu",
        "STREAMFLEET_SIMULATED_SPEED": SPEED,
        "STREAMFLEET_PATIENCE_MS": PATIENCE_MS // SPEED,
    }
    with (
        own_server() as server,
        redis.Redis.from_url(server.url) as client,
        workers(server.url, WORKERS, environment=environment),
    ):
        return report(hours, asyncio.run(_live(server.url, client, trace, hours[0])))


def report(hours: tuple[float, float], day: Day) -> Part:
    """Figures of a day; times are the day's own, a hundred times the measured ones."""
    lost = sum(not outcome.status for outcome in day.outcomes) + abs(day.accepted - len(day.trace))
    rows = [_lane_row(lane, day) for lane in LANES]
    ended = Counter(outcome.status or "no result" for outcome in day.outcomes)
    span_s = day.took_s * SPEED
    total = {
        "requests": len(day.trace),
        **ended,
        "requests/s of the day": len(day.trace) / span_s,
        "requests/s as run": len(day.trace) / day.took_s,
        "deepest": max(sum(sample.depth.values()) for sample in day.samples),
        "latest sent ms": day.late_s * 1000,
    }
    name = f"{hours[0]:g} to {hours[1]:g} o'clock at {SPEED} times its speed, {WORKERS} simulated workers"
    tables = [
        Table(f"Day: {name}", list(rows[0]), rows),
        Table("Day, all lanes", list(total), [total]),
    ]
    note = "; ".join(day.problems) or f"the audit adds up: {day.accepted:,} accepted, {sum(ended.values()):,} ended"
    targets = [Target("requests of the day lost, or counted wrongly", lost + len(day.problems), 0, "at most", "", note)]
    samples = thinned_samples(day.samples)
    data = {
        "hour": [sample.hour for sample in samples],
        "depth": {lane: [sample.depth[lane] for sample in samples] for lane in LANES},
        "running": [sample.running for sample in samples],
        **_per_bin(hours, day),
        "total_s_cdf": {lane: cdf(_totals_s(lane, day)) for lane in LANES},
        "outcomes": dict(ended),
    }
    return Part(tables, targets, data, {"day_hours": list(hours), "day_speed": SPEED, "day_requests": len(day.trace)})


def thinned_samples(samples: Sequence[Sample], most: int = 500) -> list[Sample]:
    """At most so many, evenly spread."""
    return [samples[round(index)] for index in thinned([float(number) for number in range(len(samples))], most)]


def _of_lane(lane: str, day: Day) -> list[tuple[Arrival, Outcome]]:
    return [pair for pair in zip(day.trace, day.outcomes, strict=True) if pair[0].lane == lane]


def _totals_s(lane: str, day: Day) -> list[float]:
    """Times from enqueueing to the end, in seconds of the day."""
    return [(item.finished_ms - item.enqueued_ms) * SPEED / 1000 for _, item in _of_lane(lane, day) if item.status]


def _lane_row(lane: str, day: Day) -> dict[str, object]:
    pairs = _of_lane(lane, day)
    missed = [_missed(arrival, outcome) for arrival, outcome in pairs]
    queued_s = [(item.claimed_ms - item.enqueued_ms) * SPEED / 1000 for _, item in pairs if item.claimed_ms is not None]
    totals_s = _totals_s(lane, day)
    return {
        "lane": lane,
        "requests": len(pairs),
        "missed %": 100 * sum(missed) / len(missed) if missed else 0.0,
        "queued p50 s": percentile(queued_s, 0.5) if queued_s else None,
        "queued p99 s": percentile(queued_s, 0.99) if queued_s else None,
        "total p50 s": percentile(totals_s, 0.5) if totals_s else None,
        "total p99 s": percentile(totals_s, 0.99) if totals_s else None,
    }


def _missed(arrival: Arrival, outcome: Outcome) -> bool:
    return outcome.missed(None if arrival.ttl_ms is None else max(1, round(arrival.ttl_ms / SPEED)))


def _per_bin(hours: tuple[float, float], day: Day, bins: int = 288) -> dict[str, list[float]]:
    """Arrivals, ends and misses per second of the day, in equal intervals; a miss counts at its arrival's time."""
    width_h = (hours[1] - hours[0]) / bins
    arrived, finished, missed = [0.0] * bins, [0.0] * bins, [0.0] * bins
    each = 1 / (width_h * 3600)
    for arrival, outcome in zip(day.trace, day.outcomes, strict=True):
        place = min(bins - 1, int(arrival.at_s / 3600 / width_h))
        arrived[place] += each
        missed[place] += each if _missed(arrival, outcome) else 0.0
        end_s = arrival.at_s + (outcome.finished_ms - outcome.enqueued_ms) * SPEED / 1000
        if outcome.status and int(end_s / 3600 / width_h) < bins:
            finished[int(end_s / 3600 / width_h)] += each
    starts = [round(hours[0] + place * width_h, 4) for place in range(bins)]
    series = {"arrivals_per_s": arrived, "finished_per_s": finished, "missed_per_s": missed}
    return {"bin_hour": starts, **{name: [round(value, 4) for value in values] for name, values in series.items()}}


async def _live(url: str, client: redis.Redis, trace: Sequence[Arrival], first_hour: float) -> Day:
    samples: list[Sample] = []
    settings = queue_settings(url, patience_ms=PATIENCE_MS // SPEED)
    async with Client(settings=settings, notify=False) as fleet:
        began = time.monotonic()
        watch = asyncio.create_task(_watch(fleet, samples, first_hour, began))
        late_s = await replay(fleet, trace, speed=SPEED)
        await drained(fleet)
        took_s = time.monotonic() - began
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        audit = await Broker.of(fleet.broker).audit()
    outcomes = read_outcomes(client, (f"r{number}" for number in range(len(trace))))
    return Day(trace, outcomes, samples, late_s, audit.problems(), audit.accepted, took_s)


async def _watch(fleet: Client, samples: list[Sample], first_hour: float, began: float) -> None:
    while True:
        audit = await Broker.of(fleet.broker).audit()
        hour = first_hour + (time.monotonic() - began) * SPEED / 3600
        depth = {lane.lane.value: lane.length for lane in audit.lanes}
        samples.append(Sample(round(hour, 4), depth, sum(lane.running for lane in audit.lanes)))
        await asyncio.sleep(0.1)
