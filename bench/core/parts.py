"""Measurements in parts: the result of a part, and the type of its progress messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from bench.core.reports import Report, Table, Target, new_report

Say: TypeAlias = Callable[[str], None]
"""Called with what is being done now, in a few words."""


@dataclass(frozen=True)
class Part:
    """Results of one part.

    Attributes:
        tables: for people.
        targets: targets of the part.
        data: series for plots, and samples.
        settings: sizes that decide the figures.
    """

    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    data: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


Parts: TypeAlias = Mapping[str, Callable[[bool, Say], Part]]
"""The parts of a measurement by name; each is called with true for small sizes, and with a `Say`."""


def run(name: str, parts: Parts, quick: bool, only: Sequence[str]) -> Report:
    """Run a measurement.

    Args:
        name: its name.
        parts: all of its parts.
        quick: small sizes.
        only: names of the parts to run.
    """
    report = new_report(name, {"quick": quick})
    for each in (each for each in parts if each in only):
        part = parts[each](quick, partial(_say, each))
        report.tables += part.tables
        report.targets += part.targets
        report.data[each] = dict(part.data)
        report.settings = {**report.settings, **part.settings}
    return report


def _say(part: str, what: str) -> None:
    print(f"{part}: {what}", flush=True)
