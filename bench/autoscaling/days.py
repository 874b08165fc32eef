"""Simulates the day under each policy, and makes tables and targets of the outcomes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.autoscaling.model import SLOTS, START_S, TOKENS_PER_S, Outcome, Simulation
from bench.autoscaling.policies import MOST, POLICIES, Policy, Scaler, fixed
from bench.core.reports import Table, Target
from bench.core.series import thinned
from bench.scheduling.traces import Arrival, Kind, day_bursts, diurnal
from streamfleet.common.protocol import LANES

FULL_HOURS, QUICK_HOURS = (0.0, 24.0), (6.0, 10.0)
KINDS = (
    Kind(0.05, "critical", (30, 30), (16, 64)),
    Kind(0.55, "high", (60, 120), (64, 256)),
    Kind(0.30, "normal", (300, 900), (64, 256)),
    Kind(0.10, "low", None, (128, 384)),
)
"""Most of it is waited for by somebody: what can wait for hours needs no autoscaler, but a night."""
PER_S = 3.0
"""Mean of the day: six workers' work. A burst in the afternoon needs four times as many."""
SEED = 7
TITLES = {"deadlines": "work and deadline pressure", "pending": "pending entries alone"}
MOST_OF_FIXED, MOST_OF_PENDING, MOST_MISSED_PERCENT = 0.75, 1.0, 0.1


@dataclass
class Part:
    """Tables, targets and data for the report."""

    settings: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


def report_of(hours: tuple[float, float]) -> Part:
    """Simulate these hours under every policy, and under the fixed fleets that are compared with them."""
    trace = diurnal(SEED, hours, KINDS, PER_S, day_bursts(SEED))
    _say(f"{hours[0]:g} to {hours[1]:g} o'clock, {len(trace):,} requests")
    found = {name: simulate(name, trace, policy) for name, policy in POLICIES.items()}
    enough = smallest_fixed(trace, found["deadlines"].missed)
    found["fixed"] = simulate(f"fixed, {enough} workers", trace, fixed(enough), enough)
    mean = max(1, round(found["deadlines"].worker_s / trace[-1].at_s))
    found["mean"] = simulate(f"fixed, {mean} workers", trace, fixed(mean), mean)
    titles = {**TITLES, "fixed": f"fixed fleet of {enough}", "mean": f"fixed fleet of {mean}"}
    return Part(
        settings={
            "hours": list(hours),
            "requests": len(trace),
            "worker": f"{SLOTS} slots of {TOKENS_PER_S:g} tokens/s, ready {START_S:g} s after it is asked for",
        },
        tables=[_table(titles, found)],
        targets=_targets(found),
        data={"day": _series(titles, found, trace, hours)},
    )


def simulate(name: str, trace: Sequence[Arrival], policy: Policy, workers: int = 2) -> Outcome:
    """One policy on the trace, starting with so many workers."""
    outcome = Simulation(trace, Scaler(policy), workers).run()
    _say(f"{name}: {outcome.worker_hours:.0f} worker hours, {outcome.missed_percent:.2f} % missed")
    return outcome


def smallest_fixed(trace: Sequence[Arrival], missed: int) -> int:
    """The smallest fixed fleet that misses no more than so many requests; MOST if none does."""
    low, high = 1, MOST
    while low < high:
        middle = (low + high) // 2
        if simulate(f"fixed, {middle} workers", trace, fixed(middle), middle).missed <= missed:
            high = middle
        else:
            low = middle + 1
    return low


def _table(titles: dict[str, str], found: dict[str, Outcome]) -> Table:
    columns = ("", "worker hours", "missed, %", *(f"missed in {lane}" for lane in LANES[:3]), "most workers")
    rows = []
    for name, outcome in found.items():
        missed = [outcome.missed_by_lane.get(lane, 0) for lane in LANES[:3]]
        cells = [titles[name], outcome.worker_hours, outcome.missed_percent, *missed, outcome.most]
        rows.append(dict(zip(columns, cells, strict=True)))
    return Table("Autoscaling", columns, rows)


def _targets(found: dict[str, Outcome]) -> list[Target]:
    ours, pending, fleet = found["deadlines"], found["pending"], found["fixed"]
    return [
        Target(
            "Worker hours, of the smallest fixed fleet that misses as few deadlines",
            ours.worker_s / fleet.worker_s,
            MOST_OF_FIXED,
            "at most",
            "x",
        ),
        Target(
            "Worker hours, of scaling on pending entries alone",
            ours.worker_s / pending.worker_s,
            MOST_OF_PENDING,
            "at most",
            "x",
            f"which missed {pending.missed_percent:.2f} %",
        ),
        Target("Missed deadlines", ours.missed_percent, MOST_MISSED_PERCENT, "at most", "%"),
    ]


def _series(
    titles: dict[str, str], found: dict[str, Outcome], trace: Sequence[Arrival], hours: tuple[float, float]
) -> dict[str, Any]:
    minutes = int((hours[1] - hours[0]) * 60)
    arrivals = [0] * minutes
    for arrival in trace:
        arrivals[min(minutes - 1, int(arrival.at_s // 60))] += 1
    return {
        "hours": list(hours),
        "arrivals_per_s": [number / 60 for number in arrivals],
        "policies": [
            {
                "name": name,
                "title": titles[name],
                "worker_hours": outcome.worker_hours,
                "missed_percent": outcome.missed_percent,
                "hour": [hours[0] + moment.at_s / 3600 for moment in thinned(outcome.moments, 1_000)],
                "ready": [moment.ready for moment in thinned(outcome.moments, 1_000)],
                "waiting": [moment.waiting for moment in thinned(outcome.moments, 1_000)],
                "missed": [moment.missed for moment in thinned(outcome.moments, 1_000)],
            }
            for name, outcome in found.items()
        ],
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
