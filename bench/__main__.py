"""Lists all measurements, each with its command, and the targets of the saved reports."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from bench.core.reports import FULL
from bench.overview import lines, shown_lines
from bench.saved import BENCHMARKS, BadReport, command, read_reports

EXAMPLES = """\
examples:
  python -m bench                              the results of full size, which docs/performance.md shows
  python -m bench --results build/bench/quick  those of the last `make bench-quick`
  python -m bench.broker --help                one measurement; also engine, goodput, shards
"""


def main() -> int:
    """Print the targets of the saved reports."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=FULL, metavar="DIR", help="folder of reports (default: bench/results)"
    )
    folder = parser.parse_args().results
    try:
        reports = read_reports(folder)
    except BadReport as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if reports:
        Console().print(shown_lines([line for report, _ in reports.values() for line in lines(report)]))
    for name in BENCHMARKS:
        made = f"measured on {reports[name][0].made}" if name in reports else "not measured yet"
        print(f"{name}: {made} ({command(name)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
