"""A day of traffic at a hundred times its speed: arrivals, waiting requests, and late ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import MultipleLocator

from bench.plots import parts, style

HALF_A_DAY_H = 12
LANES = ("critical", "high", "normal", "low")


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["day"]`: the queue's depth over the hours, and arrivals, ends and misses in equal intervals."""
    found = data["day"]
    figure, (top, middle, bottom) = style.panels(
        3, 1, width_in=9.0, height_in=6.0, sharex=True, height_ratios=[1, 1.3, 0.6]
    )
    bins = found["bin_hour"]
    top.plot(bins, found["arrivals_per_s"], drawstyle="steps-post", color=style.PEER, linewidth=1.2, label="came")
    top.plot(bins, found["finished_per_s"], drawstyle="steps-post", color=style.OURS, linewidth=1.2, label="answered")
    top.set(title="Requests (times are the day's own)", ylabel="per s")
    top.set_ylim(bottom=0)
    parts.legend_above(top)
    present = [lane for lane in reversed(LANES) if lane in found["depth"]]
    middle.stackplot(
        found["hour"],
        [found["depth"][lane] for lane in present],
        colors=[style.LANES[lane] for lane in present],
        labels=present,
        linewidth=0,
    )
    middle.set(title="Outstanding, by lane", ylabel="requests")
    parts.legend_above(middle, reverse=True)
    bottom.fill_between(bins, found["missed_per_s"], step="post", color=style.OTHER, linewidth=0)
    bottom.set(title="Deadlines missed, by when the request came", xlabel="hour of the day", ylabel="per s")
    bottom.set_ylim(0, max(_highest(found["missed_per_s"]), 0.05))
    bottom.set_xlim(bins[0], max(bins[-1], found["hour"][-1]))
    if bins[-1] - bins[0] > HALF_A_DAY_H:
        bottom.xaxis.set_major_locator(MultipleLocator(3))
    return figure


def _highest(values: Sequence[float]) -> float:
    return max(values, default=0.0) * 1.1
