"""Pickup time of an idle fleet, and the load of its idling on Redis: 1, 50 and 500 workers.

Pickup lasts from just before the client's enqueue call to the call of the engine, in any process; all processes of a
machine share the clock. Hundreds of workers share a few processes here, so one may have to wait for its neighbours'
housekeeping, unlike in a process of its own: these figures are upper bounds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from bench.core import processes
from bench.core.feeding import body, queue_settings
from bench.core.fleet import probe_id
from bench.core.parts import Part, Say
from bench.core.redis import look, own_server
from bench.core.reports import Table, Target
from bench.core.rounds import percentile
from streamfleet.common import scripts
from streamfleet.producer import Client

FLEETS = (1, 50, 500)
PER_PROCESS = 125
SETTLE_S, MOST_LOGGED = 2.0, 100_000
CPU_LIMIT, PICKUP_LIMIT_MS = 2.0, 5.0


@dataclass(frozen=True)
class Sizes:
    """Sizes: requests that each fleet picks up, seconds of idling, and seconds of logging calls.

    The largest fleet idles for the given time, the others a third as long. Its calls are logged for long enough: in
    40 s a waiter polls once, and writes four heartbeats.
    """

    probes: int
    idle_s: float
    logged_s: float


QUICK, FULL = Sizes(100, 10.0, 3.0), Sizes(1_000, 30.0, 40.0)


@dataclass(frozen=True)
class Idle:
    """CPU use of an idle fleet.

    Attributes:
        redis_percent: Redis's per cent of one core.
        fleet_percent: per cent of one core of the fleet's own processes.
    """

    redis_percent: float
    fleet_percent: float


def measure(quick: bool, say: Say) -> Part:
    """Measure each fleet in turn, on a new server each."""
    sizes = QUICK if quick else FULL
    pickups: dict[int, list[float]] = {}
    idles: dict[int, Idle] = {}
    calls: dict[str, dict[str, float]] = {}
    label = ""
    for count in FLEETS:
        say(f"{count} workers: starting")
        with own_server() as server, redis.Redis.from_url(server.url) as client:
            with processes.fleet(server.url, count, PER_PROCESS) as started:
                say(f"{count} workers: idling")
                idle_s = sizes.idle_s if count == max(FLEETS) else sizes.idle_s / 3
                idles[count] = _idle(client, [process.pid for process in started], idle_s)
                if count == max(FLEETS):
                    calls = calls_cost(_log_calls(client, sizes.logged_s), sizes.logged_s)
                say(f"{count} workers: {sizes.probes} requests")
                pickups[count] = asyncio.run(_probe(server.url, sizes.probes))
            label = server.label
    settings = {"pickup_requests": sizes.probes, "idle_seconds": sizes.idle_s, "pickup_server": label}
    return report(pickups, idles, calls, settings)


def report(
    pickups: Mapping[int, Sequence[float]],
    idles: Mapping[int, Idle],
    calls: Mapping[str, Mapping[str, float]],
    settings: Mapping[str, object],
) -> Part:
    """Figures of the fleets.

    Args:
        pickups: ms of every request, by the number of idle workers.
        idles: CPU use, by the number of idle workers.
        calls: calls of the largest fleet, see `calls_cost`: only their execution, without reading and answering.
        settings: settings that decide the figures.
    """
    rows = [
        {
            "idle workers": count,
            **{f"pickup p{share * 100:g} ms": percentile(found, share) for share in (0.5, 0.9, 0.99, 1.0)},
            "Redis idle, % of a core": idles[count].redis_percent,
            "all workers idle, % of a core": idles[count].fleet_percent,
        }
        for count, found in pickups.items()
    ]
    most = max(pickups)
    dear = sorted(calls.items(), key=lambda item: -item[1]["percent"])[:8]
    cost_rows = [
        {"call": name, "calls/s": row["per_s"], "µs each": row["us"], "% of a core": row["percent"]}
        for name, row in dear
    ]
    tables = [
        Table("Pickup: from enqueue to the engine, by idle workers", list(rows[0]), rows),
        Table(f"Idle calls: what {most} idle workers ask of Redis", list(cost_rows[0]), cost_rows),
    ]
    often = "; ".join(f"{name} {row['per_s']:.0f}/s" for name, row in dear[:3])
    targets = _targets(most, percentile(pickups[most], 0.99), idles[most].redis_percent, often)
    return Part(tables, targets, settings=settings)


def _targets(most: int, pickup_ms: float, redis_percent: float, often: str) -> list[Target]:
    """Targets of the largest fleet; `often`: its most expensive calls."""
    shared = f"{most} whole workers in {-(-most // PER_PROCESS)} processes"
    dearest = f"{shared}; dearest: {often}"
    return [
        Target(f"pickup p99 with {most} idle workers", pickup_ms, PICKUP_LIMIT_MS, "at most", "ms", shared),
        Target(f"Redis CPU with {most} idle workers", redis_percent, CPU_LIMIT, "at most", "% of a core", dearest),
    ]


def calls_cost(calls: Sequence[tuple[str, float]], seconds: float) -> dict[str, dict[str, float]]:
    """For each name of a call: calls per second, µs of each, per cent of a core of all.

    Args:
        calls: (name, µs) of every call.
        seconds: duration in which they came.
    """
    totals: dict[str, tuple[int, float]] = {}
    for name, took_us in calls:
        number, total_us = totals.get(name, (0, 0.0))
        totals[name] = number + 1, total_us + took_us
    return {
        name: {"per_s": number / seconds, "us": total_us / number, "percent": total_us / seconds / 1e4}
        for name, (number, total_us) in totals.items()
    }


def _idle(client: redis.Redis, pids: Sequence[int], seconds: float) -> Idle:
    time.sleep(SETTLE_S)  # work left over from the start
    fleet_s = sum(processes.cpu_seconds(pid) for pid in pids)
    before, began = look(client), time.monotonic()
    time.sleep(seconds)
    redis_s, took_s = (look(client).cpu_us - before.cpu_us) / 1e6, time.monotonic() - began
    fleet_s = sum(processes.cpu_seconds(pid) for pid in pids) - fleet_s
    return Idle(100 * redis_s / took_s, 100 * fleet_s / took_s)


def _log_calls(client: redis.Redis, seconds: float) -> list[tuple[str, float]]:
    """Name and µs of every call within so many seconds; scripts by their verb."""
    verbs = {scripts.sha(verb): f"script {verb}" for verb in scripts.VERBS}
    client.config_set("slowlog-max-len", MOST_LOGGED)
    client.config_set("slowlog-log-slower-than", 0)
    time.sleep(seconds)
    client.config_set("slowlog-log-slower-than", -1)
    found = []
    for row in client.slowlog_get(MOST_LOGGED):
        if row["client_address"] in (b"", b"?:0"):  # called by a script, whose time includes it
            continue
        name, _, rest = row["command"].decode(errors="replace").partition(" ")
        first = rest.partition(" ")[0]
        names = {"EVALSHA": verbs.get(first, "a script"), "EVAL": "a script's first call"}
        found.append((names.get(name, name), float(row["duration"])))
    return found


async def _probe(url: str, probes: int) -> list[float]:
    """Milliseconds from enqueueing to the engine, one request at a time, with a pause between them."""
    chance = random.Random(5)
    found = []
    async with Client(settings=queue_settings(url)) as fleet:
        for number in range(probes):
            await asyncio.sleep(chance.uniform(0.01, 0.03))
            handle = await fleet.enqueue(body(1), lane="high", id=probe_id(number))
            result = await handle.result(timeout=30)
            found.append(int(result.raise_for_status().text) / 1e6)
    return found
