"""Directed runs of requests that wait: of a tenant at its limit, and with output that is kept of an earlier run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from streamfleet.common.broker.types import TenantRule
from tests.fault.plan import Kind, Setup
from tests.fault.stage import Stage
from tests.waiting import eventually

WATCHED_S = 1.5
MOST_CALLS = 30
"""Most script calls of one worker in that time: 20 a second."""
WAITING = Setup(workers=1, lease_ms=20_000, max_deliveries=3, watchdog_s=30.0, drain_ms=500)
TWO_QUEUES = replace(WAITING, workers=2, batch_size=4, queues=("default", "beside"))
INTERRUPTED = replace(WAITING, batch_size=1)


async def tenant_at_its_limit(stage: Stage) -> None:
    """Homes are known, and all that waits is of a tenant that may run no more."""
    await stage.harness.broker.set_tenant("acme", TenantRule(1, 1))
    await stage.worker(0)
    for number in range(2):
        await stage.add(f"r{number}", 5, session=f"s{number}")
        await stage.ended(f"r{number}", 5)
    for number in range(2):
        await stage.add(f"acme{number}", 300, tenant="acme")
    await stage.runs("acme0")
    await asyncio.sleep(0.3)  # until the worker has pulled in vain
    before = await _calls(stage)
    await asyncio.sleep(WATCHED_S)
    if (calls := await _calls(stage) - before) > MOST_CALLS:
        raise AssertionError(f"{calls} script calls in {WATCHED_S} s, while nothing may be taken")


async def other_queue_beside_a_limit(stage: Stage) -> None:
    """The same, with another queue on the same engine, which has free slots."""
    await stage.harness.broker.set_tenant("acme", TenantRule(1, 1))
    await stage.worker(1)  # it serves both queues
    for number in range(2):
        await stage.add(f"r{number}", 5, session=f"s{number}")
        await stage.ended(f"r{number}", 5)
    # It runs for longer than the wait for b, on a busy machine, too.
    await stage.add("acme0", 600, lane="high", tenant="acme")
    await stage.add("acme1", 5, lane="high", tenant="acme")
    await stage.runs("acme0")
    await stage.add("b", 5, queue="beside")
    await stage.ended("b", 2, "beside")


async def kept_output_overwritten(stage: Stage) -> None:
    """Kept output of an interrupted run is overwritten with another type."""
    for key in await _interrupted(stage):
        await stage.redis.delete(key)
        await stage.redis.rpush(key, "x")
    await stage.ended("r", 10)


async def cancelled_with_kept_output(stage: Stage) -> None:
    """An interrupted request is cancelled while it waits."""
    await _interrupted(stage, Kind.CANCELLED)
    await stage.ask_to_cancel("r")
    await stage.ended("u", 5)

    async def gone() -> bool:
        return not [key async for key in stage.redis.scan_iter("{default}:kept:*")]

    await eventually(gone, 3, "kept output is gone")


async def _interrupted(stage: Stage, kind: Kind = Kind.GOOD) -> list[bytes]:
    """A request that gave way to an urgent one, and waits. Returns the keys of its kept output."""
    await stage.worker(0)
    await stage.add("r", 300, kind, lane="low")
    await stage.runs("r")
    await asyncio.sleep(0.5)  # some tokens
    await stage.add("u", 150, lane="critical")
    await stage.runs("u")

    async def kept() -> list[bytes]:
        return [key async for key in stage.redis.scan_iter("{default}:kept:*")]

    return await eventually(kept, 5, "output is kept")


async def _calls(stage: Stage) -> int:
    stats = await stage.redis.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])
