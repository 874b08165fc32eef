"""Fleets of hundreds of real workers on one real server: their load on it, idle and under load, and their connections.

The workers run in `bench.core.fleet`, some hundreds to a process. Requests come one by one through the real
client, as from a service that answers its users.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from bench.core.feeding import queue_settings
from bench.core.fleet import SLOTS, probe_id
from bench.core.parts import Part, Say
from bench.core.processes import fleet as started_fleet
from bench.core.redis import Look, look, own_server
from bench.core.reports import Table
from bench.core.rounds import percentile
from bench.shards.sizes import Sizes
from streamfleet.producer import Client

PER_PROCESS = 500
SPREAD = 0.5
"""Requests run half as long to half as long again."""
PATIENCE_S = 300.0
OTHERS_OPEN = 1
"""Connections that are not the workers': the one that looks."""
LEASE_MS = 10_000


@dataclass(frozen=True)
class Spell:
    """Work of a server, per second, in a period.

    Attributes:
        cpu_percent: per cent of one core.
        calls_per_s: script calls per second.
        in_bytes_per_s, out_bytes_per_s: over the network.
    """

    cpu_percent: float
    calls_per_s: float
    in_bytes_per_s: float
    out_bytes_per_s: float


@dataclass(frozen=True)
class Seen:
    """One measured fleet.

    Attributes:
        workers: number of workers.
        run_ms: mean run time of requests.
        idle, loaded: the server's work without and with requests.
        rate_per_s: counted requests per second under load.
        connections: open connections of a worker, when idle.
        connection_bytes: the server's memory for each of them, when idle.
        pickup_ms: times from the enqueue call to the engine, under load, sorted.
    """

    workers: int
    run_ms: int
    idle: Spell
    loaded: Spell
    rate_per_s: float
    connections: float
    connection_bytes: float
    pickup_ms: Sequence[float]


def measure(sizes: Sizes, say: Say) -> Part:
    """Measure each fleet in turn, on a new server each."""
    found = rows([one(count, sizes, say) for count in sizes.fleets])
    return Part([Table("Fleets: real workers on one server", list(found[0]), found)])


def one(count: int, sizes: Sizes, say: Say) -> Seen:
    """Measure a fleet of so many workers."""
    say(f"{count} workers: starting")
    settings = {"BATCH_SIZE": SLOTS, "STREAMFLEET_LEASE_MS": LEASE_MS, "STREAMFLEET_DRAIN_MS": 0}
    with (
        own_server() as server,
        redis.Redis.from_url(server.url) as client,
        started_fleet(server.url, count, PER_PROCESS, settings),
    ):
        say(f"{count} workers: idling")
        time.sleep(sizes.settle_s)
        idle, after = _spell(client, sizes.look_s)
        say(f"{count} workers: {sizes.rate_per_s:g} requests a second")
        loaded, rate, pickup = asyncio.run(_load(client, server.url, sizes))
    return Seen(
        workers=count,
        run_ms=sizes.run_ms,
        idle=idle,
        loaded=loaded,
        rate_per_s=rate,
        connections=(after.clients - OTHERS_OPEN) / count,
        connection_bytes=after.clients_bytes / max(1, after.clients),
        pickup_ms=sorted(pickup),
    )


def spell(before: Look, after: Look, seconds: float) -> Spell:
    """Difference of two looks, per second."""
    return Spell(
        cpu_percent=(after.cpu_us - before.cpu_us) / seconds / 1e4,
        calls_per_s=(after.script_calls - before.script_calls) / seconds,
        in_bytes_per_s=(after.in_bytes - before.in_bytes) / seconds,
        out_bytes_per_s=(after.out_bytes - before.out_bytes) / seconds,
    )


def _spell(client: redis.Redis, seconds: float) -> tuple[Spell, Look]:
    before, began = look(client), time.monotonic()
    time.sleep(seconds)
    after = look(client)
    return spell(before, after, time.monotonic() - began), after


async def _load(client: redis.Redis, url: str, sizes: Sizes) -> tuple[Spell, float, list[float]]:
    """Send requests as a Poisson stream; returns the work once it is steady, requests per second, ms of pickups."""
    chance = random.Random(7)
    loop = asyncio.get_running_loop()
    warm_s = max(sizes.settle_s, 1.5 * sizes.run_ms / 1000)
    found: list[float] = []
    async with Client(settings=queue_settings(url)) as fleet, asyncio.TaskGroup() as group:

        async def one(number: int, counted: bool) -> None:
            tokens = round(sizes.run_ms * chance.uniform(1 - SPREAD, 1 + SPREAD))
            body = {"prompt": "x" * 440, "max_tokens": tokens}
            handle = await fleet.enqueue(body, lane="high", id=probe_id(number))
            result = await handle.result(timeout=PATIENCE_S)
            if counted:
                found.append(int(result.raise_for_status().text) / 1e6)

        began, due_s, number, sent = loop.time(), 0.0, 0, 0
        before, before_at = None, 0.0
        while due_s < warm_s + sizes.look_s:
            await asyncio.sleep(max(0.0, began + due_s - loop.time()))
            if before is None and due_s >= warm_s:
                before, before_at = look(client), loop.time()
            number += 1
            sent += before is not None
            group.create_task(one(number, before is not None))
            due_s += chance.expovariate(sizes.rate_per_s)
        assert before is not None, "the load ended before it had settled"
        after, seconds = look(client), loop.time() - before_at
    return spell(before, after, seconds), sent / seconds, found


def rows(seen: Sequence[Seen]) -> list[dict[str, Any]]:
    """Rows of the table."""
    return [
        {
            "workers": fleet.workers,
            "connections each": fleet.connections,
            "KB of each connection": fleet.connection_bytes / 1024,
            "Redis idle, % of a core": fleet.idle.cpu_percent,
            "script calls/s idle": fleet.idle.calls_per_s,
            "requests/s": fleet.rate_per_s,
            "Redis under load, % of a core": fleet.loaded.cpu_percent,
            "script calls/s under load": fleet.loaded.calls_per_s,
            "pickup p50 ms": percentile(fleet.pickup_ms, 0.5),
            "pickup p99 ms": percentile(fleet.pickup_ms, 0.99),
        }
        for fleet in seen
    ]
