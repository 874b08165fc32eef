"""Pickup time of an idle fleet, and the cost of its idling, by the number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

SHADES = (style.PEER, style.PEER_DARK, style.OURS)


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["pickup"]`: sorted ms, and Redis's per cent of a core, by the number of idle workers."""
    found = data["pickup"]
    figure, (left, right) = style.panels(1, 2, width_in=9.0, height_in=3.0, width_ratios=[1.6, 1])
    fleets = list(found["pickup_ms_cdf"])
    colors = dict(zip(fleets, SHADES, strict=False))
    lines = {f"{count} idle": (found["pickup_ms_cdf"][count], colors[count]) for count in fleets}
    parts.steps(left, lines, title="Pickup by an idle fleet", x_label="ms from enqueue to the engine", log=True)
    parts.limit_line(left, 5, "target for p99 with 500")
    parts.legend(left, "center right")
    bars = [
        parts.Bar(f"{count} idle", percent, f"{percent:.2g}%", colors[count])
        for count, percent in found["redis_idle_percent"].items()
    ]
    parts.bars(right, bars, title="Redis while they idle", x_label="% of a core", line=(2, "target"))
    return figure
