"""Predict loads from a measured engine, run them, and print the error of the prediction."""

from __future__ import annotations

import sys

from bench.core.command import finish, parser
from bench.core.reports import FULL, QUICK
from bench.planning import ENGINES, run

EXAMPLES = """\
examples:
  python -m bench.planning --quick           three loads, about a minute; into build/bench/quick
  python -m bench.planning                   seven loads, about five minutes; into bench/results
  python -m bench.planning --engine vllm     two loads on real vLLM, about three minutes; into the same report
"""


def main() -> int:
    """Run, save, print."""
    known = parser("planning", __doc__, EXAMPLES)
    known.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="which engine (default: %(default)s)")
    known.add_argument("--seconds", type=float, metavar="S", help="how long each load comes, in place of 20")
    args = known.parse_args()
    folder = args.out or (QUICK if args.quick else FULL)
    try:
        report = run(args.quick, args.engine, folder / "planning.json", args.seconds)
    except KeyboardInterrupt:
        return 130
    finish(report, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
