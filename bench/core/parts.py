"""Measurements in parts: the result of a part, the type of its progress messages, and a command that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

from bench.core.command import finish, parser
from bench.core.machine import describe
from bench.core.reports import Report, Table, Target

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
    report = Report(name, datetime.now(UTC).date().isoformat(), describe(), {"quick": quick})
    for each in (each for each in parts if each in only):
        part = parts[each](quick, partial(_say, each))
        report.tables += part.tables
        report.targets += part.targets
        report.data[each] = dict(part.data)
        report.settings = {**report.settings, **part.settings}
    return report


def command(name: str, description: str | None, examples: str, parts: Parts, apart: Sequence[str] = ()) -> int:
    """Run the parts that the command line names, save the report, and print it. Returns the exit status.

    Args:
        name: the measurement's name.
        description, examples: for its help.
        parts: all of its parts.
        apart: names of parts that run only where they are asked for.
    """
    usual = [each for each in parts if each not in apart]
    known = parser(name, description, examples)
    more = f" (default: all but {', '.join(apart)})" if apart else ""
    known.add_argument("--only", default=",".join(usual), metavar="NAME,…", help=f"some of {', '.join(parts)}{more}")
    args = known.parse_args()
    names = tuple(args.only.split(","))
    if unknown := [each for each in names if each not in parts]:
        known.error(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}")
    finish(run(name, parts, args.quick, names), args, whole=set(usual) <= set(names))
    return 0


def _say(part: str, what: str) -> None:
    print(f"{part}: {what}", flush=True)
