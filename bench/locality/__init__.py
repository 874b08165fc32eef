"""Work goes where its cache is: measurements of prompt tokens that engines take from their prefix caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from bench.core.machine import describe
from bench.core.reports import Report
from bench.locality import pull_cost, routing
from bench.scheduling.parts import Part, Say

PARTS: Mapping[str, Callable[[bool, Say], Part]] = {
    "routing": routing.measure,
    "prefill": routing.measure_prefill,
    "hot": routing.measure_hot,
    "pull_cost": pull_cost.measure,
}


def run(quick: bool, only: Sequence[str] = tuple(PARTS)) -> Report:
    """Run the measurement; `quick`: small sizes; `only`: names of parts."""
    report = Report("locality", datetime.now(UTC).date().isoformat(), describe(), {"quick": quick})
    for name in (name for name in PARTS if name in only):
        part = PARTS[name](quick, lambda what, name=name: print(f"{name}: {what}", flush=True))  # type: ignore[misc]
        report.tables += part.tables
        report.targets += part.targets
        report.data[name] = dict(part.data)
    return report
