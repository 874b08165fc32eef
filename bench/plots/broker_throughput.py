"""Enqueue and drain of every queue, as ratios to raw redis-py measured beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.plots import parts, style

MOST = 1.3
"""Bars end here at the least; what is far beyond is cut off, and its figure says how far it goes."""
KINDS = {"ours": style.OURS, "limit": style.PEER_DARK}


def color_of(row: Mapping[str, Any]) -> str:
    """Returns the colour of a row: ours is highlighted, limits are darker than peers."""
    return KINDS.get(row["kind"], style.PEER)


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["systems"]`: one mapping of medians and ratios for each queue."""
    figure, (left, right) = style.panels(1, 2, width_in=9.5, height_in=0.9 + 0.24 * len(data["systems"]))
    _ratios(left, data["systems"], "enqueue", "Bulk enqueue")
    _ratios(right, data["systems"], "drain", "Drain by one worker")
    return figure


def _ratios(axes: Any, rows: Sequence[Mapping[str, Any]], figure: str, title: str) -> None:
    """Bars of the rows that have the figure, the largest on top."""
    found = [row for row in rows if row[f"{figure}_of_raw"] is not None]
    found.sort(key=lambda row: -row[f"{figure}_of_raw"])
    end = max([MOST, *(row[f"{figure}_of_raw"] for row in found if row["kind"] != "limit")])
    bars = [
        parts.Bar(
            short_title(row),
            min(row[f"{figure}_of_raw"], end),
            f"{row[f'{figure}_of_raw']:.2f}{' (cut off)' if row[f'{figure}_of_raw'] > end else ''}",
            color_of(row),
        )
        for row in found
    ]
    parts.bars(axes, bars, title=title, x_label="ratio to raw redis-py, pipelines of 100", line=(1, ""))


def short_title(row: Mapping[str, Any]) -> str:
    """A limit's name without its explanation."""
    return "raw redis-py" if row["name"] == "raw" else str(row["title"])
