"""Round trips of every queue one at a time, p50 to p99, with default and tuned settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style
from bench.plots.broker_throughput import color_of, short_title

WAYS = {"defaults": "", "tuned": ", tuned"}


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["systems"]`: medians of p50 and p99 in ms, default and tuned; the fastest on top."""
    rows = [
        parts.Span(
            short_title(system) + ("" if system["kind"] == "limit" else words),
            system[f"{way}_p50"],
            system[f"{way}_p99"],
            style.PEER_DARK if color_of(system) == style.PEER and way == "defaults" else color_of(system),
        )
        for system in data["systems"]
        for way, words in WAYS.items()
        if system[f"{way}_p50"] is not None and system[f"{way}_p99"] is not None
    ]
    rows.sort(key=lambda row: row.p50)
    figure, axes = style.panels(width_in=8.5, height_in=0.9 + 0.23 * len(rows))
    parts.spans(
        axes,
        rows,
        title="Round trip of one job",
        x_label="ms from enqueue to the result at the caller: p50 (dot) to p99, logarithmic",
        shown=parts.short,
    )
    return figure
