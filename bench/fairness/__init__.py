"""Shares of tenants in a lane: the real scripts on a real Redis with engines simulated by their slots alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from bench.core.machine import describe
from bench.core.reports import Report
from bench.fairness import deadlines, pull_cost, shares, small
from bench.scheduling.parts import Part, Say

PARTS: Mapping[str, Callable[[bool, Say], Part]] = {
    "small": small.measure,
    "shares": shares.measure,
    "deadlines": deadlines.measure,
    "pull_cost": pull_cost.measure,
}


def run(quick: bool, only: Sequence[str] = tuple(PARTS)) -> Report:
    """Run the measurement; `quick`: small sizes; `only`: names of parts."""
    report = Report("fairness", datetime.now(UTC).date().isoformat(), describe(), {"quick": quick})
    for name in (name for name in PARTS if name in only):
        part = PARTS[name](quick, lambda what, name=name: print(f"{name}: {what}", flush=True))  # type: ignore[misc]
        report.tables += part.tables
        report.targets += part.targets
        report.data[name] = dict(part.data)
        report.settings = {**report.settings, **part.settings}
    return report
