"""Share of each lane while the lanes above it never run empty, beside its guaranteed share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

LANES = ("high", "normal", "low")


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["starvation"]`: per cent of each lane, over all picks and by windows of picks."""
    found = data["starvation"]
    figure, (left, right) = style.panels(1, 2, width_in=9.0, height_in=2.7, width_ratios=[1.3, 1])
    _over_all(left, found)
    _by_window(right, found)
    return figure


def _over_all(axes: Any, found: Mapping[str, Any]) -> None:
    """One bar for each load, with the lanes in a row."""
    loads = list(found["percent"])
    for place, load in enumerate(loads):
        start = 0.0
        for lane in LANES:
            percent = found["percent"][load].get(lane, 0.0)
            label = _named(lane, found["guaranteed_percent"]) if place == 0 else None
            axes.barh(place, percent, left=start, color=style.LANES[lane], height=0.6, edgecolor="white", label=label)
            start += percent
            # The last one is too narrow for its figure.
            at, aligned = (start + 1, "left") if lane == LANES[-1] else (start - percent / 2, "center")
            color = "white" if lane == "normal" else style.INK
            axes.text(at, place, f"{percent:.1f}%", ha=aligned, va="center", fontsize=8, color=color)
    axes.set_yticks(range(len(loads)), [load.replace(", ", ",\n") for load in loads])
    axes.set_ylim(len(loads) - 0.5, -0.5)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set(title="Picks of each lane (guaranteed)", xlabel="% of all picks")
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    parts.legend_above(axes)


def _by_window(axes: Any, found: Mapping[str, Any]) -> None:
    window = found["window_picks"]
    for (load, lanes), color in zip(found["percent_by_window"].items(), (style.OURS, style.OTHER), strict=False):
        low = lanes["low"]
        axes.plot(
            [(index + 1) * window / 1000 for index in range(len(low))],
            low,
            color=color,
            marker=".",
            label=load.partition(",")[0],
        )
    wanted = found["guaranteed_percent"]["low"]
    axes.axhline(wanted, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set(title=f"low, in every {window:,} picks", xlabel="thousand picks", ylabel="% of the picks")
    axes.set_ylim(0, wanted * 2)
    axes.set_xlim(left=0)
    parts.legend_above(axes)


def _named(lane: str, guaranteed: Mapping[str, float]) -> str:
    return f"{lane} ({guaranteed[lane]:g}%)" if lane in guaranteed else lane
