"""One engine for several queues: whose turn it is, each queue's model, and what happens to one queue or all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streamfleet.common.errors import SettingsError
from streamfleet.common.protocol import Lane
from streamfleet.common.settings import QueueSettings, WorkerSettings, load
from streamfleet.producer import Client
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from streamfleet.worker.main import run_together
from streamfleet.worker.sharing import SharedEngine
from streamfleet.worker.worker import Worker
from tests.contract.simulated_server import Server
from tests.integration.worker_in_process import LittleMemory, small_engine, workers_inside
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

MODELS = "simulated=qa,simulated=qb"
TWO: dict[str, tuple[str, ...]] = {"qa": ("base",), "qb": ("sql",)}
LONG_S = 60.0


@pytest.fixture
async def queues(redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[Fleet, Fleet]]:
    """Two queues on one Redis; workers are those of the first."""
    first, second = Fleet(redis_url, tmp_path, "qa"), Fleet(redis_url, tmp_path, "qb")
    try:
        yield first, second
    finally:
        await first.close()
        await second.close()


class Remembering(SimulatedEngine):
    """An instant engine with one slot and two models, which remembers what it was asked, in order."""

    def __init__(self) -> None:
        super().__init__(small_engine(1)._profile, models=("base", "sql"))
        self.asked: list[tuple[str, str]] = []

    async def run(self, request: Any) -> Any:
        self.asked.append((request.id, str(request.body.get("model"))))
        return await super().run(request)

    @property
    def order(self) -> list[str]:
        return [identity for identity, _ in self.asked]


@contextlib.asynccontextmanager
async def busy(queues: tuple[Fleet, Fleet], **settings: Any) -> AsyncIterator[Remembering]:
    """Workers on both queues whose one slot is taken, so that what is added waits until the engine resumes."""
    engine = Remembering()
    given = {"prefetch": 0, "patient_lanes": "none", **settings}
    async with workers_inside(queues[0].url, engine, TWO, **given):
        engine.hang()
        await queues[0].add("first")
        await eventually(lambda: engine.asked)
        yield engine


async def staged(fleet: Fleet, count: int) -> None:
    """Wait until so many requests of a queue stand in its order."""

    async def all_of_them() -> bool:
        lanes = ("critical", "high", "normal", "low")
        counts = [await fleet.redis.zcard(f"{{{fleet.queue}}}:ready:{lane}") for lane in lanes]
        return bool(sum(counts) == count)

    await eventually(all_of_them, 10, f"{count} of {fleet.queue} are staged")


async def test_each_queue_has_its_model_and_a_body_may_name_another(queues: tuple[Fleet, Fleet]) -> None:
    qa, _ = queues
    engine = Remembering()
    async with workers_inside(qa.url, engine, TWO), Client(qa.url, queue="qb") as client:
        for fleet in queues:
            await fleet.add("plain")
            assert (await fleet.result("plain")).ok
        handle = await client.enqueue(chat(model="base"), id="named")
        assert (await handle.result(10)).ok
        assert engine.asked == [("plain", "base"), ("plain", "sql"), ("named", "base")]
        refused = await (await client.enqueue(chat(model="nobody"), id="wrong")).result(10)
        assert (refused.status, refused.http_status) == ("failed", 404)
        assert refused.error is not None
        assert (refused.error["param"], refused.error["code"]) == ("model", "model_not_found")
        assert "base or sql" in refused.error["message"]
        about = [await fleet.broker.worker("w1") for fleet in queues]
    assert [each and (each["models"], each["also_serves"]) for each in about] == [(["base"], ["qb"]), (["sql"], ["qa"])]
    for fleet in queues:
        await fleet.settled()


async def test_requests_of_equal_ids_and_stream_ids_are_two(queues: tuple[Fleet, Fleet]) -> None:
    """Two queues know nothing of each other: their leases may look alike."""
    async with workers_inside(queues[0].url, small_engine(4, models=("base", "sql")), TWO):
        for fleet in queues:
            body = json.dumps(chat(0.3))
            await fleet.redis.xadd(f"{{{fleet.queue}}}:lane:normal", {"body": body}, id="1-1")
        results = [await fleet.result("normal:1-1") for fleet in queues]
    assert all(result.ok for result in results)
    for fleet in queues:
        await fleet.settled()


@pytest.mark.parametrize(
    ("later", "earlier"),
    [(("normal", 40_000), ("normal", 20_000)), (("normal", 20_000), ("high", 40_000))],
    ids=["the earlier deadline", "the more urgent lane"],
)
async def test_what_is_first_in_both_queues_together_goes_first(
    queues: tuple[Fleet, Fleet], later: tuple[str, int], earlier: tuple[str, int]
) -> None:
    async with busy(queues) as engine:
        for number in range(3):
            for fleet, name, (lane, ttl) in zip(queues, "ab", (later, earlier), strict=True):
                await fleet.add(f"{name}{number}", lane, ttl=str(ttl + number))
        for fleet in queues:
            await staged(fleet, 3)
        engine.resume()
        await queues[0].results(["a0", "a1", "a2"])
    assert engine.order == ["first", "b0", "b1", "b2", "a0", "a1", "a2"]


async def test_a_queue_of_patient_work_gets_its_share_beside_urgent_work(queues: tuple[Fleet, Fleet]) -> None:
    qa, qb = queues
    async with busy(queues) as engine:
        for number in range(60):
            await qa.add(f"a{number}", "critical", chat(0.01))
        for number in range(3):
            await qb.add(f"b{number}", "low", chat(0.01))
        await staged(qa, 60)
        await staged(qb, 3)
        engine.resume()
        await qa.results([f"a{number}" for number in range(60)])
        places = [engine.order.index(f"b{number}") for number in range(2)]
    assert places[0] <= 22
    assert places[1] <= 43


async def test_a_paused_queue_holds_up_no_other(queues: tuple[Fleet, Fleet]) -> None:
    qa, qb = queues
    async with busy(queues) as engine:
        await qa.broker.pause([Lane.CRITICAL])
        for number in range(3):
            await qa.add(f"a{number}", "critical")
            await qa.add(f"patient{number}", "low")
            await qb.add(f"b{number}", "normal")
        await staged(qa, 6)
        await staged(qb, 3)
        engine.resume()
        await qa.results(["patient0", "patient1", "patient2"])
        assert engine.order == ["first", "b0", "b1", "b2", "patient0", "patient1", "patient2"]
        await qa.broker.resume([Lane.CRITICAL])
        await qa.results(["a0", "a1", "a2"])


async def test_together_they_pull_no_more_than_there_are_slots(
    queues: tuple[Fleet, Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    most, add = 0, InFlight.add

    def watched(self: InFlight, request: InFlightRequest) -> None:
        nonlocal most
        add(self, request)
        most = max(most, self.load().requests)

    monkeypatch.setattr(InFlight, "add", watched)
    ids = [f"r{number}" for number in range(30)]
    for fleet in queues:
        for identity in ids:
            await fleet.add(identity, body=chat(0.05))
    async with workers_inside(queues[0].url, small_engine(5, models=("base", "sql")), TWO, prefetch=0):
        for fleet in queues:
            await fleet.results(ids)
    assert most == 5


async def test_together_they_ask_no_more_of_the_engine_than_it_holds(queues: tuple[Fleet, Fleet]) -> None:
    engine = LittleMemory(speed=4.0)
    engine.models = ("base", "sql")
    most = 0
    async with workers_inside(queues[0].url, engine, TWO, prefetch=0) as workers:
        ids = [f"r{number}" for number in range(24)]
        for fleet in queues:
            for identity in ids:
                await fleet.add(identity, body=chat(2.0))
        for fleet in queues:
            waiting = asyncio.ensure_future(fleet.results(ids, 30))
            while not waiting.done():
                most = max(most, sum(len(worker._in_flight.active()) for worker in workers))
                await asyncio.sleep(0.005)
            assert all(result.ok for result in waiting.result())
    assert 2 <= most <= 5, "each asks for about 200 of 1,000 tokens"


@pytest.mark.parametrize("lane", ["normal", "low"])
async def test_urgent_work_of_one_queue_takes_the_place_of_patient_work_of_the_other(
    queues: tuple[Fleet, Fleet], lane: str
) -> None:
    qa, qb = queues
    async with workers_inside(qa.url, small_engine(2, models=("base", "sql")), TWO, prefetch=0):
        for number in range(2):
            await qa.add(f"patient{number}", lane, chat(LONG_S))
        await qa.runs({"w1": 2})
        await qb.add("urgent", "critical")
        assert (await qb.result("urgent")).ok
        await qa.runs({"w1": 2})


async def test_a_server_with_several_models_has_a_queue_for_each(queues: tuple[Fleet, Fleet]) -> None:
    """The worker waits until the server lists all of them, and passes on what it tells of its cache."""
    qa, qb = queues
    engine = Remembering()
    engine.models = ("base",)
    await engine.start()
    server = Server(engine)
    url = f"http://127.0.0.1:{await server.serve()}"
    worker = qa.start("w1", engine="openai", vllm_url=url, remote_slots=4, worker_models="base=qa,sql=qb")
    said = await worker.logged("waiting_for_engine")
    assert said[0]["reason"] == "the engine does not serve sql; it serves base"
    engine.models = ("base", "sql")
    await eventually(lambda: len(worker.events("worker_ready")) == 2, 10)
    body = chat(messages=[{"role": "user", "content": "The same long question of both queues. " * 10}])
    for fleet in queues:
        cached = []
        for identity in ("first", "second"):
            await fleet.add(identity, body=body)
            cached.append((await fleet.result(identity)).cached_tokens)
        assert cached == [0, 96], "an adapter shares none with its model"
    assert engine.asked == [("first", "base"), ("second", "base"), ("first", "sql"), ("second", "sql")]
    await qb.add("wrong", body=chat(model="nobody"))
    refused = await qb.result("wrong")
    assert (refused.status, refused.http_status) == ("failed", 404)
    server.close()
    await engine.stop()


# -- ends --------------------------------------------------------------------------------------------------


async def test_work_of_both_queues_survives_the_death_of_their_worker(queues: tuple[Fleet, Fleet]) -> None:
    qa, _ = queues
    first = await qa.worker("w1", worker_models=MODELS)
    for fleet in queues:
        for number in range(6):
            await fleet.add(f"r{number}", body=chat(1.0), reply="here")
        await fleet.runs({"w1": 6})
    first.send(signal.SIGKILL)
    await qa.worker("w2", worker_models=MODELS)
    for fleet in queues:
        results = await fleet.results([f"r{number}" for number in range(6)])
        assert {(result.ok, result.worker, result.attempt) for result in results} == {(True, "w2", 2)}
        assert sorted(await fleet.notified("here")) == [f"r{number}" for number in range(6)]
        await fleet.settled()


async def test_sigterm_ends_what_runs_of_both_queues(queues: tuple[Fleet, Fleet]) -> None:
    qa, qb = queues
    worker = await qa.worker("w1", worker_models=MODELS)
    await qa.add("short", body=chat(0.3))
    await qb.add("longer", body=chat(1.5))
    for fleet in queues:
        await fleet.runs({"w1": 1})
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    assert (await qa.result("short", 1)).ok
    assert (await qb.result("longer", 1)).ok
    for fleet in queues:
        assert await fleet.broker.worker("w1") is None
        await fleet.settled()


async def test_a_drain_through_one_queue_ends_the_process(queues: tuple[Fleet, Fleet]) -> None:
    qa, qb = queues
    worker = await qa.worker("w1", worker_models=MODELS)
    await qa.add("a", body=chat(0.3))
    await qb.add("b", body=chat(1.0))
    for fleet in queues:
        await fleet.runs({"w1": 1})
    await qb.broker.drain("w1")
    assert await worker.ended() == 0
    assert (await qa.result("a", 1)).ok
    assert (await qb.result("b", 1)).ok


async def test_a_dead_engine_ends_the_workers_of_all_queues(queues: tuple[Fleet, Fleet]) -> None:
    qa, _ = queues
    engine = small_engine(4, models=("base", "sql"))
    given = load(WorkerSettings)
    shared = SharedEngine(engine, given, TWO)
    workers = [
        Worker("w1", load(QueueSettings, redis_url=qa.url, queue=queue, lease_ms=1_000), shared, given) for queue in TWO
    ]
    life = asyncio.create_task(run_together(workers))
    await eventually(lambda: all(worker.health().ready for worker in workers))
    for fleet in queues:
        await fleet.add("r", body=chat(LONG_S))
        await fleet.runs({"w1": 1})
    engine.die()
    assert await asyncio.wait_for(life, 10) == 3
    for fleet in queues:
        assert await fleet.broker.worker("w1") is None
        assert await fleet.running() == {}


async def test_a_model_that_the_engine_does_not_serve_is_refused_at_the_start(queues: tuple[Fleet, Fleet]) -> None:
    worker = queues[0].start("w1", worker_models="simulated=qa,sqll=qb")
    assert await worker.ended() == 2
    said = "STREAMFLEET_WORKER_MODELS: the engine does not serve sqll; it serves simulated"
    assert said in worker.printed()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"worker_models": "base"}, "must be MODEL=QUEUE or MODEL=QUEUE=NAME-THAT-WORKERS-KNOW"),
        ({"worker_models": "base=q{1}"}, "queue 'q{1}'"),
        ({"worker_models": "a=qa,b=qb", "batching": "window"}, "STREAMFLEET_BATCHING=window gathers requests of one"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said.replace("{", r"\{").replace("}", r"\}")):
        load(WorkerSettings, **given)


def test_models_of_a_queue_are_those_that_the_engine_knows() -> None:
    settings = load(WorkerSettings, worker_models="chat=qa=Qwen/Qwen2.5-7B, sql=qb, small=qa")
    assert settings.models_of_queues == {"qa": ("Qwen/Qwen2.5-7B", "small"), "qb": ("sql",)}
