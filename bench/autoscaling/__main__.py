"""Simulate a day of bursty traffic: worker hours and missed deadlines of each way to choose the number of workers."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from bench.autoscaling.days import FULL_HOURS, QUICK_HOURS, report_of
from bench.core import machine
from bench.core.command import finish, parser
from bench.core.reports import Report

EXAMPLES = """\
examples:
  python -m bench.autoscaling --quick      four hours, under a minute; into build/bench/quick
  python -m bench.autoscaling              a whole day, some minutes; into bench/results
"""


def main() -> int:
    """Run, save, print."""
    args = parser("autoscaling", __doc__, EXAMPLES).parse_args()
    try:
        part = report_of(QUICK_HOURS if args.quick else FULL_HOURS)
    except KeyboardInterrupt:
        return 130
    made = datetime.now(UTC).date().isoformat()
    finish(Report("autoscaling", made, machine.describe(), part.settings, part.tables, part.targets, part.data), args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
