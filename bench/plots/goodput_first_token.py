"""Time to the first token of urgent requests on full engines, by the way to run them beside patient work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.goodput.urgent import ALONE, ORDER, RESERVE, SPLIT
from bench.plots import parts, style

COLORS = {ALONE: style.PEER, RESERVE: style.OURS, SPLIT: style.THIRD, ORDER: style.OTHER}


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["urgent"]`: for each case, sorted times in ms of each contender."""
    cases = data["urgent"]
    figure, panels = style.panels(1, len(cases), width_in=1.6 + 4.0 * len(cases), height_in=3.0, squeeze=False)
    for axes, (name, found) in zip(panels[0], cases.items(), strict=True):
        lines = {contender: (found[contender], color) for contender, color in COLORS.items() if contender in found}
        parts.steps(axes, lines, title=name, x_label="ms from enqueueing to the first token, logarithmic")
    panels[0][-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=8)
    return figure
