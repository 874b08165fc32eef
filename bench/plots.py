"""Pictures of docs/performance.md, each drawn from a saved report alone, in one style. Needs matplotlib.

The files are identical whenever and wherever they are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.core.rounds import thinned
from bench.goodput.urgent import ALONE, ORDER, RESERVE, SPLIT

# From the palette of Okabe and Ito, which is safe for all colour vision; peers are grey.
OURS, OTHER, THIRD, PEER, PEER_DARK = "#0072B2", "#D55E00", "#009E73", "#A6A6A6", "#6E6E6E"
INK, FAINT = "#222222", "#DDDDDD"
RULES = {
    "svg.fonttype": "none",  # text stays text, for search and screen readers
    "svg.hashsalt": "streamfleet",  # otherwise the ids inside differ from run to run
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.edgecolor": PEER_DARK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    # Viewers have light and dark pages, so the picture has a background of its own.
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.12,
}
COLORS = {ALONE: PEER, RESERVE: OURS, SPLIT: THIRD, ORDER: OTHER}
"""Colours of the ways that `goodput_first_token` compares."""


@contextmanager
def rules() -> Iterator[None]:
    """Context with the rules above and without the machine's own configuration, for drawing and saving."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RULES)
        yield


def panels(rows: int, columns: int, *, width_in: float, height_in: float, **more: Any) -> tuple[Figure, Any]:
    """A figure, and its axes as `Figure.subplots` gives them."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure, figure.subplots(rows, columns, **more)


def save(figure: Figure, path: Path, fingerprint: str) -> None:
    """Write a figure as SVG, without dates, with the fingerprint of its sources."""
    metadata = {"Date": None, "Creator": "bench.plots", "Description": fingerprint}
    figure.savefig(path, format="svg", metadata=metadata)
    # matplotlib leaves spaces at line ends, which git complains about, and writes millionths of a point.
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", path.read_text(encoding="utf-8"))
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")


def broker_throughput(data: Mapping[str, Any]) -> Figure:
    """Enqueue and drain of every queue, as ratios to raw redis-py measured beside it."""
    rows = data["systems"]
    figure, (left, right) = panels(1, 2, width_in=9.5, height_in=0.9 + 0.24 * len(rows))
    _ratios(left, rows, "enqueue_of_raw", "Bulk enqueue")
    _ratios(right, rows, "drain_of_raw", "Drain by one worker")
    return figure


def _ratios(axes: Any, rows: Sequence[Mapping[str, Any]], figure: str, title: str) -> None:
    """Horizontal bars of the rows that have the figure, the largest on top, each with its figure at its end."""
    found = sorted((row for row in rows if row[figure] is not None), key=lambda row: -float(row[figure]))
    places, longest = list(range(len(found))), max(1.0, *(row[figure] for row in found))
    colors = [{"ours": OURS, "limit": PEER_DARK}.get(row["kind"], PEER) for row in found]
    axes.barh(places, [row[figure] for row in found], color=colors, height=0.72)
    axes.set_yticks(places, [row["title"].partition(",")[0] for row in found])
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
    for place, row, label in zip(places, found, axes.get_yticklabels(), strict=True):
        weight = "bold" if row["kind"] == "ours" else "normal"
        at = row[figure] + longest * 0.015
        axes.text(at, place, f"{row[figure]:.2f}", va="center", fontsize=8, fontweight=weight, bbox=box)
        label.set_fontweight(weight)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.17)
    axes.set(title=title, xlabel="ratio to raw redis-py, pipelines of 100")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))


def goodput_first_token(data: Mapping[str, Any]) -> Figure:
    """Time to the first token of urgent requests on full engines, by the way to run them beside patient work."""
    cases = data["urgent"]
    figure, (row,) = panels(1, len(cases), width_in=1.6 + 4.0 * len(cases), height_in=3.0, squeeze=False)
    for axes, (name, found) in zip(row, cases.items(), strict=True):
        for contender, color in COLORS.items():
            if contender in found:
                values = thinned(sorted(found[contender]), 400)
                shares = [(index + 1) / len(values) for index in range(len(values))]
                axes.step([values[0], *values], [0, *shares], where="post", color=color, label=contender)
        axes.set_xscale("log")
        low, high = axes.xaxis.get_view_interval()
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 300 else (1.0,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(0, 1.005)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 0.9, 1], ["0", "25%", "50%", "75%", "90%", "100%"])
        axes.set(title=name, xlabel="ms from enqueueing to the first token, logarithmic", ylabel="share of requests")
    row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=8)
    return figure
