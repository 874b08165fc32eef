"""Memory of a queued request of 500 B in Redis: added by XADD and by the client, not yet staged and staged.

It is the server's own count of its memory, before and after, divided by the number of requests. It runs on the newest
Redis, and at full size on the other installed servers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import redis

from bench.core.feeding import FILL_AT_ONCE, KEYS, padded_body, queue_settings, stage_all
from bench.core.parts import Part, Say
from bench.core.redis import memory_bytes, newest, own_server
from bench.core.reports import Table, Target
from streamfleet.producer import Client
from tests.broker import Broker
from tests.support.redis_server import find_servers

BODY_BYTES = 500
LIMIT_BYTES = 760
QUICK, FULL = 20_000, 50_000
WAYS = ("XADD of the body", "client, no notifications", "client, as by default")


def measure(quick: bool, say: Say) -> Part:
    """Measure every way on every server."""
    count = QUICK if quick else FULL
    found = find_servers()
    latest = next(label for label, path in found.items() if path == newest(found))
    sizes: dict[str, dict[str, tuple[float, float]]] = {}
    for label in [latest] if quick else sorted(found):
        say(f"{count:,} requests on {label}")
        sizes[label] = {way: _one(label, way, count) for way in WAYS}
    return report(count, latest, sizes)


def report(count: int, latest: str, sizes: Mapping[str, Mapping[str, tuple[float, float]]]) -> Part:
    """Figures: bytes of a request by server and way, not staged and staged."""
    rows = [
        {"server": label, "added by": way, "not staged, B": waiting, "staged, B": staged}
        for label, ways in sizes.items()
        for way, (waiting, staged) in ways.items()
    ]
    targets = [
        Target(
            f"queued request of {BODY_BYTES} B, staged, {way}",
            sizes[latest][way][1],
            LIMIT_BYTES,
            "at most",
            "B",
            latest,
        )
        for way in (WAYS[0], WAYS[2])
    ]
    table = Table(f"Memory: bytes in Redis for each queued request of {BODY_BYTES} B", list(rows[0]), rows)
    return Part([table], targets, settings={"memory_requests": count, "memory_body_bytes": BODY_BYTES})


def _one(label: str, way: str, count: int) -> tuple[float, float]:
    """Bytes of a request, not staged and staged."""
    with own_server(label) as server, redis.Redis.from_url(server.url) as client:
        return asyncio.run(_grow(server.url, client, way, count))


async def _grow(url: str, client: redis.Redis, way: str, count: int) -> tuple[float, float]:
    async with Client(settings=queue_settings(url), notify=way == WAYS[2]) as fleet:
        await fleet.broker.ensure_groups()
        await _add(client, fleet, way, 100)  # the first requests also cost buffers, scripts and the like
        await stage_all(Broker.of(fleet.broker))
        before = memory_bytes(client)
        await _add(client, fleet, way, count)
        waiting = (memory_bytes(client) - before) / count
        await stage_all(Broker.of(fleet.broker))
        return waiting, (memory_bytes(client) - before) / count


async def _add(client: redis.Redis, fleet: Client, way: str, count: int) -> None:
    content = padded_body(BODY_BYTES)
    if way != WAYS[0]:
        asks = [{"body": json.loads(content), "lane": "normal"}] * FILL_AT_ONCE
        for start in range(0, count, FILL_AT_ONCE):
            await fleet.enqueue_many(asks[: min(FILL_AT_ONCE, count - start)])
        return
    for start in range(0, count, FILL_AT_ONCE):
        pipe = client.pipeline(transaction=False)
        for _ in range(min(FILL_AT_ONCE, count - start)):
            pipe.xadd(KEYS.lane("normal"), {"body": content})
        pipe.execute()
