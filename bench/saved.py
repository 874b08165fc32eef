"""The saved reports of all measurements, and their targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from bench.core.reports import Report, Target, load

BENCHMARKS = ("broker", "engine", "front_end", "scheduling", "goodput", "shards", "gateway")
"""In the order of docs/performance.md, and of `bench.quick`."""

Reports = Mapping[str, tuple[Report, bytes]]
"""By name: each report, and its file as it is."""


class BadReport(Exception):
    """A file is not a report; the message gives the remedy."""


def command(name: str) -> str:
    """The command that makes a report."""
    return f"make bench-{name.replace('_', '-')}"


def read_reports(folder: Path) -> dict[str, tuple[Report, bytes]]:
    """Load all saved reports.

    Raises:
        BadReport: a file is not a report.
    """
    found = {}
    for name in BENCHMARKS:
        path = folder / f"{name}.json"
        if path.is_file():
            try:
                found[name] = (load(path), path.read_bytes())
            except (ValueError, KeyError, TypeError) as error:
                raise BadReport(f"{path} is no report ({error}); make it anew: {command(name)}") from error
    return found


def targets(reports: Iterable[Report]) -> list[Target]:
    """Targets of all reports, each with the name of its own before its name."""
    return [replace(each, name=f"{report.name}: {each.name}") for report in reports for each in report.targets]
