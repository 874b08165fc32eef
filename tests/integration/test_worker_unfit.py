"""A worker whose engine fails everything: it lets go of its work, keeps off the queue, and comes back when mended."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from streamfleet.worker import containment
from streamfleet.worker.dispatcher import Dispatcher
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, WorkerProcess, chat
from tests.waiting import eventually

pytestmark = pytest.mark.kill
SETTINGS: dict[str, Any] = {
    "lease_ms": 60_000,
    "batch_size": 8,
    "unready_failures": 5,
    "retry_base_ms": 20,
    "retry_max_ms": 100,
}


async def broken_worker(fleet: Fleet, *patches: str) -> WorkerProcess:
    worker = await fleet.worker("broken", ["breakable", *patches], **SETTINGS)
    worker.send(signal.SIGUSR1)
    return worker


async def unfit(worker: WorkerProcess) -> None:
    await worker.logged("fitness_changed")
    await eventually(lambda: worker.get("/readyz").status == 503, what="it is not ready")


async def test_one_broken_engine_fails_one_request_and_the_others_succeed_elsewhere(fleet: Fleet) -> None:
    broken = await broken_worker(fleet)
    await fleet.worker("well", **SETTINGS)
    results = await fleet.results(await fleet.add_many(200, chat(0.05)))
    failed = [result for result in results if not result.ok]
    assert len(failed) <= 1  # the first, before anything spoke against the engine
    assert {result.worker for result in results if result.ok} == {"well"}
    await unfit(broken)
    assert "every request fails: the engine answered 500" in broken.get("/readyz").text
    assert broken.get("/livez").status == 200
    await fleet.settled()


async def test_what_an_unfit_worker_holds_goes_back_at_once_and_uncounted(fleet: Fleet) -> None:
    broken = await fleet.worker("broken", ["breakable"], **SETTINGS)
    held = await fleet.add_many(3, chat(60))
    # Claimed is not yet started, and what is started on a broken engine fails.
    await eventually(lambda: "streamfleet_running 3.0" in broken.get("/metrics").text, what="three are started")
    broken.send(signal.SIGUSR1)
    ids = await fleet.add_many(10)
    await unfit(broken)
    await fleet.runs({})
    await fleet.worker("well", **SETTINGS)
    await fleet.runs({"well": 3})
    attempts = await fleet.redis.xpending_range("{default}:lane:normal", "workers", "-", "+", 10)
    assert [row["times_delivered"] for row in attempts] == [1] * 3
    assert sum(result.ok for result in await fleet.results(ids)) >= 9
    assert (await fleet.broker.audit()).outstanding == len(held)


async def test_a_mended_engine_makes_its_worker_ready_again(fleet: Fleet) -> None:
    worker = await broken_worker(fleet, "short_rest")
    ids = await fleet.add_many(30)
    await unfit(worker)
    worker.send(signal.SIGUSR2)
    await eventually(lambda: worker.get("/readyz").status == 200, what="it is ready again")
    results = await fleet.results(ids)
    assert sum(result.ok for result in results) >= 29
    assert (await fleet.result(await fleet.add())).ok
    assert [event["fit"] for event in worker.events("fitness_changed")] == [False, True]
    await fleet.settled()


async def test_a_500_on_an_engine_that_works_is_final_at_once(fleet: Fleet) -> None:
    engine = small_engine()
    async with worker_inside(fleet.url, engine):
        for _ in range(3):
            engine.faults.errors = 1
            own = await fleet.result(await fleet.add())
            assert (own.status, own.attempt) == ("failed", 1)
            assert (await fleet.result(await fleet.add())).ok


async def test_requests_that_break_every_engine_make_no_second_worker_unfit(fleet: Fleet) -> None:
    """Five of them suffice for the first worker, and have been tried before when they come to the second."""
    engines = [small_engine(), small_engine()]
    for engine in engines:
        engine.faults.errors = 1_000_000
    async with worker_inside(fleet.url, engines[0], "w1", **SETTINGS) as first:
        await fleet.add_many(6)
        await eventually(lambda: not first.worker.health().ready, what="w1 is unfit")
        async with worker_inside(fleet.url, engines[1], "w2", **SETTINGS) as second:
            await eventually(lambda: _ended(fleet, 6), 10, "all have ended")
            assert second.worker.health().ready
            engines[1].faults.errors = 0
            assert (await fleet.result(await fleet.add())).worker == "w2"
    await fleet.settled()


async def _ended(fleet: Fleet, count: int) -> bool:
    return await fleet.finished() >= count


async def test_without_doubt_a_broken_engine_fails_all_that_it_is_given(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    weigh = containment.CircuitBreaker.weigh
    monkeypatch.setattr(containment.CircuitBreaker, "weigh", lambda *given: [weigh(*given), given[1]][1])
    engine = small_engine()
    engine.faults.errors = 1_000_000
    async with worker_inside(fleet.url, engine, **SETTINGS):
        await fleet.add_many(20)
        await eventually(lambda: _ended(fleet, 5), what="five failed for good")


async def test_without_letting_go_an_unfit_worker_keeps_what_it_holds(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dispatcher, "_stop_all", lambda *_: None)
    engine = small_engine()
    async with worker_inside(fleet.url, engine, **SETTINGS) as inside:
        await fleet.add(body=chat(60))
        await fleet.runs({"w1": 1})
        engine.faults.errors = 1_000_000
        await fleet.add_many(10)
        await eventually(lambda: not inside.worker.health().ready, what="it is unfit")
        await fleet.runs({"w1": 1})
        monkeypatch.undo()
