"""Terminal and JSON output of a plan."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from streamfleet.common.durations import in_words
from streamfleet.operator.commands.fitted_table import FittedTable
from streamfleet.operator.commands.plain import one_line
from streamfleet.operator.plan.figures import Figures
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.operator.plan.size import Sized

HOURS_A_DAY = 24


def render(found: Sized, late: float, spare: int, basis: str) -> RenderableType:
    """Render the answer, and the figures that support it.

    Args:
        found: the fleet.
        late: share of requests that may be late, 0 to 1.
        spare: number of extra workers.
        basis: description of the simulation, one line.
    """
    return Group(Text(one_line(basis)), _table(found, late, spare), Text(answer(found, late, spare)))


def answer(found: Sized, late: float, spare: int) -> str:
    """The bottom line."""
    count = found.workers
    words = f"{count} worker{'s' * (count != 1)} keep{'s' * (count == 1)} late requests at or below {percent(late)}"
    total = count + spare
    if spare:
        words += f"; with {spare} to spare, {total}: {spare} of them may fail"
    return f"{words}. {total * HOURS_A_DAY} worker-hours a day."


def as_json_values(found: Sized, late: float, spare: int, basis: str) -> dict[str, Any]:
    """The plan as JSON values."""
    total = found.workers + spare
    return {
        "workers": found.workers,
        "spare": spare,
        "workers_with_spare": total,
        "worker_hours_a_day": total * HOURS_A_DAY,
        "late_at_most": late,
        "basis": basis,
        "fleets": [
            {name: None if value != value else value for name, value in asdict(each).items()}  # noqa: PLR0124 - NaN
            for each in found.looked_at
        ],
    }


def percent(share: float) -> str:
    """A share for people: ``0.5 %``."""
    return f"{share * 100:.3g} %"


def _table(found: Sized, late: float, spare: int) -> FittedTable:
    numbers = ("workers", "late", "wait p50", "wait p99", "answer p50", "answer p99", "slots used", "hours a day")
    table = FittedTable(*numbers, "verdict", right=numbers)
    for each in found.looked_at:
        style = "bold green" if each.workers == found.workers else "yellow" if each.late > late else ""
        table.add_row(*_cells(each), _note(each, found, late, spare), style=style)
    return table


def _cells(each: Figures) -> list[str]:
    return [
        str(each.workers),
        percent(each.late),
        _span(each.wait_p50_s),
        _span(each.wait_p99_s),
        _span(each.total_p50_s),
        _span(each.total_p99_s),
        f"{each.used * 100:.0f} %",
        str(each.workers * HOURS_A_DAY),
    ]


def _note(each: Figures, found: Sized, late: float, spare: int) -> str:
    if each.workers == found.workers:
        return "enough"
    if spare and each.workers == found.workers + spare:
        return f"{spare} to spare"
    return "too few" if each.late > late else ""


def _span(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{seconds:.1f} s" if 1 <= seconds < 60 else in_words(seconds)


def render_profile(found: EngineProfile) -> RenderableType:
    """Render a measured profile."""
    engine = found.engine
    numbers = ("requests at once", "step ms", "output tokens/s")
    table = FittedTable(*numbers, right=numbers)
    for together, per_s in engine.throughput:
        table.add_row(str(together), f"{together / per_s * 1000:.2f}", f"{per_s:,.0f}")
    error = found.measured.get("fit_error")
    words = f"{engine.prefill_s_per_token * 1000:.3g} ms for a prompt token; {found.pickup_ms:.1f} ms to the engine"
    if isinstance(error, float):
        words += f"; half of the waves are within {error * 100:.1f} % of the fit"
    return Group(Text(one_line(engine.name)), table, Text(words))
