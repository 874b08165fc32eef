"""Sizes of the run: full sizes for docs/performance.md, small ones for a quick check."""

from __future__ import annotations

from dataclasses import dataclass

from bench.broker.systems import System

UNDIVIDED = ("ours", "node")
"""Kinds that drain all their jobs at every size: Node's compiler needs most of the small number, and the ratio to it
compares like with like."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run.

    Attributes:
        rounds: number of times that each system is measured.
        divisor: a system's own number of jobs is divided by it, except the drains that UNDIVIDED names.
        raw_jobs: jobs that raw redis-py enqueues and drains next to each system.
        calls: largest number of round trips; streamfleet makes all of them.
        calls_s: seconds after which other systems begin no further round trip; but they make five at least.
        peers_rounds: number of rounds in which the round trips of peers are measured.
    """

    rounds: int
    divisor: int
    raw_jobs: int
    calls: int
    calls_s: float
    peers_rounds: int

    def enqueued(self, system: System) -> int:
        """Jobs that a system enqueues in bulk."""
        return system.jobs[0] // self.divisor

    def drained(self, system: System) -> int:
        """Jobs that a system drains."""
        return system.jobs[1] // (1 if system.kind in UNDIVIDED else self.divisor)


FULL_SIZES = Sizes(rounds=5, divisor=1, raw_jobs=20_000, calls=1_000, calls_s=3.0, peers_rounds=5)
QUICK_SIZES = Sizes(rounds=1, divisor=4, raw_jobs=8_000, calls=1_000, calls_s=0.5, peers_rounds=1)
