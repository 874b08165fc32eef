"""Measure how requests are ordered, shared out and picked up, and compare it with the targets."""

from __future__ import annotations

import argparse
import sys

from bench.core.command import finish, parser
from bench.scheduling import PARTS, run

EXAMPLES = """\
examples:
  python -m bench.scheduling --quick                   small sizes, about 3 minutes; into build/bench/quick
  python -m bench.scheduling                           full sizes, about 25 minutes, 15 of them a day of traffic at
                                                       100 times its speed; into bench/results
  python -m bench.scheduling --hours 8-20              only that part of the day
  python -m bench.scheduling --quick --only pickup,pull_cost
"""


def main() -> int:
    """Run, save, print."""
    args = arguments()
    try:
        report = run(args.quick, args.only, args.hours)
    except KeyboardInterrupt:
        return 130
    finish(report, args, whole=len(args.only) == len(PARTS) and args.hours is None)
    return 0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    known = parser("scheduling", __doc__, EXAMPLES)
    known.add_argument(
        "--only",
        type=_parts,
        default=tuple(PARTS),
        metavar="NAME,…",
        help=f"some of {', '.join(PARTS)}; the report has no others",
    )
    known.add_argument("--hours", type=_hours, metavar="FROM-TO", help="hours of the day to replay, such as 8-20")
    return known.parse_args(words)


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return names


def _hours(text: str) -> tuple[float, float]:
    first, _, last = text.partition("-")
    try:
        hours = float(first), float(last)
    except ValueError:
        raise argparse.ArgumentTypeError(f"give two hours such as 8-20, not {text!r}") from None
    if not 0 <= hours[0] < hours[1] <= 24:
        raise argparse.ArgumentTypeError(f"give two hours from 0 to 24, the later one last, not {text!r}")
    return hours


if __name__ == "__main__":
    sys.exit(main())
