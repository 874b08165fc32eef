"""Scaling beyond one Redis: one shard's capacity by measurement, the needs of 1,000 and 10,000 workers by simulation.

A shard is one Redis server, which executes commands on one core. All costs are the server's own count of its CPU time,
so that other work on the machine hardly changes them; the simulation is compared with real fleets of up to 1,000
workers.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from bench.core.machine import describe
from bench.core.redis import own_server
from bench.core.reports import Report, Target
from bench.core.rounds import Sample, interleave, middle
from bench.scheduling.fleet import raise_file_limit
from bench.shards import checks, cluster, fleets, life, needs, tables, upkeep
from bench.shards.costs import BESIDE, FLEET_BODY, LONE, LONE_PAUSE_S, Costs, case, costs_of, memory_case
from bench.shards.sizes import FULL, Sizes

PARTS = ("costs", "fleets", "cluster")
"""`fleets` and what follows from the costs need `costs`."""
MOST_ERROR_PERCENT = 25.0
LEAST_GAIN = 2.7


def run(sizes: Sizes = FULL, only: Sequence[str] = PARTS, *, quick: bool = False) -> Report:
    """Run the measurement.

    Args:
        sizes: sizes of the measurement.
        only: names of parts.
        quick: value of this name in the report's settings.
    """
    settings: dict[str, Any] = {
        "quick": quick,
        "rounds": sizes.rounds,
        "load average before": round(os.getloadavg()[0], 1),
    }
    report = Report("shards", datetime.now(UTC).date().isoformat(), describe(), settings)
    if "costs" in only:
        requests, others = measure_costs(sizes)
        of_bodies = {body: costs_of(requests, others, body, sizes.batches) for body in sizes.bodies}
        report.tables += [tables.requests_table(requests, sizes), tables.upkeep_table(others)]
        report.data["costs"] = {"requests": requests, "upkeep": others}
        memory = {body: tables.memory_of(requests, body) for body in sizes.bodies}
        beside = costs_of(requests, others, FLEET_BODY, sizes.batches, BESIDE)
        add_fleets(report, of_bodies, beside if "fleets" in only else None, memory, sizes)
    if "cluster" in only:
        add_cluster(report, cluster.measure(sizes, say))
    settings["load average after"] = round(os.getloadavg()[0], 1)
    return report


def measure_costs(sizes: Sizes) -> tuple[dict[str, list[Sample]], dict[str, list[Sample]]]:
    """Samples of the requests' verbs by `case`, and of everything else by name; each on a server of its own."""
    raise_file_limit()  # the servers, started next, inherit it
    say("costs: requests")
    with own_server() as server:
        measures: dict[str, Callable[[], Sample]] = {
            case(body, batch): functools.partial(
                life.one_round, server.url, batch, life.number_of(batch, sizes.calls, body), body
            )
            for body in sizes.bodies
            for batch in sizes.batches
        }
        for body in sizes.bodies:
            number = life.number_of(life.AT_ONCE, sizes.calls, body)
            measures[memory_case(body)] = functools.partial(life.memory, server.url, number, body)
        lone = functools.partial(
            life.one_round, server.url, 1, min(sizes.calls, upkeep.LONE_NUMBER), FLEET_BODY, LONE_PAUSE_S
        )
        measures |= {f"{LONE}requests": lone, f"{LONE}requests{BESIDE}": upkeep.beside_others(lone)}
        requests = interleave(measures, sizes.rounds, title="requests")
    say("costs: workers")
    with own_server() as server:
        asyncio.run(upkeep.furnish(server.url, sizes))
        return requests, interleave(upkeep.measures(server.url, sizes), sizes.rounds, title="workers")


def add_fleets(
    report: Report,
    costs: Mapping[int, Costs],
    beside: Costs | None,
    memory: Mapping[int, Mapping[str, float]],
    sizes: Sizes,
) -> None:
    """Measure fleets if costs `beside` them are given, compare the simulation with them, and simulate larger fleets."""
    seconds = sizes.simulated_s
    shown = costs[FLEET_BODY]
    if beside:
        seen = fleets.measure(sizes, say)
        connections = middle_of([fleet.connections for fleet in seen])
        costs = needs.with_connections(costs, connections)
        shown = costs[FLEET_BODY]
        found = checks.checks(seen, shown, replace(beside, connections=connections), seconds)
        report.tables += [tables.fleets_table(seen), checks.table(found)]
        report.data["fleets"] = fleets.data(seen)
        report.data["checks"] = [{**asdict(check), "error_percent": check.error_percent} for check in found]
        report.targets += check_targets(found)
    say("simulating")
    wanted = needs.needs(shown, seconds, tables.SIZES_OF_FLEETS)
    large = {name: [each for each in several if each.workers in needs.FLEETS] for name, several in wanted.items()}
    report.tables += [
        needs.carry_table(costs, memory, seconds),
        needs.needs_table(large, shown),
        needs.settings_table(shown, seconds),
    ]
    report.data["needs"] = tables.needs_data(wanted)


def add_cluster(report: Report, samples: dict[str, list[Sample]]) -> None:
    """Capacity of three masters."""
    rows = cluster.rows(samples)
    report.tables.append(tables.of_rows("Cluster: the same requests over three masters", rows))
    report.data["cluster"] = {"rows": rows, "rounds": samples}
    gain = rows[-1]["carries, of one queue"]
    report.targets.append(
        Target(
            "3 queues on 3 masters carry, of one queue", gain, LEAST_GAIN, "at least", "x", "CPU of the busiest master"
        )
    )


def check_targets(found: Sequence[checks.Check]) -> list[Target]:
    """Largest allowed errors of the simulation."""
    figures = {
        "CPU of a fleet's Redis, simulated": "% of a core",
        "script calls of a fleet, simulated": "script calls/s",
    }
    return [
        Target(
            f"{title}: off by",
            checks.worst_percent(found, begin),
            MOST_ERROR_PERCENT,
            "at most",
            "%",
            "the worst of all fleets",
        )
        for title, begin in figures.items()
    ]


def middle_of(values: Sequence[float]) -> float:
    """The median."""
    return middle([{"value": value} for value in values], "value")


def say(what: str) -> None:
    """Print the present step."""
    print(what, file=sys.stderr, flush=True)
