"""Tables in Markdown, and the list of targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.core.reports import Table, Target


def markdown(table: Table) -> str:
    """A table in Markdown, numbers aligned to the right."""
    columns = list(table.columns)
    right = [all(_is_number(row.get(column)) for row in table.rows) for column in columns]
    lines = [
        "| " + " | ".join(columns) + " |",
        "|" + "|".join("---:" if to_right else "---" for to_right in right) + "|",
    ]
    lines += ["| " + " | ".join(shown(row.get(column)) for column in columns) + " |" for row in table.rows]
    return "\n".join(lines)


def targets_markdown(targets: Sequence[Target]) -> str:
    """Each target with its figure, and hold or miss."""
    rows = [
        {
            "target": target.name,
            "asked": f"{target.kind} {shown(target.limit)} {target.unit}",
            "measured": "not measured" if target.value is None else f"{shown(target.value)} {target.unit}",
            "": "hold" if target.holds else "MISS",
            "note": target.note,
        }
        for target in targets
    ]
    return markdown(Table("targets", ["target", "asked", "measured", "", "note"], rows))


def shown(value: Any) -> str:
    """A value for readers: three significant digits, thousands separated; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))
