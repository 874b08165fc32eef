"""An engine that dies under a worker: its work goes back counted, nothing else is touched, and the worker ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streamfleet.common.broker.types import Completion
from streamfleet.worker.complete import Completer
from streamfleet.worker.engine.base import EngineError
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.in_flight import InFlightRequest
from streamfleet.worker.outcome import Finished
from tests.constants import QUICK_RETRIES
from tests.contract.subjects import simulated_server
from tests.integration.http_engine import MODELS, HttpEngine, Reply
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
    assert set((await fleet.redis.hgetall("{default}:tries")).values()) == {"1 w1"}
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
    assert [letter["_workers"] for letter in await fleet.dead_letters()] == ["w1 w2"]
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
        await fleet.runs({"w1": 2}, within_s=10)
        assert await fleet.redis.hlen("{default}:tries") == 0
        assert not inside.life.done()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that leaves soon does so by itself, not because its last read or its last write gives up."""
    monkeypatch.setattr("streamfleet.worker.worker.LAST_WRITES_S", 30.0)
    monkeypatch.setattr("streamfleet.worker.pull.WAIT_MS", 60_000)


@pytest.mark.usefixtures("patient")
async def test_a_gathered_window_goes_back_untried(fleet: Fleet) -> None:
    window: dict[str, Any] = {"batching": "window", "batch_size": 9, "batch_timeout_ms": 60_000, **NO_RECLAIM}
    async with worker_inside(fleet.url, small_engine(9), **window) as inside:
        await fleet.add_many(3)
        await fleet.runs({"w1": 3})
        inside.worker.ask_to_stop()
        assert await inside.ended(within_s=10) == 0
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

    def fragile(completer: Completer, request: InFlightRequest, outcome: Finished) -> Completion:
        if request.lease.request_id == "poison":
            raise RuntimeError("a bug")
        return completion(completer, request, outcome)

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


@pytest.mark.usefixtures("patient")
async def test_a_worker_stopped_in_its_first_moment_leaves_without_a_trace(fleet: Fleet) -> None:
    for _ in range(5):
        async with worker_inside(fleet.url, small_engine(), lease_ms=60_000) as inside:
            inside.worker.ask_to_stop()
            assert await inside.ended(within_s=10) == 0
        assert await fleet.redis.hgetall("{default}:workers") == {}


async def test_a_hung_remote_server_holds_no_request_and_its_worker_is_unfit(fleet: Fleet, repository: Path) -> None:
    """Its kernel still accepts connections, so nothing but its silence tells."""
    async with simulated_server(repository) as (url, server):
        remote: dict[str, Any] = {
            "engine": "openai",
            "vllm_url": url,
            "watchdog_s": 1,
            **NO_RECLAIM,
        }
        worker = await fleet.worker("w1", ["short_rest"], QUICK_RETRIES, **remote, max_deliveries=1_000)
        server.send_signal(signal.SIGSTOP)
        ids = await fleet.add_many(3)
        await fleet.runs({"w1": 3})
        await worker.logged("fitness_changed")
        assert all("hangs" in event["reason"] for event in worker.events("request_postponed"))
        await eventually(lambda: worker.get("/readyz").status == 503, what="it is not ready")
        assert "hangs" in worker.get("/readyz").text
        assert set((await fleet.redis.hgetall("{default}:tries")).values()) == {"1"}
        server.send_signal(signal.SIGCONT)
        results = await fleet.results(ids)
        assert [result.ok for result in results] == [True] * 3
        await eventually(lambda: worker.get("/readyz").status == 200, what="it is ready again")
        await fleet.settled()


async def test_a_slow_remote_server_that_lives_is_waited_for(fleet: Fleet) -> None:
    async with HttpEngine(lambda _id, _n: Reply(after_s=2.5)).serving() as slow:
        remote: dict[str, Any] = {"engine": "openai", "vllm_url": slow.url, "remote_slots": 1, "watchdog_s": 1}
        worker = await fleet.worker("w1", **remote)
        results = await fleet.results(await fleet.add_many(3), within_s=40)  # as many as there are connections, and one
        assert [(result.ok, result.attempt) for result in results] == [(True, 1)] * 3
        assert worker.get("/readyz").status == 200


async def test_an_answer_that_trickles_in_is_bounded_as_a_whole(fleet: Fleet) -> None:
    async with trickling_server() as url:
        worker = await fleet.worker("w1", engine="openai", vllm_url=url, remote_timeout_s=1, max_deliveries=1)
        result = await fleet.result(await fleet.add())
        assert result.status == "dead"
        assert "time-out" in str(result.error)
        assert worker.alive


@contextlib.asynccontextmanager
async def trickling_server() -> AsyncIterator[str]:
    """Lists a model, and answers everything else with a byte now and then, until its context ends."""
    over = asyncio.Event()
    connections: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.update({task} if (task := asyncio.current_task()) else set())
        listed = json.dumps(MODELS).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET"):
                writer.write(head % len(listed) + listed)
            else:
                writer.write(head % 100_000)
                while not over.is_set() and not writer.is_closing():
                    writer.write(b" ")
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(over.wait(), 0.1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()
        await asyncio.gather(*connections, return_exceptions=True)


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
