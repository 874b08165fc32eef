"""Time to the first token of urgent requests on one engine, by the way to run them beside patient work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.coserving.cases import ALONE, EIGHTH, HALF, ORDER, RESERVE
from bench.plots import parts, style

COLORS = {
    ALONE: style.PEER,
    RESERVE: style.OURS,
    HALF: style.THIRD,
    EIGHTH: style.PEER_DARK,
    ORDER: style.OTHER,
}


def draw(data: Mapping[str, Any]) -> Any:
    """Draw the two loads of one worker in `data["cases"]`, or what there is: sorted times in ms."""
    cases = {name: case for name, case in data["cases"].items() if case["judges_first_token"]}
    chosen = [name for name in cases if name.startswith("1 worker")][:2] or list(cases)[:1]
    figure, panels = style.panels(1, len(chosen), width_in=1.6 + 4.0 * len(chosen), height_in=3.0, squeeze=False)
    for axes, name in zip(panels[0], chosen, strict=True):
        found = cases[name]["contenders"]
        lines = {
            contender: (found[contender]["first_ms_cdf"], color)
            for contender, color in COLORS.items()
            if contender in found and found[contender]["first_ms_cdf"]
        }
        parts.steps(axes, lines, title=name, x_label="ms from enqueueing to the first token, logarithmic")
    panels[0][-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=8)
    return figure
