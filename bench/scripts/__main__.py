"""Redis's CPU of each verb, with this checkout's scripts beside those of another commit, by turns."""

from __future__ import annotations

import subprocess
import sys

from bench.core.command import finish, parser
from bench.scripts import FLEET, ROWS, Sizes, run

EXAMPLES = """\
examples:
  python -m bench.scripts --against HEAD~1                  30 pairs of each call; into build/bench/partial
  python -m bench.scripts --against HEAD --only pull,renew  calls whose names begin so
  python -m bench.scripts --against HEAD --only fleet --pairs 6     a request in a fleet of 200 workers
  python -m bench.scripts --against HEAD --quick            whether it runs; says nothing about time
"""
QUICK = Sizes(500, 2, 1, 8, 1.0)


def main(words: list[str] | None = None) -> int:
    """Run, save, print. Returns 130 if interrupted, git's status if it does not know the commit."""
    known = parser("scripts", __doc__, EXAMPLES)
    known.add_argument("--against", required=True, metavar="COMMIT", help="commit whose scripts stand beside these")
    known.add_argument("--pairs", type=int, default=30, help="pairs of samples, in sixes (default: %(default)s)")
    known.add_argument("--depth", type=int, default=Sizes.depth, help="waiting requests (default: %(default)s)")
    known.add_argument("--most", type=float, default=1.03, help="largest ratio of medians (default: %(default)s)")
    known.add_argument(
        "--only", default="", metavar="CALL,…", help="calls whose names begin so (default: all, no fleet)"
    )
    args = known.parse_args(words)
    named = [row for row in ROWS if row.name.startswith(tuple(args.only.split(",")))]
    rows = [row for row in named if args.only or row.verb != FLEET]
    if not rows:
        known.error(f"--only {args.only}: there are {'; '.join(row.name for row in ROWS)}")
    sizes = QUICK if args.quick else Sizes(args.depth, -(-args.pairs // Sizes.starts))
    try:
        report = run(args.against, sizes, rows, args.most)
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    finish(report, args, whole=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
