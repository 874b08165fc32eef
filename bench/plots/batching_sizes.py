"""Throughput, latency and occupancy of the engine, by the number of requests at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.plots import parts, style


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["sizes"]`: one mapping of figures for each batch size, smallest first."""
    rows = data["sizes"]
    sizes = [row["size"] for row in rows]
    figure, (left, middle, right) = style.panels(1, 3, width_in=9.5, height_in=2.9)
    _line(left, sizes, _column(rows, "tokens_per_s"), style.OURS)
    left.set(title="Throughput", ylabel="output tokens per s")
    p50, p99 = _column(rows, "run_ms_p50"), _column(rows, "run_ms_p99")
    middle.fill_between(sizes, p50, p99, color=style.OTHER, alpha=0.15, linewidth=0)
    _line(middle, sizes, p99, style.OTHER, label="p99", linestyle="--")
    _line(middle, sizes, p50, style.OTHER, label="p50")
    middle.set(title="Time in the engine", ylabel="ms a request")
    parts.legend(middle, "upper left")
    _line(right, sizes, _column(rows, "tokens_a_step"), style.THIRD, label="tokens a step")
    _line(right, sizes, _column(rows, "running"), style.PEER_DARK, label="requests in it", linestyle="--")
    right.set(title="In the engine, mean", ylabel="requests, tokens")
    parts.legend(right, "upper left")
    for axes in (left, middle, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batch size")
    return figure


def _column(rows: Sequence[Mapping[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows]


def _line(axes: Any, x: Sequence[float], y: Sequence[float], color: str, **more: Any) -> None:
    axes.plot(x, y, color=color, marker="o", markersize=4, **more)
