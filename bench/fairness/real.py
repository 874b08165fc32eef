"""A small tenant beside a flood on one real vLLM: how long its first tokens take, and who is served how much."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from bench.core.feeding import body, queue_settings
from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table
from bench.core.rounds import percentile
from bench.core.workers import workers
from bench.engine.setup import engine_setup
from streamfleet.producer import Client
from streamfleet.producer.handle import Handle

SEQUENCES, FLOOD, FLOOD_TOKENS, SMALL_TOKENS = 8, 1_000, 64, 16
EVERY_S, GRACE_S = 2.0, 10.0
ORDERS = ("tenants by tokens", "today: by deadline")


@dataclass(frozen=True)
class Seen:
    """One run.

    Attributes:
        first_ms: of each small request, the time to its first token; if it had none, the time waited so far.
        answered: number of small requests that had a first token.
        tokens: output tokens of ended requests, by tenant.
    """

    first_ms: list[float]
    answered: int
    tokens: Mapping[str, int]


def measure(quick: bool, say: Say) -> Part:
    """Measure each order on a server and an engine of its own."""
    setup = engine_setup("--max-num-seqs", str(SEQUENCES))
    return compare(setup.worker_environment(), 5 if quick else 20, say)


def compare(engine: Mapping[str, object], number: int, say: Say) -> Part:
    """Measure each order with so many small requests; `engine` has the settings of the worker's engine."""
    settings = {**engine, "STREAMFLEET_DRAIN_MS": 50}
    rows: list[Mapping[str, Any]] = []
    for order in ORDERS:
        say(f"{order}: starting the engine, then {number} requests in {number * EVERY_S:.0f} s")
        with own_server() as server, workers(server.url, environment=settings):
            seen = asyncio.run(_run(server.url, number, named=order == ORDERS[0]))
        rows.append(
            {
                "order": order,
                "small requests": number,
                "with a first token": seen.answered,
                "first token p50, ms": percentile(seen.first_ms, 0.5),
                "p99, ms": percentile(seen.first_ms, 0.99),
                "output tokens, small": seen.tokens["small"],
                "of the flood": seen.tokens["flood"],
            }
        )
    title = (
        f"Real vLLM, {SEQUENCES} sequences: requests of {SMALL_TOKENS} tokens beside a flood of {FLOOD:,} of "
        f"{FLOOD_TOKENS}; without a first token, the time waited so far"
    )
    return Part([Table(title, list(rows[0]), rows)])


async def _run(url: str, number: int, *, named: bool) -> Seen:
    async with Client(settings=queue_settings(url)) as client:
        await (await client.enqueue(body(8))).result(60)
        asks = [_ask("flood", each, FLOOD_TOKENS, named) for each in range(FLOOD)]
        flood = await client.enqueue_many(asks)
        sent, began, firsts, following = list[Handle](), list[float](), dict[str, float](), list[asyncio.Task[None]]()
        for each in range(number):
            await asyncio.sleep(EVERY_S)
            began.append(time.perf_counter())
            sent.append(await client.enqueue(stream=True, **_ask("small", each, SMALL_TOKENS, named)))
            following.append(asyncio.create_task(_follow(sent[-1], firsts)))
        await asyncio.wait(following, timeout=GRACE_S)
        now = time.perf_counter()
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        tokens = Counter[str]()
        for handle in (*flood, *sent):
            result = await client.broker.result(handle.id)
            tokens[handle.id.partition("-")[0]] += (result.usage or {}).get("completion_tokens", 0) if result else 0
    waits = [(firsts.get(handle.id, now) - at) * 1000 for handle, at in zip(sent, began, strict=True)]
    return Seen(waits, len(firsts), tokens)


async def _follow(handle: Handle, firsts: dict[str, float]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        async with aclosing(handle.stream(restarts="tell")) as events:
            async for _ in events:
                firsts.setdefault(handle.id, time.perf_counter())


def _ask(tenant: str, number: int, tokens: int, named: bool) -> dict[str, Any]:
    return {"id": f"{tenant}-{number}", "body": body(tokens), "ttl_ms": 3_600_000, "tenant": tenant if named else None}
