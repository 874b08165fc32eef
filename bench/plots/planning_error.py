"""Predictions of a plan beside the observed results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.plots import parts, style

BAND = 0.25
ENGINES = {"simulated": ("simulated engine", style.OURS), "vllm": ("vLLM", style.OTHER)}
MARKS = {"total_p50_ms": ("median", "o"), "total_p99_ms": ("p99", "^")}
BASES = {"followed": ("arrivals known", True), "blind": ("rate known", False)}


def draw(data: Mapping[str, Any]) -> Any:
    """Draw `data["simulated"]`, and `data["vllm"]` if it was measured: predicted and observed figures, by load."""
    figure, (left, right) = style.panels(1, 2, width_in=9.5, height_in=3.9)
    found = {name: data[name]["loads"] for name in ENGINES if data.get(name)}
    _answers(left, found)
    _late(right, found)
    return figure


def _answers(axes: Any, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Time until the answer, predicted over observed, both on logarithmic scales."""
    seen = [load[basis][value] for loads in found.values() for load in loads for value in MARKS for basis in
            ("observed", *BASES)]  # fmt: skip
    low, high = min(seen) * 0.8, max(seen) * 1.25
    axes.fill_between([low, high], [low * (1 - BAND), high * (1 - BAND)], [low * (1 + BAND), high * (1 + BAND)],
                      color=style.FAINT, linewidth=0, label="within 25 %")  # fmt: skip
    axes.plot([low, high], [low, high], color=style.PEER_DARK, linewidth=1)
    for engine, loads in found.items():
        title, color = ENGINES[engine]
        for value, (word, mark) in MARKS.items():
            for basis, (known, filled) in BASES.items():
                _points(axes, loads, value, basis, mark, color, filled, f"{title}, {word}, {known}")
        for load in loads:
            axes.plot(
                [load["observed"]["total_p99_ms"]] * 2, load["blind_p99_ms"], color=color, linewidth=0.8, alpha=0.6
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    parts.plain_ticks(axes.xaxis)
    parts.plain_ticks(axes.yaxis)
    axes.set(title="Time until the answer", xlabel="observed, ms", ylabel="predicted, ms")
    axes.legend(loc="upper left", frameon=False, fontsize=7)


def _late(axes: Any, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Share of late requests, predicted over observed."""
    seen = [load[basis]["late_percent"] for loads in found.values() for load in loads for basis in ("observed", *BASES)]
    most = max(5.0, *seen) * 1.1
    axes.plot([0, most], [0, most], color=style.PEER_DARK, linewidth=1)
    for engine, loads in found.items():
        for basis, (_, filled) in BASES.items():
            _points(axes, loads, "late_percent", basis, "s", ENGINES[engine][1], filled, "")
    axes.set_xlim(-most * 0.03, most)
    axes.set_ylim(-most * 0.03, most)
    axes.set(title="Late requests", xlabel="observed, %", ylabel="predicted, %")


def _points(
    axes: Any,
    loads: Sequence[Mapping[str, Any]],
    value: str,
    basis: str,
    mark: str,
    color: str,
    filled: bool,
    label: str,
) -> None:
    x, y = [load["observed"][value] for load in loads], [load[basis][value] for load in loads]
    face = color if filled else "none"
    axes.plot(x, y, mark, markersize=6, markeredgecolor=color, markerfacecolor=face, zorder=3, label=label or None)
