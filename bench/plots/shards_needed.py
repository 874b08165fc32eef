"""Shards that a fleet needs, by its size and its kind of traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

COLORS = (style.PEER, style.THIRD, style.OURS, style.OTHER, style.PEER_DARK)


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["needs"]`: workers and shards of each kind of traffic."""
    figure, axes = style.panels(width_in=7.5, height_in=3.6)
    ends = []
    for row, color in zip(data["needs"].values(), COLORS, strict=False):
        axes.plot(row["workers"], row["shards"], color=color, marker="o", markersize=4)
        ends.append(parts.End(row["workers"][-1], row["shards"][-1], f"{row['title']}: {row['shards'][-1]}", color))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(
        title="Shards for a fleet, each at half of its core or less (64 slots a worker, 80% busy)",
        xlabel="workers",
        ylabel="shards",
    )
    parts.plain_ticks(axes.xaxis)
    parts.plain_ticks(axes.yaxis)
    axes.set_ylim(0.8, axes.get_ylim()[1] * 1.5)
    parts.room_right(axes, 0.45)
    parts.name_ends(axes, ends)
    return figure
