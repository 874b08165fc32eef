"""Waits of critical requests behind a deep backlog: their distribution, beside one step of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.core.rounds import percentile
from bench.plots import parts, style

TARGET_MS = 10


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["inversion"]`: sorted waits and steps in ms, and a step by the engine's profile."""
    found = data["inversion"]
    step_ms, waits = found["step_ms"], found["cdf_ms"]
    figure, axes = style.panels(width_in=7.0, height_in=3.0)
    lines = {
        "a step of the engine meanwhile": (waits["step"], style.PEER),
        "enqueued to started": (waits["start"], style.OURS),
    }
    # The longest one, of a step that the machine interrupted, would squeeze all the others into a corner.
    most = 1.2 * max(step_ms + TARGET_MS, *(percentile(values, 0.99) for values, _ in lines.values()))
    title = "A critical request behind a backlog of low ones"
    parts.steps(axes, lines, title=title, x_label="ms (the last hundredth may lie beyond)", most=most)
    parts.limit_line(axes, step_ms, "one step by profile")
    parts.limit_line(axes, step_ms + TARGET_MS, "target for p99", 0.16)
    parts.legend(axes, "lower right")
    return figure
