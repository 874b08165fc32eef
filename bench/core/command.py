"""Common command line of all measurements: small or full sizes, the place of the report, and its printing."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

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
    console = Console()
    for table in report.tables:
        console.print(f"\n[bold]{table.title}[/bold]", highlight=False)
        console.print(Markdown(markdown(table)))
    console.print(Markdown(targets_markdown(report.targets)))
    print(f"written to {path}")
