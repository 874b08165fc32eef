"""Failovers while work runs, with figures: `python -m tests.ha sentinel` and `python -m tests.ha cluster`.

`python -m tests.ha wait` measures what waiting for replicas costs.

The last line has the figures of all rounds. The exit status is 1 when something was lost that WAIT was to keep, or that
no failover can explain.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import structlog

from tests.ha.nodes import server_binary
from tests.ha.rounds import Tally, cluster_rounds, sentinel_rounds
from tests.ha.wait_cost import wait_cost


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.ha", description=__doc__)
    parser.add_argument("deployment", choices=["sentinel", "cluster", "wait"])
    parser.add_argument("--rounds", type=int, default=3, help="failovers of each kind, or measurements (3)")
    parser.add_argument("--server", default="", help="release, for example redis-7.0; the newest without")
    parser.add_argument("--cut", type=float, default=0.5, help="seconds without replication before a kill (0.5)")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    if given.deployment == "wait":
        print(asyncio.run(wait_cost(server_binary(given.server), given.rounds)), flush=True)
        return 0
    rounds = sentinel_rounds if given.deployment == "sentinel" else cluster_rounds
    tally: Tally = asyncio.run(rounds(server_binary(given.server), given.rounds, given.cut))
    print(f"{given.deployment} {tally.line()}", flush=True)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
