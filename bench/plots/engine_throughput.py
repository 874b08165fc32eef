"""Tokens a second of a worker fed from Redis beside bare vLLM and `vllm serve`, and CPU time of the front ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.plots import parts, style

OURS = "streamfleet"
NAMES = {
    "bare AsyncLLM.generate": "bare AsyncLLM",
    "vllm serve over HTTP": "vllm serve",
    "vllm serve over HTTP, streamed": "vllm serve,\nstreamed",
    "streamfleet worker, fed from Redis": "streamfleet",
}


def color_of(contender: str) -> str:
    """Returns the colour of a contender: ours is highlighted."""
    return style.OURS if contender.startswith(OURS) else style.PEER


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `contenders` (medians of each), `ratios`, `batches` (each one a dot), and `front_end`."""
    figure, (left, right) = style.panels(1, 2, width_in=9.0, height_in=2.7, width_ratios=[1.5, 1])
    contenders = data["contenders"]
    to_bare = {OURS: f" ({data['ratios']['to_bare']:.2f} of bare)"}
    bars = [
        parts.Bar(
            NAMES.get(name, name),
            figures["tokens_per_s"],
            parts.short(figures["tokens_per_s"]) + to_bare.get(NAMES.get(name, name), ""),
            color_of(name),
        )
        for name, figures in contenders.items()
    ]
    parts.bars(left, bars, title="All requests at once", x_label="output tokens per s (dots: each batch)")
    for place, name in enumerate(contenders):
        rates = [batch["tokens_per_s"] for batch in data["batches"][name]]
        left.plot(rates, [place + 0.24] * len(rates), ".", color=style.INK, markersize=3)
    _front_ends(right, data["front_end"])
    return figure


def _front_ends(axes: Any, front_end: Mapping[str, float]) -> None:
    idle = front_end["idle_s"] / front_end["seconds"] * 100
    bars = [
        parts.Bar(
            f"{front_end['rate_per_s']:g} requests/s",
            front_end["busy_percent"],
            _percent(front_end["busy_percent"]),
            style.OURS,
        ),
        parts.Bar("none", idle, _percent(idle)),
    ]
    title = "A worker without its engine"
    parts.bars(axes, bars, title=title, x_label="CPU time, % of one core", line=(5, "target"))


def _percent(value: float) -> str:
    return f"{value:.2g}%"
