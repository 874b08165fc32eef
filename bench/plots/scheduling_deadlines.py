"""Missed deadlines on one bursty trace: earliest deadline first beside first in, first out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

COLORS = {"EDF": style.OURS, "FIFO": style.PEER, "FIFO, callers cancel": style.PEER_DARK}


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["deadlines"]`: missed per cent of each way; arrivals and misses of each second."""
    found = data["deadlines"]
    figure, (left, right) = style.panels(1, 2, width_in=9.0, height_in=2.8, width_ratios=[1, 1.5])
    bars = [
        parts.Bar(way, percent, f"{parts.short(percent)}%", COLORS.get(way, style.PEER))
        for way, percent in found["missed_percent"].items()
    ]
    parts.bars(left, bars, title="Missed deadlines", x_label="% of all requests")
    _over_time(right, found)
    return figure


def _over_time(axes: Any, found: Mapping[str, Any]) -> None:
    arrivals = found["arrivals_per_s"]
    axes.fill_between(range(len(arrivals)), arrivals, step="post", color=style.FAINT, label="all requests")
    for way in ("FIFO", "EDF"):
        missed = found["missed_per_s"][way]
        padded = [*missed, *[0] * (len(arrivals) - len(missed))]
        color = style.OTHER if way == "FIFO" else style.OURS
        axes.plot(
            range(len(padded)), padded, drawstyle="steps-post", color=color, linewidth=1.4, label=f"{way}: too late"
        )
    axes.set(title="When they came", xlabel="s of the trace", ylabel="requests per s")
    axes.set_xlim(0, len(arrivals))
    axes.set_ylim(bottom=0)
    parts.legend_above(axes)
