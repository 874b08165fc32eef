"""Drawing functions that several pictures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.plots import style


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its length, the text at its end, and its colour."""

    name: str
    length: float
    label: str
    color: str = style.PEER


def bars(axes: Any, found: Sequence[Bar], *, title: str, x_label: str, line: tuple[float, str] | None = None) -> None:
    """Horizontal bars from zero, the first on top, each with its figure at its end.

    Args:
        axes: axes to draw on.
        found: the bars.
        title, x_label: texts of the axes.
        line: position and name of a limit beside the bars.
    """
    places = list(range(len(found)))
    axes.barh(places, [bar.length for bar in found], color=[bar.color for bar in found], height=0.72)
    longest = max([bar.length for bar in found] + ([line[0]] if line else []))
    for place, bar in zip(places, found, strict=True):
        weight = "bold" if bar.color == style.OURS else "normal"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
        axes.text(bar.length + longest * 0.015, place, bar.label, va="center", fontsize=8, fontweight=weight, bbox=box)
    axes.set_yticks(places, [bar.name for bar in found])
    emphasise(axes, [bar.color == style.OURS for bar in found])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * (1.1 + 0.018 * max(len(bar.label) for bar in found)))
    axes.set_title(title, pad=18 if line else None)
    axes.set_xlabel(x_label)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    if line:
        axes.axvline(line[0], color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            line[1], (line[0], 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=7.5,
        )  # fmt: skip


def emphasise(axes: Any, bold: Sequence[bool]) -> None:
    """Print the names of our rows in bold."""
    for label, is_bold in zip(axes.get_yticklabels(), bold, strict=True):
        label.set_fontweight("bold" if is_bold else "normal")


def steps(axes: Any, lines: Mapping[str, tuple[Sequence[float], str]], *, title: str, x_label: str) -> None:
    """Step lines: the share of values that are not above x, on a logarithmic scale.

    Args:
        axes: axes to draw on.
        lines: name to sorted values and colour.
        title, x_label: texts of the axes.
    """
    for name, (values, color) in lines.items():
        x, y = style.cumulative(values)
        axes.step([x[0], *x], [0, *y], where="post", color=color, label=name)
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    axes.set_ylim(0, 1.005)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 0.9, 1], ["0", "25%", "50%", "75%", "90%", "100%"])
    axes.set(title=title, xlabel=x_label, ylabel="share of requests")


def plain_ticks(axis: Any) -> None:
    """0.1, 1, 10 instead of powers of ten on a logarithmic axis; on a short one 2 and 5 too."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 300 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
