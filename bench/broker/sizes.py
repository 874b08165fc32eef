"""How much is measured: full sizes for docs/performance.md, small ones to see whether all is well."""

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
        rounds: how often each system is measured.
        divisor: jobs are so many times fewer than a system's own numbers, but for drains that UNDIVIDED names.
        raw_jobs: enqueued and drained by raw redis-py next to each system.
        calls: most round trips; streamfleet makes all of them.
        calls_s: for others no further one begins after so many seconds; but five are made at least.
        peers_rounds: in how many of the rounds the round trips of peers are measured.
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
