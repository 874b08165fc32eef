"""Cost and gain of an adaptive limit with a target latency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

NO_TARGET = "continuous"
SHADES = (style.THIRD, style.OURS, "#E69F00", style.OTHER)


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["adaptive"]`: figures by target in ms, and the number of requests in the engine over time."""
    found = data["adaptive"]
    targets = sorted((name for name in found["figures"] if name != NO_TARGET), key=float)
    colors = {NO_TARGET: style.PEER_DARK, **dict(zip(targets, SHADES, strict=False))}
    figure, (left, right) = style.panels(1, 2, width_in=9.5, height_in=3.0, width_ratios=[1.25, 1])
    _trade(left, found["figures"], targets, colors)
    for name in (NO_TARGET, *targets):
        points = found["timeline"][name]
        x, y = [point[0] for point in points], [point[1] for point in points]
        right.plot(x, y, drawstyle="steps-mid", color=colors[name], linewidth=1.4)
    right.set(title="Requests in the engine", xlabel="s", ylabel="requests")
    right.set_ylim(bottom=0)
    right.set_xlim(left=0)
    return figure


def _trade(
    axes: Any, figures: Mapping[str, Mapping[str, float]], targets: list[str], colors: Mapping[str, str]
) -> None:
    """Throughput over latency, with each target beside its result."""
    for name in (NO_TARGET, *targets):
        latency, rate = figures[name]["settled_run_ms_p50"], figures[name]["tokens_per_s"]
        axes.plot([latency], [rate], "o", color=colors[name], markersize=8, zorder=3, label=_named(name))
        if name != NO_TARGET:
            axes.plot([latency, float(name)], [rate, rate], color=colors[name], linewidth=1, linestyle=":")
            axes.plot([float(name)], [rate], "|", color=colors[name], markersize=16, markeredgewidth=2.5)
    axes.set(title="Throughput against latency (bars: targets)", ylabel="output tokens per s")
    axes.set_xlabel("ms in the engine, median, once settled")
    axes.set_xlim(0, axes.get_xlim()[1] * 1.08)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    parts.legend_above(axes)


def _named(name: str) -> str:
    return "no target" if name == NO_TARGET else f"{parts.short(float(name))} ms"
