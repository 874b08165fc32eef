"""Nothing grows: not the keys, not the consumers, not the memory, however many workers and requests come and go."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from tests.integration.churn import Churn
from tests.scripts.conftest import open_queue
from tests.scripts.harness import Queue
from tests.waiting import eventually

BOUND = 12
"""Most items of any key that outlasts requests, and most keys of a kind."""
MEMORY_BOUND = 400_000
UNSEEN = 0.02
"""At most so many died before their first sign of life: they are forgotten by a clock that no test sets."""


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    """A queue whose results live for a second, and dead letters for an hour of its own clock."""
    async with open_queue(redis_url) as opened:
        limits = {"result_ttl_ms": 1_000, "waiting_ttl_ms": 600_000, "dead_ttl_ms": 3_600_000}
        yield opened.with_limits(now_ms=await opened.broker.now_ms(), **limits)


async def expired(churn: Churn) -> dict[str, int]:
    """Sizes once results, records and reply streams are gone."""

    async def gone() -> dict[str, int]:
        sizes = await churn.sizes()
        return sizes if not any(re.match("(result|request|reply):", name) for name in sizes) else {}

    return await eventually(gone, what="results, records and reply streams expire")


async def used_memory(queue: Queue) -> int:
    """Bytes of the server without scripts: those that it was sent since are no growth."""
    await queue.command("SCRIPT", "FLUSH")
    info = (await queue.command("INFO", "memory")).decode()
    return int(re.search(r"used_memory:(\d+)", info)[1])  # type: ignore[index]


def grown(sizes: dict[str, int]) -> dict[str, int]:
    """Returns the keys that are larger than anything should be."""
    return {name: size for name, size in sizes.items() if size > BOUND and name not in ("counts", "pace")}


@pytest.mark.parametrize("workers", [300, pytest.param(10_000, marks=pytest.mark.long)])
async def test_after_a_day_of_so_many_workers_no_key_has_grown(queue: Queue, workers: int) -> None:
    churn = Churn(queue)
    await churn.run(300, 4_320_000)
    await churn.settle()
    before, memory = await expired(churn), await used_memory(queue)
    await churn.run(workers)
    audit = await churn.queue.broker.audit()
    assert audit.problems() == []
    assert sum(audit.ended.values()) + audit.outstanding == len(churn.accepted)
    consumers = {name: size for name, size in (await churn.sizes()).items() if name.startswith("consumers")}
    assert sum(consumers.values()) < workers * UNSEEN + 4 * BOUND, consumers
    await churn.settle()
    after = await expired(churn)
    assert not grown(before)
    assert not grown(after)
    kinds = {name for name in after if not name.startswith("wake:")}  # of workers that were woken by name, for a minute
    assert kinds <= set(before) | {"dead", "cancels"}, "no new kinds of keys"
    assert await used_memory(queue) - memory < MEMORY_BOUND
    assert (await churn.queue.broker.audit()).problems() == []


async def test_without_forgetting_it_would_be_noticed(queue: Queue) -> None:
    churn = Churn(queue, forgets=False)
    await churn.run(800, 4_320_000)
    await churn.settle()
    too_large = grown(await expired(churn))
    assert any(name.startswith("consumers") for name in too_large)
    assert {"workers", "dead"} <= set(too_large)
