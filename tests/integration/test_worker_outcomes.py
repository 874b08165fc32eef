"""Ends of requests: cancelled, expired, retried, dead, failed; queued and running."""

from __future__ import annotations

import json
import threading
import time

import pytest

from streamfleet.common.results import Result
from streamfleet.operator.tenants import read_tenants
from streamfleet.worker.engine.openai import OpenAIEngine, Upstream
from streamfleet.worker.lease import LeaseKeeper
from tests.broker import Broker
from tests.constants import LATE_RETRIES
from tests.integration.http_engine import ANSWER, HttpEngine, Reply
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

BROKEN = Reply(500, {"error": {"message": "out of order", "type": "server_error", "param": None, "code": None}})


def remote(engine: HttpEngine) -> OpenAIEngine:
    return OpenAIEngine(Upstream(engine.url))


def assert_error(result: Result, status: str, http_status: int, code: str | None, param: str | None) -> None:
    assert (result.status, result.http_status, result.response) == (status, http_status, None)
    assert result.error is not None
    assert set(result.error) == {"message", "type", "param", "code"}
    assert (result.error["code"], result.error["param"]) == (code, param)
    assert result.error["message"]


async def test_who_leaves_a_server_that_counts_at_the_end_pays_for_the_time_in_it(fleet: Fleet) -> None:
    """The server writes 200 tokens a second. One request expires in it, one is cancelled in it; nobody counts them."""
    counted = {"prompt_tokens": 1, "completion_tokens": 60, "total_tokens": 61}

    def answer(request_id: str, _: int) -> Reply:
        return Reply(body=ANSWER | {"usage": counted}, after_s=0.3 if request_id.startswith("stays") else 60.0)

    async with HttpEngine(answer).serving() as engine, worker_inside(fleet.url, remote(engine)):
        asked = chat() | {"max_tokens": 6_000}
        assert all(result.ok for result in await fleet.results([await fleet.add(f"stays-{n}") for n in range(3)]))
        await fleet.add("late", body=asked, ttl="900", tenant="late")
        await fleet.add("gone", body=asked, tenant="gone")
        await eventually(lambda: engine.asked["gone"] == 1, what="the server has it")
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began >= 0.5, what="it has been there for a while")
        assert await fleet.broker.cancel("gone")
        assert [(await fleet.result(name)).status for name in ("gone", "late")] == ["cancelled", "expired"]
        await fleet.settled()
    tokens = {view.tenant: view.tokens for view in await read_tenants(fleet.broker)}
    assert 50 < tokens["gone"] < 1_000
    assert 80 < tokens["late"] < 1_000


async def test_who_makes_each_attempt_fail_late_pays_for_the_time_in_the_server(fleet: Fleet) -> None:
    """The server writes 200 tokens a second; nobody counts those of a run that a time-out or an error ends."""
    counted = {"prompt_tokens": 1, "completion_tokens": 60, "total_tokens": 61}
    replies = {
        "stays": Reply(body=ANSWER | {"usage": counted}, after_s=0.3),
        "slow": Reply(after_s=60.0),
        "broken": Reply(500, {"error": {"message": "out of memory"}}, after_s=0.5),
        "uncounted": Reply(body={key: ANSWER[key] for key in ANSWER if key != "usage"}, after_s=0.5),
        "quick": BROKEN,
    }
    engine = HttpEngine(lambda request_id, _: replies[request_id.partition("-")[0]])
    async with engine.serving():
        remote = OpenAIEngine(Upstream(engine.url, timeout_s=0.8))
        async with worker_inside(fleet.url, remote, max_deliveries=2):
            assert all(result.ok for result in await fleet.results([await fleet.add(f"stays-{n}") for n in range(3)]))
            names = [name for name in replies if name != "stays"]
            for name in names:
                await fleet.add(name, body=chat() | {"max_tokens": 6_000}, tenant=name)
            ends = [(await fleet.result(name)).status for name in names]
            await fleet.settled()
    assert ends == ["dead", "dead", "succeeded", "dead"]
    tokens = {view.tenant: view.tokens for view in await read_tenants(fleet.broker)}
    assert 2 * 80 < tokens["slow"] < 2_000
    assert 2 * 50 < tokens["broken"] < 2_000
    assert 50 < tokens["uncounted"] < 1_000
    assert tokens.get("quick", 0) == 0


