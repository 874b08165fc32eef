"""Measure streamfleet beside other queues and raw limits: enqueue, drain, round trips and memory."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from bench.broker import run
from bench.broker.systems import SYSTEMS
from bench.core.reports import FULL, PARTIAL, QUICK, Report
from bench.core.tables import markdown, targets_markdown

"""Reports of some systems must not take the place of one that has all."""
EXAMPLES = """\
examples:
  python -m bench.broker --quick                               small sizes, under 3 minutes; into build/bench/quick
  python -m bench.broker                                       full sizes, under 25 minutes; into bench/results
  python -m bench.broker --quick --only streamfleet,bullmq-node
  python -m bench.broker --server redis-7.0                    on that release instead of the newest found
  python -m bench.broker --list                                what is measured, and with which settings

The first run installs each peer into build/bench/peers: about a minute more, from PyPI and npm.
"""


def main() -> int:
    """Run, save, print; 2 when the command line asks for what is not there."""
    parser, args = arguments()
    if args.list:
        for system in SYSTEMS:
            print(f"{system.name:<14} {system.title}\n{'':<14} {system.settings}")
        return 0
    only = [name.strip() for name in args.only.split(",") if name.strip()]
    try:
        report = run(args.quick, args.rounds, only, args.server)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    path = report.save(args.out or (PARTIAL if only else QUICK if args.quick else FULL))
    show(report)
    print(f"written to {path}")
    return 0


def arguments(words: list[str] | None = None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The parser, and what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.broker",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether all is well")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the report goes")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often each system is measured")
    parser.add_argument("--only", default="", metavar="NAMES", help="these systems, with commas between; see --list")
    parser.add_argument("--server", default="", metavar="LABEL", help="release of Redis, such as redis-7.0")
    parser.add_argument("--list", action="store_true", help="name the systems, and measure nothing")
    return parser, parser.parse_args(words)


def show(report: Report) -> None:
    """The table as it is, because it is wide; then the targets."""
    print(f"\n{markdown(report.tables[0])}\n\nSettings and versions of each are in the report, and with --list.\n")
    Console().print(Markdown(targets_markdown(report.targets)))


if __name__ == "__main__":
    sys.exit(main())
