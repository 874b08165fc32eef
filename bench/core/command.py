"""Common command line of all measurements: small or full sizes, some parts, the report's place and its printing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.core import judged, machine
from bench.core.reports import FULL, PARTIAL, QUICK, Report
from bench.core.tables import markdown, targets_markdown

_BEGAN = machine.cpu_ticks()  # each measurement is a process, and begins here


def parser(name: str, description: str | None, examples: str) -> argparse.ArgumentParser:
    """A parser with ``--quick`` and ``--out``."""
    made = argparse.ArgumentParser(
        prog=f"python -m bench.{name}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--quick", action="store_true", help="small sizes, to see whether all is well")
    made.add_argument("--out", type=Path, metavar="DIR", help="where the report goes")
    return made


def finish(report: Report, args: argparse.Namespace, *, whole: bool = True) -> None:
    """Save a report to the path of the command line, and print its tables and targets.

    Args:
        report: the report to save.
        args: arguments parsed by a `parser`.
        whole: true if no part was left out; a report with gaps must not replace a complete one.
    """
    report.machine = {**report.machine, "stolen_percent": machine.stolen_percent(_BEGAN, machine.cpu_ticks())}
    report.commit, report.sources = judged.commit(report.name), judged.digest(report.name)
    usual = QUICK if args.quick else FULL
    path = report.save(args.out or (usual if whole else PARTIAL))
    for table in report.tables:
        print(f"\n{table.title}\n{markdown(table)}")
    print(f"\n{targets_markdown(report.targets)}\nwritten to {path}")


def command(
    name: str,
    description: str | None,
    examples: str,
    run: Callable[[bool, Sequence[str]], Report],
    parts: Sequence[str] = (),
    apart: Sequence[str] = (),
) -> int:
    """Run the parts that the command line names, save the report, and print it. Returns the exit status.

    Args:
        name: the measurement's name.
        description, examples: for its help.
        run: measures, given true for small sizes, and names of parts.
        parts: names of all of its parts.
        apart: names of parts that run only where they are asked for.
    """
    usual = [each for each in parts if each not in apart]
    known = parser(name, description, examples)
    more = f" (default: all but {', '.join(apart)})" if apart else ""
    if parts:
        words = f"some of {', '.join(parts)}{more}"
        known.add_argument("--only", type=_names, default=usual, metavar="NAME,…", help=words)
    args = known.parse_args()
    names = args.only if parts else ()
    if unknown := [each for each in names if each not in parts]:
        known.error(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}")
    try:
        report = run(args.quick, names)
    except KeyboardInterrupt:
        return 130
    finish(report, args, whole=set(usual) <= set(names))
    return 0


def _names(text: str) -> list[str]:
    return text.split(",")
