"""Real workers beside requests that may not be taken: they rest, others go on, and somebody comes once it may be."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from streamfleet.common.broker.types import TenantRule
from streamfleet.common.protocol import Lane
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

CALLS = 20
"""Most script calls of a worker in a second, those of its leases and of the housekeeping along."""
WINDOW_S, SOON_S, LONG_S = 1.0, 2.0, 60.0
SYSTEM = {"role": "system", "content": "You are a careful assistant. " * 60}
"""A beginning that two prompts share is known by its home."""


async def calls(fleet: Fleet) -> float:
    """Number of script calls that a window of time brings for each second."""

    async def now() -> int:
        stats = await fleet.redis.info("commandstats")
        return int(stats["cmdstat_evalsha"]["calls"])

    before, began = await now(), time.monotonic()
    await eventually(lambda: time.monotonic() - began >= WINDOW_S, 2 * WINDOW_S)
    return (await now() - before) / (time.monotonic() - began)


def asking(seconds: float, beginning: str) -> dict[str, Any]:
    body = chat(seconds)
    return body | {"messages": [SYSTEM, *body["messages"]]} if beginning == "a system prompt" else body


async def meet(fleet: Fleet, known_by: str) -> None:
    """Requests by which homes are known, or none."""
    for number in range(4):
        more = {"session": f"s{number}"} if known_by == "sessions" else {}
        await fleet.result(await fleet.add(body=asking(0.0, known_by), **more))
    known = await fleet.redis.hget(fleet.broker.keys.lane_states, "sessions")
    assert (known == "1") == (known_by != "nothing")


async def waits(fleet: Fleet, number: int) -> None:
    async def staged() -> bool:
        keys = fleet.broker.keys
        with_label = await fleet.redis.hget(keys.lane_states, "labelled") or ""
        ready = [await fleet.redis.zcard(keys.ready(lane)) for lane in Lane]
        return bool(sum(ready) + sum(map(int, with_label.replace(";", " ").split())) == number)

    await eventually(staged, 30, f"{number} wait")


@pytest.mark.parametrize("known_by", ["nothing", "sessions", "a system prompt"])
async def test_workers_rest_while_a_tenant_is_at_its_limit(fleet: Fleet, known_by: str) -> None:
    await fleet.broker.set_tenant("acme", TenantRule(1, 1))
    for name in ("w1", "w2"):
        await fleet.worker(name, batch_size=4)
    await meet(fleet, known_by)
    await fleet.add("a0", "high", asking(LONG_S, known_by), tenant="acme")
    await eventually(fleet.running, what="the first runs, whatever comes next")
    for number in range(1, 5):
        await fleet.add(f"a{number}", ["high", "normal"][number % 2], asking(LONG_S, known_by), tenant="acme")
    await waits(fleet, 4)
    assert await calls(fleet) <= CALLS * 2
    others = [await fleet.add(body=asking(0.0, known_by), tenant="other") for _ in range(5)]
    await fleet.results(others, SOON_S)
    await fleet.broker.cancel("a0")
    await waits(fleet, 3)
    await fleet.broker.set_tenant("acme", TenantRule(1, 4))
    await waits(fleet, 0)


@pytest.mark.parametrize("known_by", ["nothing", "sessions"])
async def test_workers_rest_while_a_lane_is_paused_or_a_home_is_busy(fleet: Fleet, known_by: str) -> None:
    for name in ("w1", "w2"):
        await fleet.worker(name, batch_size=1)
    await meet(fleet, known_by)
    await fleet.broker.pause([Lane.HIGH])
    await fleet.add("long", "normal", chat(LONG_S), session="s0")
    await eventually(fleet.running)
    await fleet.add("paused", "high", session="s1")
    await waits(fleet, 1)
    assert await calls(fleet) <= CALLS * 2
    assert (await fleet.result(await fleet.add(lane="normal", session="s0"), SOON_S)).ok  # its home is busy
    await fleet.broker.resume([Lane.HIGH])
    assert (await fleet.result("paused", SOON_S)).ok


@pytest.mark.parametrize(("number", "lane"), [(2, "critical"), (3, "low")])
async def test_a_queue_whose_tenant_is_at_its_limit_holds_up_no_other(
    redis_url: str, tmp_path: Path, number: int, lane: str
) -> None:
    """The tenant's requests come first; homes may be known there."""
    queues = [Fleet(redis_url, tmp_path, f"q{each}") for each in range(number)]
    first, others = queues[0], queues[1:]
    try:
        models = ",".join(f"m{each}=q{each}=simulated" for each in range(number))
        await first.broker.set_tenant("acme", TenantRule(1, 1))
        await first.worker("w1", batch_size=8, worker_models=models)
        await meet(first, "sessions")
        for each in range(4):
            await first.add(f"a{each}", lane, chat(LONG_S), tenant="acme")
        await waits(first, 3)
        for each in range(5):
            for other in others:
                assert (await other.result(await other.add(f"b{each}"), SOON_S)).ok
        assert await calls(first) <= CALLS * number
    finally:
        for queue in queues:
            await queue.close()
