"""Measure what urgent requests wait, and what patient work loses, on engines that are full of patient work."""

from __future__ import annotations

import argparse
import sys

from bench.core.command import finish, parser
from bench.core.reports import FULL
from bench.coserving import run, tables
from bench.coserving.cases import GROUPS, USUAL, chosen

EXAMPLES = """\
examples:
  python -m bench.coserving --quick          small sizes, about 4 minutes; into build/bench/quick
  python -m bench.coserving                  full sizes, about 55 minutes; into bench/results
  python -m bench.coserving --only 8         eight workers only; the other cases of the last report stay
  python -m bench.coserving --only normal,behind-low
                                             the default lane as patient work, and behind low, about 30 minutes
  python -m bench.coserving --only vllm,vllm-normal
                                             one worker with real vLLM, about 30 minutes (make setup-vllm)
"""


def main() -> int:
    """Run, save, print; returns 1 if a claim is not kept at full size."""
    words = parser("coserving", __doc__, EXAMPLES)
    words.add_argument(
        "--only",
        type=_groups,
        default=USUAL,
        metavar="NAME,…",
        help=f"some of {', '.join(GROUPS)}: numbers of workers, or single cases (default: all but those of vLLM)",
    )
    words.add_argument("--rounds", type=int, metavar="N", help="how often everything is run")
    args = words.parse_args()
    folder = args.out or FULL
    earlier = None if args.quick else folder / "coserving.json"
    try:
        report = run(chosen(args.quick, args.only, args.rounds), quick=args.quick, earlier=earlier)
    except KeyboardInterrupt:
        return 130
    finish(report, args)
    kept = True
    for holds, line in tables.verdicts(report):
        print(f"{'ok' if holds else 'NOT OK':7}{line}")
        kept = kept and holds
    return 0 if kept or args.quick else 1


def _groups(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in GROUPS]:
        raise argparse.ArgumentTypeError(f"no such case: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
