"""Order, shares and pickup of requests: real Redis, real worker code, simulated engines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from bench.core.machine import describe
from bench.core.reports import Report
from bench.scheduling import day, deadlines, inversion, memory, pickup, pull_cost, starvation
from bench.scheduling.parts import Part, Say

PARTS: Mapping[str, Callable[[bool, Say], Part]] = {
    "inversion": inversion.measure,
    "deadlines": deadlines.measure,
    "starvation": starvation.measure,
    "pickup": pickup.measure,
    "pull_cost": pull_cost.measure,
    "memory": memory.measure,
    "day": day.measure,
}
"""In the order in which they run: none beside another."""


def run(quick: bool, only: Sequence[str] = tuple(PARTS), hours: tuple[float, float] | None = None) -> Report:
    """Run the measurement.

    Args:
        quick: small sizes, as a quick check.
        only: names of parts.
        hours: hours of the day to replay; None for the size's own.
    """
    report = Report("scheduling", datetime.now(UTC).date().isoformat(), describe(), {"quick": quick})
    parts: dict[str, Callable[[bool, Say], Part]] = {**PARTS, "day": functools.partial(day.measure, hours=hours)}
    settings: dict[str, object] = {}
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
        for name in (name for name in PARTS if name in only):
            task = progress.add_task(name, total=1)

            def say(what: str, task: TaskID = task, name: str = name) -> None:
                progress.update(task, description=f"{name}: {what}")

            part = parts[name](quick, say)
            progress.update(task, description=name, completed=1)
            report.tables += part.tables
            report.targets += part.targets
            report.data[name] = dict(part.data)
            settings |= part.settings
    report.settings = {**report.settings, **settings}
    return report