async def test_a_queued_request_is_cancelled(fleet: Fleet) -> None:
    async with worker_inside(fleet.url, small_engine(1), prefetch=0):
        running = await fleet.add(body=chat(60))
        await fleet.runs({"w1": 1})
        queued = await fleet.add(reply="me")
        assert await fleet.broker.cancel(queued)
        assert_error(await fleet.result(queued), "cancelled", 499, "cancelled", None)
        assert await fleet.broker.cancel(running)
        await fleet.settled()
    assert await fleet.notified("me") == [queued]
    assert await fleet.dead_letters() == []


async def test_a_running_request_is_cancelled_and_gone_from_the_engine(fleet: Fleet) -> None:
    engine = small_engine()
    async with worker_inside(fleet.url, engine, lease_ms=60_000):
        request = await fleet.add(body=chat(60))
        await eventually(lambda: engine.running == 1, what="it runs")
        assert await fleet.broker.cancel(request)
        await eventually(lambda: engine.running == 0, what="it is gone from the engine, long before it is renewed")
        assert_error(await fleet.result(request), "cancelled", 499, "cancelled", None)
        await fleet.settled()
    assert (await fleet.broker.audit()).counts["cancelled"] == 1


async def test_what_is_cancelled_in_a_workers_first_moment_is_cancelled_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first request may be there before the thread that reads cancels is."""
    begins, cancels = threading.Event(), LeaseKeeper._cancels

    async def late(keeper: LeaseKeeper, broker: Broker) -> None:
        await eventually(begins.is_set, 20)
        await cancels(keeper, broker)

    monkeypatch.setattr(LeaseKeeper, "_cancels", late)
    engine = small_engine()
    async with worker_inside(fleet.url, engine, lease_ms=60_000):
        request = await fleet.add(body=chat(60))
        await eventually(lambda: engine.running == 1, what="it runs")
        assert await fleet.broker.cancel(request)
        begins.set()
        await eventually(lambda: engine.running == 0, what="it is gone from the engine, long before it is renewed")


async def test_a_worker_begins_though_somebody_broke_the_key_of_the_cancels(fleet: Fleet) -> None:
    await fleet.redis.set(fleet.broker.keys.cancels, "no stream")
    async with worker_inside(fleet.url, small_engine()):
        assert (await fleet.result(await fleet.add())).ok


async def test_cancelling_hangs_up_on_a_remote_engine(fleet: Fleet) -> None:
    async with (
        HttpEngine(lambda _id, _n: Reply(after_s=60)).serving() as engine,
        worker_inside(fleet.url, remote(engine)),
    ):
        request = await fleet.add()
        await eventually(lambda: engine.asked[request], what="the engine is asked")
        assert await fleet.broker.cancel(request)
        await eventually(lambda: engine.hung_up == [request], 5, "the worker hangs up")
        await fleet.settled()


async def test_a_request_expires_in_the_queue(fleet: Fleet) -> None:
    async with worker_inside(fleet.url, small_engine(1), prefetch=0):
        running = await fleet.add(body=chat(60))
        await fleet.runs({"w1": 1})
        late = await fleet.add(ttl=1, reply="me")
        added_ms = await fleet.broker.now_ms()

        async def passed() -> bool:
            return await fleet.broker.now_ms() > added_ms + 1

        await eventually(passed, what="its time is over while it waits: a quick worker could claim it before")
        await fleet.broker.cancel(running)
        assert_error(await fleet.result(late), "expired", 504, "deadline_exceeded", "deadline")
        await fleet.settled()
    (letter,) = await fleet.dead_letters()
    assert (letter["_id"], letter["_status"], letter["_attempts"]) == (late, "expired", "0")
    assert json.loads(letter["body"]) == chat()
    assert await fleet.notified("me") == [late]


async def test_a_request_expires_in_the_queue_while_the_engine_stays_full(fleet: Fleet) -> None:
    async with worker_inside(fleet.url, small_engine(1), prefetch=0):
        await fleet.add(body=chat(60))
        await fleet.runs({"w1": 1})
        late = await fleet.add(ttl=300, reply="me")
        # Nobody pulls: it is the housekeeping that finds it, on its next round.
        assert_error(await fleet.result(late), "expired", 504, "deadline_exceeded", "deadline")
        assert await fleet.notified("me") == [late]
        await fleet.runs({"w1": 1})


async def test_a_request_expires_while_it_runs_and_is_aborted_at_once(fleet: Fleet) -> None:
    engine = small_engine()
    async with worker_inside(fleet.url, engine):
        late = await fleet.add(body=chat(60), ttl=2_000)
        result = await fleet.result(late)
        assert engine.running == 0
        assert_error(result, "expired", 504, "deadline_exceeded", "deadline")
        assert result.timings.total_ms is not None
        assert 1_990 <= result.timings.total_ms < 6_000
        assert result.attempt == 1
        await fleet.settled()
    assert [letter["_status"] for letter in await fleet.dead_letters()] == ["expired"]


async def test_a_passing_fault_is_tried_again_until_it_works(fleet: Fleet) -> None:
    async with (
        HttpEngine(lambda _id, n: BROKEN if n < 3 else Reply()).serving() as engine,
        worker_inside(fleet.url, remote(engine)),
    ):
        request = await fleet.add(reply="me")
        result = await fleet.result(request)
        assert (result.ok, result.attempt, engine.asked[request]) == (True, 3, 3)
        assert await fleet.notified("me") == [request]
        await fleet.settled()
    assert (await fleet.broker.audit()).tries == 0


async def test_a_fault_that_stays_ends_as_dead(fleet: Fleet) -> None:
    async with (
        HttpEngine(lambda _id, _n: BROKEN).serving() as engine,
        worker_inside(fleet.url, remote(engine), max_deliveries=3),
    ):
        request = await fleet.add(reply="me")
        result = await fleet.result(request)
        assert_error(result, "dead", 500, "engine_error", None)
        assert "500" in str(result.error)
        assert (result.attempt, engine.asked[request]) == (3, 3)
        assert await fleet.notified("me") == [request]
        await fleet.settled()
    (letter,) = await fleet.dead_letters()
    assert (letter["_status"], letter["_attempts"]) == ("dead", "3")


async def test_no_retry_comes_after_the_deadline(fleet: Fleet) -> None:
    later = Reply(500, BROKEN.body, (("Retry-After", "30"),))
    async with (
        HttpEngine(lambda _id, _n: later).serving() as engine,
        worker_inside(fleet.url, remote(engine), changed={"worker.complete.RETRY_MAX_MS": 60_000}),
    ):
        asked = time.monotonic()
        request = await fleet.add(ttl=20_000)
        result = await fleet.result(request)
        assert time.monotonic() - asked < 5
        assert (result.status, result.attempt, engine.asked[request]) == ("expired", 1, 1)
        await fleet.settled()


async def test_being_asked_back_at_once_does_not_use_up_all_tries_at_once(fleet: Fleet) -> None:
    at_once = Reply(500, BROKEN.body, (("Retry-After", "0"),))
    async with (
        HttpEngine(lambda _id, _n: at_once).serving() as engine,
        worker_inside(fleet.url, remote(engine), changed=LATE_RETRIES),
    ):
        request = await fleet.add()
        await eventually(lambda: fleet.redis.zcard("{default}:delayed"), what="it is put off")
        assert engine.asked[request] == 1


async def test_a_permanent_error_fails_at_once(fleet: Fleet) -> None:
    refusal = {"error": {"message": "too hot", "type": "invalid_request_error", "param": "temperature", "code": None}}
    async with (
        HttpEngine(lambda _id, _n: Reply(422, refusal)).serving() as engine,
        worker_inside(fleet.url, remote(engine)),
    ):
        request = await fleet.add()
        assert_error(await fleet.result(request), "failed", 422, None, "temperature")
        assert engine.asked[request] == 1
        await fleet.settled()


async def test_an_engine_that_is_not_up_yet_is_waited_for(fleet: Fleet) -> None:
    engine = HttpEngine()
    async with engine.serving():
        port, url = engine.port, engine.url
    worker = fleet.start("w1", vllm_url=url, engine="openai")
    await worker.logged("waiting_for_engine")
    assert (worker.get("/livez").status, worker.get("/readyz").status) == (200, 503)
    async with engine.serving(port):
        await worker.ready()
        assert (await fleet.result(await fleet.add())).ok


async def test_faults_inside_the_engine_are_tried_again(fleet: Fleet) -> None:
    engine = small_engine()
    async with worker_inside(fleet.url, engine):
        engine.faults.unavailable = 2
        turned_away = await fleet.result(await fleet.add())
        engine.faults.aborts = 1
        dropped = await fleet.result(await fleet.add())
        engine.faults.errors = 1
        broken = await fleet.result(await fleet.add())
    assert (turned_away.ok, turned_away.attempt) == (True, 3)
    assert (dropped.ok, dropped.attempt) == (True, 2)
    assert (broken.status, broken.http_status, broken.attempt) == ("failed", 500, 1)
