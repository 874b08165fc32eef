"""Time to the first token and between tokens, by contender."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style
from bench.plots.engine_throughput import NAMES, color_of

FIGURES = {"first": "Time to first token", "between": "Time between tokens"}


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["contenders"]`: p50 and p99 in ms, of contenders that show their tokens."""
    figure, panels = style.panels(1, 2, width_in=9.0, height_in=2.2)
    for axes, (figure_name, title) in zip(panels, FIGURES.items(), strict=True):
        rows = [
            parts.Span(
                NAMES.get(name, name),
                figures[f"{figure_name}_ms_p50"],
                figures[f"{figure_name}_ms_p99"],
                style.OURS if color_of(name) == style.OURS else style.PEER_DARK,
            )
            for name, figures in data["contenders"].items()
            if f"{figure_name}_ms_p50" in figures
        ]
        parts.spans(axes, rows, title=title, x_label="ms, p50 (dot) to p99, logarithmic", shown=parts.short)
    return figure
