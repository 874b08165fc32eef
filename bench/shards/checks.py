"""Compares the simulation with the measured fleets: the same workers, slots, load and lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.reports import Table
from bench.shards.costs import Costs
from bench.shards.fleets import LEASE_MS, SLOTS, Seen
from bench.shards.simulation import Load, simulate


@dataclass(frozen=True)
class Check:
    """One figure, measured and simulated."""

    workers: int
    what: str
    measured: float
    simulated: float

    @property
    def error_percent(self) -> float:
        """Error of the simulation, in per cent of the measured value; below 0 if it is too low."""
        return 100 * (self.simulated / self.measured - 1) if self.measured else 0.0


def checks(seen: Sequence[Seen], costs: Costs, beside: Costs, seconds: float) -> list[Check]:
    """CPU and script calls of every fleet, idle and under load.

    Args:
        seen: the measured fleets.
        costs: costs for bodies of the fleets' size.
        beside: the same beside workers and callers that have work to do.
        seconds: virtual time of each simulation.
    """
    found = []
    for fleet in seen:
        idle = simulate(Load(fleet.workers, SLOTS, 0.0, 0.0, LEASE_MS / 1000, fresh=True), costs, seconds)
        load = Load(fleet.workers, SLOTS, fleet.run_ms / 1000, fleet.rate_per_s, LEASE_MS / 1000, fresh=True)
        loaded = simulate(load, beside, seconds)
        found += [
            Check(fleet.workers, "script calls/s, idle", fleet.idle.calls_per_s, idle.scripts_per_s),
            Check(fleet.workers, "script calls/s, under load", fleet.loaded.calls_per_s, loaded.scripts_per_s),
            Check(fleet.workers, "% of a core, idle", fleet.idle.cpu_percent, idle.cpu_percent),
            Check(fleet.workers, "% of a core, under load", fleet.loaded.cpu_percent, loaded.cpu_percent),
        ]
    return found


def table(found: Sequence[Check]) -> Table:
    """A table of all checks."""
    rows = [
        {
            "workers": check.workers,
            "figure": check.what,
            "measured": check.measured,
            "simulated": check.simulated,
            "error, %": check.error_percent,
        }
        for check in found
    ]
    return Table("Checks: the simulation against the fleets measured", list(rows[0]), rows)


def worst_percent(found: Sequence[Check], beginning: str) -> float:
    """The largest error, in either direction, of figures whose names begin so."""
    return max(abs(check.error_percent) for check in found if check.what.startswith(beginning))
