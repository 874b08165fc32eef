"""An engine that dies under a worker: its work goes back counted, nothing else is touched, and the worker ends."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from streamfleet.common.records import Completion
from streamfleet.worker.complete import Completer
from streamfleet.worker.engine.base import EngineError
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.flights import Flight
from streamfleet.worker.outcome import Finished
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

pytestmark = pytest.mark.kill
NO_RECLAIM: dict[str, Any] = {"lease_ms": 60_000}


class Dumb(SimulatedEngine):
    """The simulated engine without a watch over itself: only requests find out that it died."""

    async def failed(self) -> str:
        await eventually(lambda: False, within_s=60)
        return ""


async def test_a_dead_engine_ends_the_process_and_hands_its_work_back_counted(fleet: Fleet) -> None:
    worker = await fleet.worker("w1", ["mortal"], **NO_RECLAIM)
    ids = await fleet.add_many(5, chat(1.0), reply="me")
    await fleet.runs({"w1": 5})
    worker.send(signal.SIGUSR1)
    assert await worker.ended(within_s=5) == 3
    assert await fleet.running() == {}
    assert set((await fleet.redis.hgetall("{default}:tries")).values()) == {"1"}
    assert await fleet.redis.hgetall("{default}:workers") == {}
    await fleet.worker("w2", **NO_RECLAIM)
    results = await fleet.results(ids)
    assert [(result.ok, result.attempt, result.worker) for result in results] == [(True, 2, "w2")] * 5
    assert sorted(await fleet.notified("me")) == sorted(ids)
    await fleet.settled()


@pytest.mark.parametrize("watched", [True, False])
async def test_what_waits_is_not_used_up_by_a_dead_engine(fleet: Fleet, watched: bool) -> None:
    """A dead engine fails every request in no time: without a stop, all tries of the queue would be gone."""
    engine = small_engine(4) if watched else Dumb(small_engine(4)._profile)
    async with worker_inside(fleet.url, engine, prefetch=0, **NO_RECLAIM) as inside:
        await fleet.add_many(200, chat(60))
        await fleet.runs({"w1": 4})
        engine.die()
        assert await inside.ended() == 3
    audit = await fleet.broker.audit()
    assert audit.ended == dict.fromkeys(audit.ended, 0)
    assert audit.tries == 4
    assert audit.problems() == []
    assert await fleet.running() == {}


async def test_a_request_that_kills_engines_is_given_up(fleet: Fleet) -> None:
    killer = await fleet.add("killer", body=chat(60), reply="me")
    for number in (1, 2):
        engine = small_engine()
        async with worker_inside(fleet.url, engine, f"w{number}", max_deliveries=2, **NO_RECLAIM) as inside:
            await fleet.runs({f"w{number}": 1})
            engine.die("the request killed it")
            assert await inside.ended() == 3
    result = await fleet.result(killer)
    assert (result.status, result.attempt) == ("dead", 2)
    assert "the request killed it" in str(result.error)
    assert await fleet.notified("me") == [killer]
    await fleet.settled()


async def test_a_hung_engine_is_noticed(fleet: Fleet) -> None:
    engine = small_engine(watchdog_s=0.3)
    async with worker_inside(fleet.url, engine, **NO_RECLAIM) as inside:
        request = await fleet.add(body=chat(0.5))
        await eventually(lambda: engine.running == 1, what="it runs")
        engine.hang()
        assert await inside.ended() == 3
    async with worker_inside(fleet.url, small_engine(), "w2"):
        result = await fleet.result(request)
        assert (result.ok, result.attempt) == (True, 2)


async def test_a_slot_waiting_in_front_of_the_engine_goes_back_before_the_drain_is_over(fleet: Fleet) -> None:
    async with worker_inside(fleet.url, small_engine(2), prefetch=2, drain_ms=60_000, **NO_RECLAIM) as inside:
        await fleet.add_many(4, chat(60))
        await fleet.runs({"w1": 4})
        inside.worker.ask_to_stop()
        await fleet.runs({"w1": 2}, within_s=2)
        assert await fleet.redis.hlen("{default}:tries") == 0
        assert not inside.life.done()


async def test_a_gathered_window_goes_back_untried(fleet: Fleet) -> None:
    window: dict[str, Any] = {"batching": "window", "batch_size": 9, "batch_timeout_ms": 60_000, **NO_RECLAIM}
    async with worker_inside(fleet.url, small_engine(9), **window) as inside:
        await fleet.add_many(3)
        await fleet.runs({"w1": 3})
        inside.worker.ask_to_stop()
        assert await inside.ended(within_s=3) == 0
    assert await fleet.running() == {}
    assert await fleet.redis.zcard("{default}:ready:normal") == 3
    assert await fleet.redis.hlen("{default}:tries") == 0


async def test_an_engine_that_cancels_its_own_work_costs_no_slot(fleet: Fleet) -> None:
    engine = small_engine(2)
    async with worker_inside(fleet.url, engine, prefetch=0):
        request = await fleet.add(body=chat(60), reply="me")
        await eventually(lambda: engine.running == 1, what="it runs")
        engine._running[0].done.cancel()
        await eventually(lambda: fleet.redis.hlen("{default}:tries"), what="it went back, counted")
        await fleet.broker.cancel(request)
        assert all(result.ok for result in await fleet.results(await fleet.add_many(6)))
        await fleet.settled()


async def test_a_request_that_breaks_a_loop_is_given_up_and_takes_no_other_along(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that one request sets off must not end worker after worker for ever."""
    completion = Completer._completion

    def fragile(completer: Completer, flight: Flight, outcome: Finished) -> Completion:
        if flight.lease.request_id == "poison":
            raise RuntimeError("a bug")
        return completion(completer, flight, outcome)

    monkeypatch.setattr(Completer, "_completion", fragile)
    await fleet.add("poison")
    for number in (1, 2):
        async with worker_inside(fleet.url, small_engine(), f"w{number}", max_deliveries=2) as inside:
            assert await inside.ended() == 4
    async with worker_inside(fleet.url, small_engine(), "w3", max_deliveries=2):
        poison = await fleet.result("poison")
        assert (poison.status, poison.attempt) == ("dead", 2)
        assert (await fleet.result(await fleet.add())).ok
        await fleet.settled()


async def test_a_worker_stopped_in_its_first_moment_leaves_without_a_trace(fleet: Fleet) -> None:
    for _ in range(5):
        async with worker_inside(fleet.url, small_engine(), lease_ms=60_000) as inside:
            inside.worker.ask_to_stop()
            assert await inside.ended(within_s=2) == 0
        assert await fleet.redis.hgetall("{default}:workers") == {}


class Stillborn(SimulatedEngine):
    async def start(self) -> None:
        raise EngineError("no device")


async def test_an_engine_that_does_not_start_ends_the_worker(fleet: Fleet) -> None:
    async with worker_inside(fleet.url, Stillborn()) as inside:
        assert await inside.ended() == 3


class Unwatchable(SimulatedEngine):
    async def failed(self) -> str:
        raise RuntimeError("cannot look")


async def test_an_engine_that_cannot_be_watched_ends_the_worker_in_order(fleet: Fleet) -> None:
    async with worker_inside(fleet.url, Unwatchable()) as inside:
        assert await inside.ended() == 3
    assert await fleet.redis.hgetall("{default}:workers") == {}
