"""A critical request behind a deep backlog of low ones, with the engine full: measures the time until it starts.

Started means handed to the engine. A full engine has room again only when one of its sequences ends, which happens with
a step; here about six end with every step. So the wait is the rest of the engine's step, and then the queue.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass

import redis

from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.rounds import percentile
from bench.core.workers import workers
from bench.scheduling.feeding import FILL_AT_ONCE, KEYS, body, queue_settings, read_outcomes
from bench.scheduling.outcomes import Outcome, cdf, gaps
from bench.scheduling.parts import Part, Say
from streamfleet.producer import Client
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST as PROFILE

LOW_TOKENS = range(16, 65)
CRITICAL_TOKENS = 4
LOW_PER_S = 260
"""More than the engine can do, so that the backlog stays at least as deep as asked for."""
TOGETHER_MS = 8.0
"""Requests that ended in one step are written within so many ms."""
SETTLE_S = 3.0
"""The engine begins with all its slots at once; after this long its sequences end at all times."""
ENVIRONMENT = {"STREAMFLEET_ENGINE": "simulated", "STREAMFLEET_SIMULATED_PROFILE": "fast"}


@dataclass(frozen=True)
class Sizes:
    """Depth of the backlog, number of critical requests, and their rate per second."""

    backlog: int
    requests: int
    per_s: float


QUICK, FULL = Sizes(10_000, 150, 12.0), Sizes(100_000, 1_000, 12.0)


@dataclass(frozen=True)
class Seen:
    """Outcomes of the critical requests, ends of all requests (epoch ms), and the backlog's depth then."""

    critical: list[Outcome]
    ended_ms: list[float]
    depth_after: int


def measure(quick: bool, say: Say) -> Part:
    """Enqueue critical requests at random times behind the backlog."""
    sizes = QUICK if quick else FULL
    with (
        own_server() as server,
        workers(server.url, environment=ENVIRONMENT),
        redis.Redis.from_url(server.url) as client,
    ):
        say(f"behind {sizes.backlog:,} low ones")
        extra = round(LOW_PER_S * (sizes.requests / sizes.per_s + SETTLE_S + 2))
        low = _fill_low(client, sizes.backlog + extra)
        time.sleep(SETTLE_S)
        asyncio.run(_ask(server.url, sizes))
        depth = int(client.xlen(KEYS.lane("low")))
        critical = read_outcomes(client, (f"critical-{number}" for number in range(sizes.requests)))
        # Low requests end in about the order of arrival, so no later ones can have ended.
        ended = read_outcomes(client, low[: len(low) - depth + 2 * PROFILE.slots])
    return report(sizes, Seen(critical, [item.finished_ms for item in [*ended, *critical] if item.status], depth))


def report(sizes: Sizes, seen: Seen) -> Part:
    """Figures of the observations."""
    waits = [(item.enqueued_ms, item.started_ms) for item in seen.critical if item.started_ms is not None]
    start_ms = [started - enqueued for enqueued, started in waits]
    ran_ms = gaps(seen.ended_ms, together_ms=TOGETHER_MS)
    first_ms = [item.first_token_ms - item.enqueued_ms for item in seen.critical if item.first_token_ms is not None]
    step_ms = PROFILE.step_s(PROFILE.slots) * 1000
    spans = {
        "enqueued to started": start_ms,
        "enqueued to first token": first_ms,
        "the engine's steps, by what ended with them": ran_ms,
    }
    rows = [
        {"span": name, **{f"p{share * 100:g} ms": percentile(values, share) for share in (0.5, 0.9, 0.99, 1.0)}}
        for name, values in spans.items()
    ]
    depth = min(sizes.backlog, seen.depth_after)
    title = f"Inversion: {len(waits)} critical requests, each behind {depth:,} low ones or more"
    p99_ms = percentile(start_ms, 0.99)
    note = f"p99 {p99_ms:.1f} ms less one decoding step of the full engine ({step_ms:.1f} ms by its profile)"
    target = Target(
        "critical request starts, beyond one engine step",
        p99_ms - step_ms,
        10,
        "at most",
        "ms",
        note,
    )
    series = {"start": cdf(start_ms), "first_token": cdf(first_ms), "step": cdf(ran_ms)}
    data = {"step_ms": step_ms, "cdf_ms": series, "started": len(waits), "asked": sizes.requests}
    settings = {"critical_backlog": sizes.backlog, "critical_requests": sizes.requests}
    return Part([Table(title, list(rows[0]), rows)], [target], data, settings)


def _fill_low(client: redis.Redis, count: int) -> list[str]:
    """Add low requests of mixed lengths, so that sequences do not end all at once; returns their ids in order."""
    chance = random.Random(1)
    bodies = {tokens: json.dumps(body(tokens)) for tokens in LOW_TOKENS}
    ids = [f"low-{number}" for number in range(count)]
    for start in range(0, count, FILL_AT_ONCE):
        pipe = client.pipeline(transaction=False)
        for request_id in ids[start : start + FILL_AT_ONCE]:
            pipe.xadd(KEYS.lane("low"), {"id": request_id, "body": bodies[chance.choice(LOW_TOKENS)]})
        pipe.execute()
    return ids


async def _ask(url: str, sizes: Sizes) -> None:
    chance = random.Random(2)
    async with Client(settings=queue_settings(url)) as fleet:
        handles = []
        for number in range(sizes.requests):
            await asyncio.sleep(chance.uniform(0.5, 1.5) / sizes.per_s)
            handles.append(await fleet.enqueue(body(CRITICAL_TOKENS), lane="critical", id=f"critical-{number}"))
        async for result in fleet.as_completed(handles, timeout=60):
            result.raise_for_status()
