"""Draws a dashboard as a picture from Prometheus's answers; needs matplotlib (`make setup-bench`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import plots
from monitoring.observe.prometheus import Prometheus
from monitoring.observe.questions import filled
from monitoring.panels.model import Dashboard, Panel

COLUMNS = 2
COLORS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#6E6E6E", "#A6A6A6")
Line = tuple[str, Sequence[float], Sequence[float]]


def draw(server: Prometheus, dashboard: Dashboard, start: float, end: float, path: Path) -> None:
    """Draw the time series of a dashboard, epoch seconds `start` to `end`, into an SVG."""
    panels = [panel for panel in dashboard.panels if panel.kind == "timeseries" and not panel.outside]
    rows = math.ceil(len(panels) / COLUMNS)
    with plots.rules():
        figure, grid = plots.panels(rows, COLUMNS, width_in=10.0, height_in=2.1 * rows)
        axes = [each for row in grid for each in row]
        for panel, place in zip(panels, axes, strict=False):
            _panel(place, panel, lines(server, panel, start, end))
        for place in axes[len(panels) :]:
            place.remove()
        figure.suptitle(dashboard.title)
        plots.save(figure, path, "drawn by python -m monitoring.observe --picture")


def lines(server: Prometheus, panel: Panel, start: float, end: float) -> list[Line]:
    """Lines of a panel: name, seconds from the start, and values of each series."""
    found: list[Line] = []
    for query, legend in panel.queries:
        for series in server.query_range(filled(query), start, end):
            points = [(at - start, float(value)) for at, value in series["values"] if value != "NaN"]
            name = named(legend, series["metric"]) or panel.title
            found.append((name, [at for at, _ in points], [value for _, value in points]))
    return found


def named(legend: str, labels: Mapping[str, str]) -> str:
    """A legend with the series' labels in place of ``{{label}}``."""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), legend)


def _panel(axes: Any, panel: Panel, found: Sequence[Line]) -> None:
    for (name, seconds, values), color in zip(found, COLORS, strict=False):
        axes.plot(seconds, values, color=color, linewidth=1.2, label=name)
    axes.set_title(panel.title)
    axes.set_ylabel({"s": "seconds", "reqps": "a second"}.get(panel.unit, ""))
    axes.set_xlabel("s")
    if len(found) > 1:
        axes.legend(loc="upper left", frameon=False, fontsize=6, ncols=2)
