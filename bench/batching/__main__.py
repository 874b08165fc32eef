"""Measure batching policies of the worker on real vLLM."""

from __future__ import annotations

import sys

from bench.batching import run
from bench.core.command import finish, parser

EXAMPLES = """\
examples:
  python -m bench.batching --quick       small sizes, about 2 minutes; into build/bench/quick
  python -m bench.batching               full sizes, about 11 minutes; into bench/results
  python -m bench.batching --rounds 5    in place of 2
"""


def main() -> int:
    """Run, save, print."""
    words = parser("batching", __doc__, EXAMPLES)
    words.add_argument("--rounds", type=int, metavar="N", help="how often everything is run")
    args = words.parse_args()
    try:
        report = run(args.quick, args.rounds)
    except KeyboardInterrupt:
        return 130
    finish(report, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
