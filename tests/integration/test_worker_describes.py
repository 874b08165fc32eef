"""A living worker's description of itself in Redis, and what an operator makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Lane
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.lateness import Cause, lateness
from streamfleet.operator.snapshot import read_workers, take_snapshot
from streamfleet.producer.client import Client
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from tests.broker import Broker
from tests.constants import UNREADY
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import chat
from tests.unit.worker_requests import OK, ScriptedEngine
from tests.waiting import eventually


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    opened = Broker(Connection(redis_url), Keys("default"))
    yield opened
    await opened.close()


async def only(broker: Broker) -> WorkerView | None:
    """The one worker, once it has given a sign of life."""
    views = await read_workers(broker)
    assert len(views) <= 1
    return views[0] if views else None


async def test_one_that_runs_something(broker: Broker, redis_url: str) -> None:
    async with worker_inside(redis_url, small_engine()), Client(redis_url) as client:
        for lane in (Lane.HIGH, Lane.LOW):
            await client.enqueue(chat(60), lane=lane)

        async def told() -> WorkerView | None:
            view = await only(broker)
            holds_two = view and view.takes_requests and view.running == 2 and view.oldest_held_s is not None
            return view if holds_two else None

        await eventually(told, what="it has said that it holds two")
        view = await only(broker)
        assert view is not None
        assert (view.name, view.engine, view.slots, view.held) == ("w1", "simulated", 4, {"high": 1, "low": 1})
        assert view.why_not == ""
        assert view.version
        assert view.age_s is not None
        assert view.oldest_held_s is not None
        assert view.oldest_held_s <= view.age_s + 1


async def test_one_that_runs_requests_tells_its_kv_use_and_mean_batch(broker: Broker, redis_url: str) -> None:
    async with worker_inside(redis_url, small_engine()), Client(redis_url) as client:
        idle = await eventually(lambda: only(broker), what="it has given a sign of life")
        assert idle is not None
        assert (idle.kv_use, idle.mean_batch) == (0.0, None)
        handles = [await client.enqueue(chat(2, n=2 if lane is Lane.HIGH else 1), lane=lane) for lane in Lane][1:]
        handles += [await client.enqueue(chat(2)) for _ in range(4)]  # more than the engine has slots

        async def told() -> WorkerView | None:
            view = await only(broker)
            return view if view and view.kv_use and view.mean_batch and view.mean_batch > 2.5 else None

        view = await eventually(told, what="it has told both while they run")
        assert view is not None
        assert 0 < (view.kv_use or 0) < 0.05, "some hundred tokens of 100,000"
        assert 2.5 < (view.mean_batch or 0) <= 4, "as many as there are slots, and perhaps a look while they came"
        for handle in handles:
            await handle.result(timeout=20)

        async def over() -> WorkerView | None:
            view = await only(broker)
            return view if view and view.kv_use == 0 else None

        after = await eventually(over, what="nothing is in its cache any more")
        assert after is not None
        assert 1 <= (after.mean_batch or 0) <= 4, "of the last minute, not of now"


async def test_batches_of_more_than_a_minute_ago_are_forgotten(
    broker: Broker, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfleet.worker.worker.BATCHES_S", 1.0)
    async with worker_inside(redis_url, small_engine()), Client(redis_url) as client:
        await (await client.enqueue(chat(1))).result(timeout=20)

        async def told(batch: float | None) -> bool:
            view = await only(broker)
            return view is not None and view.mean_batch == batch

        await eventually(lambda: told(1.0), what="it has told its last batch")
        await eventually(lambda: told(None), 10, "it has forgotten it")


async def test_an_engine_that_does_not_know_its_kv_use_says_nothing(broker: Broker, redis_url: str) -> None:
    answered = asyncio.Event()

    async def answer(_: EngineRequest) -> EngineReply:
        await answered.wait()
        return OK

    async with worker_inside(redis_url, ScriptedEngine(answer)), Client(redis_url) as client:
        handles = [await client.enqueue(chat()) for _ in range(3)]

        async def told() -> WorkerView | None:
            view = await only(broker)
            return view if view and (view.mean_batch or 0) > 2.5 else None

        view = await eventually(told, 10, what="it has told its mean batch")
        assert view is not None
        assert view.kv_use is None
        answered.set()
        for handle in handles:
            await handle.result(timeout=20)


async def test_one_that_is_unfit_says_why_and_the_lane_that_waits_for_it_does_too(
    broker: Broker, redis_url: str
) -> None:
    engine = small_engine()
    engine.faults.errors = 1_000_000
    async with worker_inside(redis_url, engine, changed={UNREADY: 2}), Client(redis_url) as client:
        for _ in range(8):
            await client.enqueue(chat(), lane=Lane.HIGH)

        async def unfit() -> WorkerView | None:
            view = await only(broker)
            return view if view and view.why_not.startswith("every request fails: ") else None

        view = await eventually(unfit, what="it has said why it takes no requests")
        assert view is not None
        assert not view.takes_requests
        found = next(one for one in lateness(await take_snapshot(broker)) if one.lane is Lane.HIGH)
        assert found.cause is Cause.NONE_READY
        assert "1 worker alive, none ready: every request fails: the engine answered 500" in found.text
