"""Capacity of one shard, and shards that fleets need: searched by simulation, with half of a core as the limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.core.reports import Table
from bench.shards.costs import Costs
from bench.shards.simulation import Load, Outcome, simulate

MOST_PERCENT = 50.0
"""Of a shard's core: the rest is for bursts, for another shard's failover, and for whoever looks at it."""
BUSY = 0.8
"""Share of the fleet's slots that run something."""
SLOTS = 64
FLEETS = (1_000, 10_000)
FIRST_GUESS, MOST_GUESSES, MOST_STEP = 16, 12, 32.0
DEFAULT_MAXCLIENTS = 10_000
DAY_S, HOUR_S = 86_400, 3_600


@dataclass(frozen=True)
class Kind:
    """A kind of traffic.

    Attributes:
        title: its title.
        run_s: mean run time of a request; 0 for an idle fleet.
        together: requests that its producers enqueue in one call.
    """

    title: str
    run_s: float
    together: int = 1

    def load(self, workers: int, slots: int = SLOTS, lease_s: float = 10.0) -> Load:
        """Load of so many workers that are `BUSY`."""
        rate = BUSY * workers * slots / self.run_s if self.run_s else 0.0
        return Load(workers, slots, self.run_s, rate, lease_s, self.together)


KINDS: Mapping[str, Kind] = {
    "idle": Kind("idle", 0.0),
    "long": Kind("long answers, 60 s each", 60.0),
    "chat": Kind("chat, 10 s each", 10.0),
    "short": Kind("short answers, 2 s each", 2.0),
    "batch": Kind("batch files, 10 s each", 10.0, together=64),
}


@dataclass(frozen=True)
class Need:
    """Shards that a fleet needs.

    Attributes:
        workers: workers of the whole fleet.
        shards: queues, each on a master of its own.
        one: simulated outcome of one shard.
    """

    workers: int
    shards: int
    one: Outcome


def most_workers(kind: Kind, costs: Costs, seconds: float, **more: Any) -> tuple[int, Outcome]:
    """Most workers that one shard carries within `MOST_PERCENT`, to about 2 %, and its outcome then."""
    # Thousands of idle workers give in a short time the same precision as dozens of busy ones in a long time.
    counted_s = seconds if kind.run_s else seconds / 4
    return largest(lambda workers: simulate(kind.load(workers, **more), costs, counted_s))


def largest(run: Callable[[int], Outcome]) -> tuple[int, Outcome]:
    """Largest number within `MOST_PERCENT`, to about 3 %, if CPU time grows about as the number does."""
    number, outcome = FIRST_GUESS, run(FIRST_GUESS)
    for _ in range(MOST_GUESSES):
        better = max(1, int(number * min(MOST_STEP, 0.985 * MOST_PERCENT / outcome.cpu_percent)))
        if 0.97 * MOST_PERCENT <= outcome.cpu_percent <= MOST_PERCENT or better == number:
            break
        number, outcome = better, run(better)
    while outcome.cpu_percent > MOST_PERCENT and number > 1:
        number -= max(1, number // 50)
        outcome = run(number)
    return number, outcome


def need(kind: Kind, workers: int, most: int, costs: Costs, seconds: float) -> Need:
    """The fewest shards that carry a fleet within `MOST_PERCENT` each.

    Args:
        kind: kind of traffic.
        workers: workers of the whole fleet.
        most: workers that one shard carries.
        costs: costs of each call.
        seconds: virtual time of each simulation.
    """

    def one(shards: int) -> Outcome:
        return simulate(kind.load(-(-workers // shards)), costs, seconds if kind.run_s else seconds / 4)

    shards = -(-workers // most)
    while (found := one(shards)).cpu_percent > MOST_PERCENT and shards < workers:
        shards += 1
    return Need(workers, shards, found)


def carry_table(costs: Mapping[int, Costs], memory: Mapping[int, Mapping[str, float]], seconds: float) -> Table:
    """Capacity of one shard, by kind of traffic and size of bodies.

    Args:
        costs: costs by bytes of a body.
        memory: bytes "queued" and "kept" of a request, by bytes of a body.
        seconds: virtual time of each simulation.
    """
    rows = []
    for body, each in costs.items():
        for kind in (kind for name, kind in KINDS.items() if name != "idle" or body == min(costs)):
            workers, outcome = most_workers(kind, each, seconds)
            rate = outcome.ended_per_s
            rows.append(
                {
                    "one shard at half its core": kind.title,
                    "body and answer, B": body if kind.run_s else None,
                    "requests/s": rate if kind.run_s else None,
                    "workers of 64 slots": workers,
                    "connections": workers * each.connections,
                    "results of an hour, GB": memory[body]["kept"] * rate * HOUR_S / 1e9 if kind.run_s else None,
                    "of a day, GB": memory[body]["kept"] * rate * DAY_S / 1e9 if kind.run_s else None,
                }
            )
    return Table("Carry: what one shard carries", list(rows[0]), rows)


def needs(costs: Costs, seconds: float, fleets: Sequence[int]) -> dict[str, list[Need]]:
    """Needs of fleets of several sizes, for every kind of traffic."""
    found = {}
    for name, kind in KINDS.items():
        most, _ = most_workers(kind, costs, seconds)
        found[name] = [need(kind, workers, most, costs, seconds) for workers in fleets]
    return found


def needs_table(found: Mapping[str, Sequence[Need]], costs: Costs) -> Table:
    """Shards of fleets, and the load of each shard."""
    rows = []
    for name, several in found.items():
        for each in several:
            here = -(-each.workers // each.shards)
            rows.append(
                {
                    "fleet": f"{each.workers:,} workers",
                    "traffic": KINDS[name].title,
                    "requests/s": each.one.ended_per_s * each.shards if name != "idle" else None,
                    "shards": each.shards,
                    "workers a shard": here,
                    "its core, %": each.one.cpu_percent,
                    "pickup p99, ms": each.one.pickup_ms[1] if each.one.pickup_ms else None,
                    "its connections": here * costs.connections,
                    "above maxclients 10,000": "yes" if here * costs.connections > DEFAULT_MAXCLIENTS else "",
                    "most of it": ", ".join(list(each.one.share)[:3]),
                }
            )
    return Table("Needs: shards for a fleet, 64 slots a worker, four fifths of them busy", list(rows[0]), rows)


def settings_table(costs: Costs, seconds: float) -> Table:
    """Most workers that one shard carries, by setting."""
    cases: dict[str, dict[str, Any]] = {
        "as by default": {},
        "STREAMFLEET_LEASE_MS 30000": {"lease_s": 30.0},
        "STREAMFLEET_LEASE_MS 60000": {"lease_s": 60.0},
        "128 slots a worker": {"slots": 128},
    }
    rows = []
    for title, more in cases.items():
        row: dict[str, Any] = {"setting": title}
        for name in ("idle", "long", "chat"):
            row[f"workers, {KINDS[name].title}"] = most_workers(KINDS[name], costs, seconds, **more)[0]
        rows.append(row)
    return Table("Settings: workers that one shard carries", list(rows[0]), rows)


def with_connections(costs: Mapping[int, Costs], connections: float) -> dict[int, Costs]:
    """The same costs with the number of connections that workers were seen to have."""
    return {body: replace(each, connections=connections) for body, each in costs.items()}
