"""Common style of all pictures, and their files, which are identical whenever and wherever they are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.core.series import thinned

# From the palette of Okabe and Ito, which is safe for all colour vision; peers are grey.
OURS = "#0072B2"
OTHER = "#D55E00"
THIRD = "#009E73"
PEER = "#A6A6A6"
PEER_DARK = "#6E6E6E"
INK = "#222222"
FAINT = "#DDDDDD"


_RULES = {
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


@contextmanager
def rules() -> Iterator[None]:
    """Context with the rules above and without the machine's own configuration, for drawing and saving."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RULES)
        yield


def panels(
    rows: int = 1, columns: int = 1, *, width_in: float = 8.0, height_in: float = 3.2, **more: Any
) -> tuple[Figure, Any]:
    """A figure and its axes: one, or an array of them as `Figure.subplots` gives them."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure, figure.subplots(rows, columns, **more)


def save(figure: Figure, path: Path, fingerprint: str) -> None:
    """Write a figure as SVG, without dates, with the fingerprint of its sources."""
    metadata = {"Date": None, "Creator": "bench.plots", "Description": fingerprint}
    figure.savefig(path, format="svg", metadata=metadata)
    # matplotlib leaves spaces at line ends, which git complains about, and writes millionths of a point.
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", path.read_text(encoding="utf-8"))
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")


def cumulative(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The share of values (0 to 1) up to each value, for a step line."""
    ordered = sorted(values)
    shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
    points = thinned(list(zip(ordered, shares, strict=True)), 400)
    return [point[0] for point in points], [point[1] for point in points]
