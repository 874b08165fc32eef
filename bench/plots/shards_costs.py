"""Server CPU of a request by verb, by the number of requests in a call, and by their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.plots import parts, style

COLORS = {
    "enqueue": style.THIRD,
    "pull": style.OURS,
    "renew": style.PEER,
    "complete": style.OTHER,
    "results": style.PEER_DARK,
}


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["costs"]["requests"]`: rounds by case, named "<bytes> B by <requests in a call>"."""
    found = data["costs"]["requests"]
    cases = [
        (int(name.split()[0]), int(name.split()[-1]), rounds) for name, rounds in found.items() if " B by " in name
    ]
    bodies, batches = sorted({body for body, _, _ in cases}), sorted({batch for _, batch, _ in cases})
    figure, (left, right) = style.panels(1, 2, width_in=9.5, height_in=2.6)
    by_batch = [(f"{batch} in a call", rounds) for body, batch, rounds in cases if body == bodies[0]]
    by_body = [(f"{body:,} B", rounds) for body, batch, rounds in cases if batch == batches[0]]
    _stacked(left, by_batch, f"A request of {bodies[0]:,} B, by calls")
    _stacked(right, by_body, f"A request in calls of {batches[0]}, by size")
    parts.legend_above(left)
    return figure


def _stacked(axes: Any, rows: Sequence[tuple[str, Sequence[Mapping[str, float]]]], title: str) -> None:
    """Bars of rows, one piece for each verb, with their sums at their ends."""
    ends = [0.0] * len(rows)
    places = list(range(len(rows)))
    for verb, color in COLORS.items():
        widths = [median(sample[f"{verb} us"] for sample in rounds) for _, rounds in rows]
        axes.barh(places, widths, left=ends, color=color, height=0.66, label=verb)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, end in zip(places, ends, strict=True):
        axes.text(end + max(ends) * 0.015, place, f"{parts.short(end)} µs", va="center", fontsize=8)
    axes.set_yticks(places, [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, max(ends) * 1.18)
    axes.set(title=title, xlabel="CPU of the server, µs a request")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
