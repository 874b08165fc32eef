"""Measure streamfleet beside other queues and raw limits: enqueue, drain, round trips and memory."""

from __future__ import annotations

import sys

from bench.broker import run
from bench.broker.systems import SYSTEMS
from bench.core.command import finish, parser

EXAMPLES = """\
examples:
  python -m bench.broker --quick                               small sizes, under 2 minutes; into build/bench/quick
  python -m bench.broker                                       full sizes, under 15 minutes; into bench/results
  python -m bench.broker --quick --only streamfleet,bullmq-node
  python -m bench.broker --server redis-7.0                    on that release instead of the newest found
  python -m bench.broker --list                                what is measured, and with which settings

The first run installs each peer into build/bench/peers: about a minute more, from PyPI and npm.
"""


def main() -> int:
    """Run, save, print; returns 2 if the command line names an unknown system or server."""
    known = parser("broker", __doc__, EXAMPLES)
    known.add_argument("--rounds", type=int, metavar="N", help="how often each system is measured")
    known.add_argument("--only", default="", metavar="NAMES", help="these systems, with commas between; see --list")
    known.add_argument("--server", default="", metavar="LABEL", help="release of Redis, such as redis-7.0")
    known.add_argument("--list", action="store_true", help="name the systems, and measure nothing")
    args = known.parse_args()
    if args.list:
        for system in SYSTEMS:
            print(f"{system.name:<14} {system.title}\n{'':<14} {system.settings}")
        return 0
    only = [name.strip() for name in args.only.split(",") if name.strip()]
    try:
        report = run(args.quick, args.rounds, only, args.server)
    except ValueError as error:
        known.error(str(error))
    except KeyboardInterrupt:
        return 130
    finish(report, args, whole=not only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
