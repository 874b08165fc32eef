"""Continuous batching beside windows on answers of mixed length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

COLORS = {"continuous": style.OURS, "window": style.PEER_DARK}


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["policies"]`: figures of each policy, and the number of requests in the engine over time."""
    found = data["policies"]
    figure, (left, middle, right) = style.panels(1, 3, width_in=9.5, height_in=2.5, width_ratios=[1, 1, 1.7])
    _bars(left, found["figures"], "tokens_per_s", "Throughput", "output tokens per s")
    _bars(middle, found["figures"], "total_ms_p50", "Enqueue to answer", "ms, median")
    for name, points in found["timeline"].items():
        x, y = [point[0] for point in points], [point[1] for point in points]
        right.plot(x, y, drawstyle="steps-mid", color=COLORS.get(name, style.PEER), linewidth=1.4, label=name)
    right.axhline(found["size"], color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    right.set(title="Requests in the engine", xlabel="s", ylabel=f"of {found['size']}")
    right.set_ylim(0, found["size"] * 1.1)
    right.set_xlim(left=0)
    parts.legend_above(right)
    return figure


def _bars(axes: Any, figures: Mapping[str, Mapping[str, float]], name: str, title: str, unit: str) -> None:
    bars = [
        parts.Bar(policy, each[name], parts.short(each[name]), COLORS.get(policy, style.PEER))
        for policy, each in figures.items()
    ]
    parts.bars(axes, bars, title=title, x_label=unit)
