"""Measure the CPU of a worker's front end beside bare AsyncLLM and vLLM's own server, with a simulated model."""

from __future__ import annotations

import sys

from bench.core.command import finish, parser
from bench.front_end import PARTS, run

EXAMPLES = """\
examples:
  python -m bench.front_end --quick              256 at once, 3 rounds, about 2 minutes; into build/bench/quick
  python -m bench.front_end                      full sizes, about 12 minutes; into bench/results
  python -m bench.front_end --only paced --quick --rounds 1 --against main   1,000 streams, by turns; about 1 minute
  python -m bench.front_end --only lags          through a gateway: lag from a token's step to its reader
  taskset -c 1 python -m bench.front_end         all of it on one core, beside other work
"""


def main() -> int:
    """Run, save, print."""
    words = parser("front_end", __doc__, EXAMPLES)
    words.add_argument("--rounds", type=int, metavar="N", help="how often everything is run")
    words.add_argument("--only", choices=PARTS, help="one part")
    words.add_argument("--against", default="", metavar="COMMIT", help="whose worker takes turns at the paced streams")
    args = words.parse_args()
    parts = (args.only,) if args.only else PARTS
    try:
        report = run(args.quick, args.rounds, parts=parts, against=args.against)
    except KeyboardInterrupt:
        return 130
    finish(report, args, whole=parts == PARTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
