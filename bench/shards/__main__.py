"""Measure the capacity of one shard, and simulate the needs of 1,000 and 10,000 workers."""

from __future__ import annotations

import argparse
import sys

from bench.core.command import finish, parser
from bench.shards import PARTS, run
from bench.shards.sizes import FULL, QUICK

EXAMPLES = """\
examples:
  python -m bench.shards --quick            small sizes, under 2 minutes; into build/bench/quick
  python -m bench.shards                    full sizes, about 5 minutes; into bench/results
  python -m bench.shards --only cluster     into build/bench/partial
  python -m bench.shards.page               write the tables of docs/scaling.md from bench/results
"""


def main() -> int:
    """Run, save, print."""
    args = arguments()
    try:
        report = run(QUICK if args.quick else FULL, args.only, quick=args.quick)
    except KeyboardInterrupt:
        return 130
    finish(report, args, whole=len(args.only) == len(PARTS))
    return 0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    known = parser("shards", __doc__, EXAMPLES)
    known.add_argument(
        "--only", type=_parts, default=PARTS, metavar="NAME,…", help=f"some of {', '.join(PARTS)}; fleets needs costs"
    )
    return known.parse_args(words)


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if "fleets" in names and "costs" not in names:
        raise argparse.ArgumentTypeError("fleets are held against what calls cost: write costs,fleets")
    return names


if __name__ == "__main__":
    sys.exit(main())
