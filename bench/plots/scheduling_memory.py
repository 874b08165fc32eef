"""Bytes of a queued request in Redis, by server and by the way it was added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

COLORS = (style.PEER_DARK, style.THIRD, style.OURS)


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["memory"]["bytes"]`: for each server and way, not staged (hollow) and staged (filled)."""
    found = data["memory"]["bytes"]
    figure, axes = style.panels(width_in=8.0, height_in=1.0 + 0.55 * len(found))
    for row, ways in enumerate(found.values()):
        for number, ((name, pair), color) in enumerate(zip(ways.items(), COLORS, strict=False)):
            place = row + (number - 1) * 0.25
            label = name if row == 0 else None
            axes.plot([pair["waiting"], pair["staged"]], [place, place], color=color, linewidth=1.4, alpha=0.5)
            axes.plot(pair["waiting"], place, marker="o", color=color, markerfacecolor="white", markersize=6)
            axes.plot(pair["staged"], place, marker="o", color=color, markersize=6, linestyle="", label=label)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set(
        title="A queued request of 500 B in Redis", xlabel="bytes (hollow: as it came; filled: also brought in order)"
    )
    axes.grid(visible=False, axis="y")
    parts.limit_line(axes, 760, "target")
    parts.legend_above(axes)
    return figure
