"""Memory of a queued job in Redis, by queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style
from bench.plots.broker_throughput import color_of, short_title

TARGET_BYTES = 760


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["systems"]`: median bytes of a job; for streamfleet also of a staged one."""
    bars = [
        parts.Bar(short_title(system), system["bytes"], parts.short(system["bytes"]), color_of(system))
        for system in data["systems"]
        if system["bytes"] is not None
    ]
    bars += [
        parts.Bar(f"{system['title']}, staged", system["staged_bytes"], parts.short(system["staged_bytes"]), style.OURS)
        for system in data["systems"]
        if system["staged_bytes"] is not None
    ]
    bars.sort(key=lambda bar: bar.length)
    figure, axes = style.panels(width_in=7.5, height_in=0.9 + 0.24 * len(bars))
    title = "A queued job with 500 B of payload"
    parts.bars(axes, bars, title=title, x_label="bytes of Redis", line=(TARGET_BYTES, "target"))
    return figure
