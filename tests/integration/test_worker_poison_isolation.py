"""Requests that were lost with a worker before, inside one worker: in little company, and yet they get their turn."""

from __future__ import annotations

import json

import pytest

from streamfleet.worker.containment import PoisonIsolation
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST
from tests.integration.worker_in_process import worker_inside
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually


class Crowd(SimulatedEngine):
    """Remembers how many were inside at most while each request was."""

    def __init__(self) -> None:
        super().__init__(GENERIC_FAST)
        self.inside: set[str] = set()
        self.most_beside: dict[str, int] = {}

    async def run(self, request: EngineRequest) -> EngineReply:
        self.inside.add(request.id)
        for each in self.inside:
            self.most_beside[each] = max(self.most_beside.get(each, 0), len(self.inside))
        try:
            return await super().run(request)
        finally:
            self.inside.discard(request.id)


async def add_suspect(fleet: Fleet, name: str, attempts: int) -> None:
    """A request whose attempts so far were lost with their workers, ahead of all others."""
    lost = " ".join(f"gone{number}" for number in range(attempts))
    now_ms = (await fleet.redis.time())[0] * 1000
    stream_id = f"{now_ms + 3_600_000}-{len(name)}"
    async with fleet.redis.pipeline() as both:
        both.hset("{default}:tries", f"3|{stream_id}", f"{attempts} {lost}")
        fields = {"id": name, "body": json.dumps(chat(0.3)), "deadline": now_ms + 60_000}
        both.xadd("{default}:lane:normal", fields, id=stream_id)
        await both.execute()


async def a_suspect_comes_while_others_run(fleet: Fleet, engine: Crowd) -> None:
    async with worker_inside(fleet.url, engine, lease_ms=60_000):
        ids = await fleet.add_many(3, chat(0.6))
        await eventually(lambda: len(engine.inside) == 3, what="three run")
        await add_suspect(fleet, "suspect", 4)
        await eventually(lambda: _staged_or_running(fleet), what="the suspect was seen")
        later = f"{(await fleet.redis.time())[0] * 1000 + 7_200_000}-0"  # stream ids only go up
        await fleet.redis.xadd("{default}:lane:normal", {"id": "later", "body": json.dumps(chat(0.3))}, id=later)
        results = await fleet.results([*ids, "suspect", "later"])
    assert [result.ok for result in results] == [True] * 5
    assert [result.attempt for result in results] == [1, 1, 1, 5, 1]  # to be sent back for room costs no attempt
    await fleet.settled()


async def _staged_or_running(fleet: Fleet) -> bool:
    return bool(await fleet.redis.zcard("{default}:ready:normal")) or sum((await fleet.running()).values()) == 4


async def test_a_suspect_on_its_last_try_runs_alone_however_busy_the_worker_is(fleet: Fleet) -> None:
    engine = Crowd()
    await a_suspect_comes_while_others_run(fleet, engine)
    assert engine.most_beside["suspect"] == 1
    assert engine.most_beside["r-1"] == 3


async def test_without_shrinking_company_a_suspect_runs_among_the_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PoisonIsolation, "company", lambda *_, **__: None)
    engine = Crowd()
    await a_suspect_comes_while_others_run(fleet, engine)
    assert engine.most_beside["suspect"] > 1


async def test_suspects_with_some_tries_left_run_in_small_groups(fleet: Fleet) -> None:
    for number in range(10):
        await add_suspect(fleet, f"suspect{'-' * number}", 3)
    engine = Crowd()
    async with worker_inside(fleet.url, engine, lease_ms=60_000):
        results = await fleet.results([f"suspect{'-' * number}" for number in range(10)])
    assert all(result.ok for result in results)
    assert max(engine.most_beside.values()) == 4
    await fleet.settled()
