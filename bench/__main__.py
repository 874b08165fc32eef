"""Lists all measurements, each with its command, and the targets of the saved reports."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.core.reports import FULL
from bench.core.tables import targets_markdown
from bench.saved import BENCHMARKS, BadReport, command, read_reports, targets

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
    try:
        reports = read_reports(parser.parse_args().results)
    except BadReport as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if reports:
        print(targets_markdown(targets(report for report, _ in reports.values())))
    for name in BENCHMARKS:
        made = f"measured on {reports[name][0].made}" if name in reports else "not measured yet"
        print(f"{name}: {made} ({command(name)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
