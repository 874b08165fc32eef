"""Sizes of the measurement: full ones for docs/performance.md, small ones for a quick check, tiny ones for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Sizes of one measurement.

    Attributes:
        rounds: rounds of the costs, and of the cluster.
        batches: numbers of requests in one call.
        bodies: sizes in bytes of a request's body, and of its answer.
        calls: largest number of calls of each kind in a round.
        fleets: workers of each fleet.
        rate_per_s: requests per second for each fleet.
        run_ms: run time of the fleets' requests.
        settle_s: seconds before anything of a fleet is counted.
        look_s: seconds of counting, idle and under load.
        cluster_requests: requests through the cluster in a round.
    """

    rounds: int
    batches: tuple[int, ...]
    bodies: tuple[int, ...]
    calls: int
    fleets: tuple[int, ...]
    rate_per_s: float
    run_ms: int
    settle_s: float
    look_s: float
    cluster_requests: int


FULL = Sizes(
    rounds=5,
    batches=(1, 8, 64),
    bodies=(500, 4_096, 32_768),
    calls=192,
    fleets=(200, 500, 1_000),
    rate_per_s=50.0,
    run_ms=2_000,
    settle_s=4.0,
    look_s=12.0,
    cluster_requests=1_440,
)
QUICK = Sizes(
    rounds=2,
    batches=(1, 8, 64),
    bodies=(500, 4_096, 32_768),
    calls=96,
    fleets=(50, 200),
    rate_per_s=50.0,
    run_ms=2_000,
    settle_s=3.0,
    look_s=6.0,
    cluster_requests=480,
)
TINY = Sizes(
    rounds=1,
    batches=(1, 8),
    bodies=(500,),
    calls=16,
    fleets=(4,),
    rate_per_s=20.0,
    run_ms=200,
    settle_s=0.2,
    look_s=1.0,
    cluster_requests=240,
)
