"""One Redis server's capacity: a request's cost by verb, real fleets of up to 1,000 workers, queues over a cluster.

A shard is one Redis server, which executes commands on one core. All costs are the server's own count of its CPU time,
so that other work on the machine hardly changes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.core.parts import Part, Parts, Say
from bench.shards import cluster, costs, fleets
from bench.shards.sizes import FULL, QUICK, Sizes


def _sized(measure: Callable[[Sizes, Say], Part], quick: bool, say: Say) -> Part:
    return measure(QUICK if quick else FULL, say)


PARTS: Parts = {
    "costs": partial(_sized, costs.measure),
    "fleets": partial(_sized, fleets.measure),
    "cluster": partial(_sized, cluster.measure),
}
