"""A request that kills its workers: it is given up, with their names; whatever ran beside it is not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.worker_process import Fleet, chat

pytestmark = pytest.mark.kill
SETTINGS: dict[str, Any] = {"lease_ms": 1_000, "max_deliveries": 5}


@contextlib.asynccontextmanager
async def kept_alive(fleet: Fleet, count: int, *patches: str, **settings: Any) -> AsyncIterator[list[str]]:
    """So many workers; whoever ends is replaced, as Kubernetes would. The names of those that were killed, in order."""
    killed: list[str] = []
    numbers = itertools.count(1)

    async def one() -> None:
        while True:
            worker = fleet.start(f"w{next(numbers)}", ["deadly", *patches], **{**SETTINGS, **settings})
            assert await worker.ended(within_s=60) == -signal.SIGKILL, worker.printed()
            killed.append(worker.name)

    keepers = [asyncio.create_task(one()) for _ in range(count)]
    try:
        yield killed
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


@pytest.mark.timeout(150)
async def test_of_201_requests_only_the_poison_dies(fleet: Fleet) -> None:
    good = await fleet.add_many(100, chat(0.5))
    poison = await fleet.add("poison", reply="me")
    good += await fleet.add_many(100, chat(0.5))
    async with kept_alive(fleet, 3) as killed:
        result = await fleet.result(poison, within_s=120)
        results = await fleet.results(good, within_s=20)
    assert [result.status for result in results] == ["succeeded"] * 200
    assert (result.status, result.attempt) == ("dead", 5)
    (letter,) = await fleet.dead_letters()
    assert letter["_id"] == poison
    assert letter["_workers"].split() == killed
    assert all(name in letter["_error"] for name in killed)
    assert await fleet.notified("me") == [poison]
    await fleet.settled()
