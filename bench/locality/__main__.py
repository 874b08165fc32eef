"""Measure where requests of sessions run, and compare it with the targets."""

from __future__ import annotations

import sys

from bench.core.command import finish, parser
from bench.locality import PARTS, run

EXAMPLES = """\
examples:
  python -m bench.locality --quick                     small sizes, about four minutes; into build/bench/quick
  python -m bench.locality                             full sizes, about twenty minutes; into bench/results
  python -m bench.locality --only routing,hot
"""


def main() -> int:
    """Run, save, print."""
    known = parser("locality", __doc__, EXAMPLES)
    known.add_argument("--only", default=",".join(PARTS), metavar="NAME,…", help=f"some of {', '.join(PARTS)}")
    args = known.parse_args()
    names = tuple(args.only.split(","))
    if unknown := [name for name in names if name not in PARTS]:
        known.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    finish(run(args.quick, names), args, whole=len(names) == len(PARTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
