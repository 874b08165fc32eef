"""The targets and ratios of reports as one table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable
from rich.text import Text

from bench.core.reports import Report
from bench.core.tables import shown

STYLES = {"hold": "green", "MISS": "bold yellow", "FAILED": "bold red"}

SIGNS = {"at least": "≥", "at most": "≤"}
MOST_NOTE_CHARS = 40
"""Longer notes stand in the report's own table and on the page."""


@dataclass(frozen=True)
class Line:
    """One figure: its measurement, its name, its limit, its value, and hold, MISS or FAILED."""

    report: str
    name: str
    asked: str
    measured: str
    verdict: str


def lines(report: Report) -> list[Line]:
    """Targets of a report."""
    found = []
    for target in report.targets:
        measured = "not measured" if target.value is None else f"{shown(target.value)} {target.unit}"
        asked = f"{SIGNS[target.kind]} {shown(target.limit)} {target.unit}"
        name = f"{target.name} ({target.note})" if 0 < len(target.note) <= MOST_NOTE_CHARS else target.name
        found.append(Line(report.name, name, asked.strip(), measured.strip(), "hold" if target.holds else "MISS"))
    return found


def shown_lines(found: Sequence[Line]) -> RichTable:
    """The table, with a section for each measurement; fits a terminal of 80 columns."""
    table = RichTable("", "figure", "asked", "measured")
    table.columns[0].no_wrap = True
    before = ""
    for line in found:
        if line.report != before:
            table.add_section()
            table.add_row("", Text(line.report, style="bold"), "", "")
        table.add_row(
            Text(line.verdict, style=STYLES.get(line.verdict, "")), Text(line.name), line.asked, line.measured
        )
        before = line.report
    return table
