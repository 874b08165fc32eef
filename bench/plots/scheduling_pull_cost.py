"""Server time of a pull at different depths of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

COLORS = (style.OURS, style.THIRD, style.OTHER)


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["pull_cost"]`: µs of pulls by depth and by number of requests; µs of staging an entry by depth."""
    found = data["pull_cost"]
    figure, axes = style.panels(width_in=7.0, height_in=3.2)
    depths = list(found["pull_us_cdf"])
    x = [int(depth) for depth in depths]
    sizes = list(found["pull_us_cdf"][depths[0]])
    ends = []
    for wanted, color in zip(sizes, COLORS, strict=False):
        costs = [middle(found["pull_us_cdf"][depth][wanted]) for depth in depths]
        axes.plot(x, costs, color=color, marker="o")
        ends.append(parts.End(x[-1], costs[-1], f"a pull of {wanted}: {found['ratios'][wanted]:.2f}x", color))
    staging = [found["staging_us"][depth] for depth in depths]
    axes.plot(x, staging, color=style.PEER_DARK, marker="o", linestyle="--")
    ends.append(parts.End(x[-1], staging[-1], "staging one", style.PEER_DARK))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(x[0] * 0.8, x[-1] * 1.2)
    axes.set_xticks(x, [f"{depth:,}" for depth in x])
    axes.set_xticks([], minor=True)
    axes.set_ylim(min(staging) / 2, axes.get_ylim()[1] * 1.4)
    parts.plain_ticks(axes.yaxis)
    axes.set(
        title="Server time by depth of the queue, and the deepest against the shallowest",
        xlabel="requests queued",
        ylabel="median µs, logarithmic",
    )
    parts.name_ends(axes, ends)
    return figure


def middle(values: list[float]) -> float:
    """The median of sorted values."""
    return values[(len(values) - 1) // 2]
