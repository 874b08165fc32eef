"""Measure batching policies of the worker on real vLLM."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from bench.batching import run
from bench.core.reports import FULL, QUICK, Report
from bench.core.tables import markdown, targets_markdown

EXAMPLES = """\
examples:
  python -m bench.batching --quick       small sizes, about 2 minutes; into build/bench/quick
  python -m bench.batching               full sizes, about 11 minutes; into bench/results
  python -m bench.batching --rounds 5    in place of 2
"""


def main() -> int:
    """Run, save, print."""
    args = arguments()
    try:
        report = run(args.quick, args.rounds)
    except KeyboardInterrupt:
        return 130
    path = report.save(args.out or (QUICK if args.quick else FULL))
    show(report)
    print(f"written to {path}")
    return 0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.batching",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether all is well")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the report goes")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often everything is run")
    return parser.parse_args(words)


def show(report: Report) -> None:
    """Tables, then targets."""
    console = Console()
    for table in report.tables:
        console.print(f"\n[bold]{table.title}[/bold]", highlight=False)
        console.print(Markdown(markdown(table)))
    console.print(Markdown(targets_markdown(report.targets)))


if __name__ == "__main__":
    sys.exit(main())
