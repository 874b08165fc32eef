"""A worker whose engine fails everything: it lets go of its work, keeps off the queue, and comes back when mended."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from streamfleet.worker import containment
from streamfleet.worker.dispatcher import Dispatcher
from streamfleet.worker.engine.base import EngineReply, EngineRequest, EngineUnavailable
from streamfleet.worker.engine.replies import error_reply
from streamfleet.worker.engine.simulated import SimulatedEngine
from tests.constants import QUICK_RETRIES, UNREADY
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, WorkerProcess, chat
from tests.waiting import eventually

pytestmark = pytest.mark.kill
SETTINGS: dict[str, Any] = {
    "lease_ms": 60_000,
    "batch_size": 8,
}
UNFIT_AFTER = 5
CHANGED = {**QUICK_RETRIES, UNREADY: UNFIT_AFTER}


async def broken_worker(fleet: Fleet, *patches: str) -> WorkerProcess:
    worker = await fleet.worker("broken", ["breakable", *patches], CHANGED, **SETTINGS)
    worker.send(signal.SIGUSR1)
    return worker


async def unfit(worker: WorkerProcess) -> None:
    await worker.logged("fitness_changed")
    await eventually(lambda: worker.get("/readyz").status == 503, what="it is not ready")


async def test_one_broken_engine_fails_one_request_and_the_others_succeed_elsewhere(fleet: Fleet) -> None:
    broken = await broken_worker(fleet)
    await fleet.worker("well", (), CHANGED, **SETTINGS)
    results = await fleet.results(await fleet.add_many(200, chat(0.05)))
    failed = [result for result in results if not result.ok]
    assert len(failed) <= 1  # the first, before anything spoke against the engine
    assert {result.worker for result in results if result.ok} == {"well"}
    await unfit(broken)
    assert "every request fails: the engine answered 500" in broken.get("/readyz").text
    assert broken.get("/livez").status == 200
    await fleet.settled()


async def test_what_an_unfit_worker_holds_goes_back_at_once_and_uncounted(fleet: Fleet) -> None:
    broken = await fleet.worker("broken", ["breakable"], CHANGED, **SETTINGS)
    held = await fleet.add_many(3, chat(60))
    # Claimed is not yet started, and what is started on a broken engine fails.
    await eventually(lambda: "streamfleet_running 3.0" in broken.get("/metrics").text, what="three are started")
    broken.send(signal.SIGUSR1)
    ids = await fleet.add_many(10)
    await unfit(broken)
    await fleet.runs({})
    await fleet.worker("well", (), CHANGED, **SETTINGS)
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
    async with worker_inside(fleet.url, engines[0], "w1", changed=CHANGED, **SETTINGS) as first:
        await fleet.add_many(6)
        await eventually(lambda: not first.worker.health().ready, what="w1 is unfit")
        async with worker_inside(fleet.url, engines[1], "w2", changed=CHANGED, **SETTINGS) as second:
            await eventually(lambda: _ended(fleet, 6), 10, "all have ended")
            assert second.worker.health().ready
            engines[1].faults.errors = 0
            assert (await fleet.result(await fleet.add())).worker == "w2"
    await fleet.settled()


class Picky(SimulatedEngine):
    """An engine that works, but fails on each body whose user is `bad`: with a 500, or as one that may pass."""

    passing = refuses_probes = False

    def __init__(self) -> None:
        super().__init__(small_engine()._profile)
        self.probes = self.failed_on = 0

    async def run(self, request: EngineRequest) -> EngineReply:
        if request.id.startswith("probe-"):
            self.probes += 1
            if self.refuses_probes:
                return error_reply(400, "no such request", None, "invalid_value")
        if request.body.get("user") != "bad":
            return await super().run(request)
        self.failed_on += 1
        if self.passing:
            raise EngineUnavailable("the server answers 500")
        return error_reply(500, "a grammar that allows nothing", None, "engine_error")


MANY = 60
BAD: dict[str, dict[str, Any]] = {
    "chat": chat(user="bad"),
    "completion": {"prompt": "a", "user": "bad"},
    "embedding": {"input": "a", "user": "bad"},
    "tool": chat(user="bad", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]),
    "regex": chat(user="bad", structured_outputs={"regex": "a"}),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("tenant", ["a", ""])
@pytest.mark.parametrize("passing", [False, True])
async def test_one_callers_failures_never_rest_a_worker(fleet: Fleet, kind: str, tenant: str, passing: bool) -> None:
    """Not even where a neighbour has some of its own, nor by bodies that are all different."""
    engine, own = Picky(), {"tenant": tenant} if tenant else {}
    engine.passing = passing
    async with worker_inside(fleet.url, engine, changed=QUICK_RETRIES, max_deliveries=2, **SETTINGS) as inside:
        held = await fleet.add(body=chat(1.5), tenant="neighbour")
        await fleet.runs({"w1": 1})
        bad = [await fleet.add(body={**BAD[kind], "seed": number}, **own) for number in range(MANY)]
        bad += await fleet.add_many(2, {**BAD[kind], "seed": MANY}, tenant="neighbour")
        for _ in range(5):
            result = await fleet.result(await fleet.add(tenant="neighbour"), within_s=3)
            assert (result.ok, result.attempt, inside.worker.health().ready) == (True, 1, True)
        assert {result.ok for result in await fleet.results(bad)} == {False}
        first = await fleet.result(held)
        assert (first.ok, first.attempt) == (True, 1)
        assert inside.worker.health().ready
        assert engine.failed_on >= MANY
    await fleet.settled()


@pytest.mark.parametrize("tenant", ["a", ""])
@pytest.mark.parametrize("passing", [False, True])
@pytest.mark.parametrize("refuses_probes", [False, True])
async def test_one_caller_alone_has_its_engine_probed(
    fleet: Fleet, tenant: str, passing: bool, refuses_probes: bool
) -> None:
    """Without a success of anybody between; each of the requests ends by its own attempts."""
    engine, own = Picky(), {"tenant": tenant} if tenant else {}
    engine.passing, engine.refuses_probes = passing, refuses_probes
    async with worker_inside(fleet.url, engine, changed=CHANGED, **SETTINGS, max_deliveries=2) as inside:
        ids = [await fleet.add(body=chat(user="bad", seed=number), **own) for number in range(MANY)]
        assert {result.ok for result in await fleet.results(ids)} == {False}
        assert inside.worker.health().ready
    asked = len(engine.endpoints) if refuses_probes else 1  # a probe that is refused goes on at the next endpoint
    assert 1 <= engine.probes <= MANY * 2 // 5 * asked


@pytest.mark.parametrize("passing", [False, True])
async def test_failures_of_several_callers_rest_a_worker(fleet: Fleet, passing: bool) -> None:
    engine = Picky()
    engine.passing = passing
    async with worker_inside(fleet.url, engine, changed=CHANGED, **SETTINGS) as inside:
        for number in range(10):
            await fleet.add(body=chat(user="bad", seed=number), tenant="ab"[number % 2])
        await eventually(lambda: not inside.worker.health().ready, what="it is unfit")


@pytest.mark.parametrize("tenants", ["a", "ab", ""])
@pytest.mark.parametrize("fault", ["errors", "unavailable"])
async def test_a_broken_engine_rests_soon_whoever_asks_it(fleet: Fleet, tenants: str, fault: str) -> None:
    """And uses up neither the queue nor its attempts, and no request to find out that it is mended."""
    engine = small_engine()
    setattr(engine.faults, fault, 1_000_000)
    async with worker_inside(fleet.url, engine, changed=CHANGED, **SETTINGS, max_deliveries=2) as inside:
        for number in range(40):
            own = {"tenant": tenants[number % len(tenants)]} if tenants else {}
            await fleet.add(body=chat(seed=number), **own)
        await eventually(lambda: not inside.worker.health().ready, what="it is unfit")
        await fleet.runs({})
        assert 1_000_000 - getattr(engine.faults, fault) <= 5 + 8 + 1, "what ran beside the fifth, and the probe"
        assert await fleet.finished() <= 1
        setattr(engine.faults, fault, 0)


async def test_a_mended_engine_needs_no_request_to_be_found_so(fleet: Fleet) -> None:
    worker = await broken_worker(fleet, "short_rest")
    ids = await fleet.add_many(2 * UNFIT_AFTER)
    await unfit(worker)
    for each in ids:
        await fleet.broker.cancel(each)
    await fleet.results(ids)
    worker.send(signal.SIGUSR2)
    await eventually(lambda: worker.get("/readyz").status == 200, what="it is ready again")
    assert worker.events("engine_probed")[-1]["works"] is True


async def _ended(fleet: Fleet, count: int) -> bool:
    return await fleet.finished() >= count


async def test_without_doubt_a_broken_engine_fails_all_that_it_is_given(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    weigh = containment.CircuitBreaker.weigh
    monkeypatch.setattr(containment.CircuitBreaker, "weigh", lambda *given: [weigh(*given), given[1]][1])
    engine = small_engine()
    engine.faults.errors = 1_000_000
    async with worker_inside(fleet.url, engine, changed=CHANGED, **SETTINGS):
        await fleet.add_many(20)
        await eventually(lambda: _ended(fleet, 5), what="five failed for good")


async def test_without_letting_go_an_unfit_worker_keeps_what_it_holds(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dispatcher, "_stop_all", lambda *_: None)
    engine = small_engine()
    async with worker_inside(fleet.url, engine, changed=CHANGED, **SETTINGS) as inside:
        await fleet.add(body=chat(60))
        await fleet.runs({"w1": 1})
        engine.faults.errors = 1_000_000
        await fleet.add_many(10)
        await eventually(lambda: not inside.worker.health().ready, what="it is unfit")
        await fleet.runs({"w1": 1})
        monkeypatch.undo()
