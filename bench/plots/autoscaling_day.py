"""Workers and missed deadlines over a simulated day, by policy for the number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

COLORS = {"deadlines": style.OURS, "pending": style.OTHER, "fixed": style.PEER, "mean": style.PEER_DARK}


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["day"]`: arrivals a second, and each policy's workers and misses by the hour."""
    found = data["day"]
    figure, (above, below) = style.panels(2, 1, width_in=9.0, height_in=4.6, sharex=True)
    first, last = found["hours"]
    arrivals = found["arrivals_per_s"]
    most = max(max(policy["ready"]) for policy in found["policies"])
    hours = [first + minute / 60 for minute in range(len(arrivals))]
    scaled = [rate / max(arrivals) * most for rate in arrivals]
    above.fill_between(hours, scaled, step="post", color=style.FAINT, label="arrivals, to scale")
    for policy in found["policies"]:
        color = COLORS[policy["name"]]
        hour = policy["hour"]
        label = f"{policy['title']}: {policy['worker_hours']:.0f} worker hours"
        above.plot(hour, policy["ready"], drawstyle="steps-post", color=color, linewidth=1.2, label=label)
        label = f"{policy['title']}: {policy['missed_percent']:.2f}% missed"
        below.plot(hour, policy["missed"], drawstyle="steps-post", color=color, linewidth=1.2, label=label)
    above.set(title="Workers that are ready", ylabel="workers")
    below.set(title="Missed deadlines so far", xlabel="hour of the day", ylabel="requests")
    below.set_xlim(first, last)
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        parts.legend(axes, "upper left")
    return figure
