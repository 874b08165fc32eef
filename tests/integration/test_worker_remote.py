"""Workers in front of a server that is busy, or away: nothing is lost to it, and nothing is aborted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import openai
import pytest

from streamfleet.worker.engine.openai import OpenAIEngine, Upstream
from tests.integration.batch_lines import ended, line, start, write
from tests.integration.cli_processes import piped
from tests.integration.gateway_process import GatewayProcess
from tests.integration.http_engine import KILLS, HttpEngine, Reply
from tests.integration.worker_in_process import Inside, worker_inside
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

HALF_S = Reply(after_s=0.5)
NO_QUOTA = Reply(429, {"error": {"message": "pay", "type": "insufficient_quota", "code": "insufficient_quota"}})
LOADING = Reply(503, {"error": {"message": "loading"}})


@contextlib.asynccontextmanager
async def workers(fleet: Fleet, urls: Iterable[str], **settings: Any) -> AsyncIterator[list[Inside]]:
    """Workers with 64 slots, one for each URL, in this process."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                worker_inside(fleet.url, OpenAIEngine(Upstream(url, 64)), f"w{number}", changed={}, **settings)
            )
            for number, url in enumerate(urls)
        ]


async def add(fleet: Fleet, count: int, **fields: Any) -> list[str]:
    """Requests of five tenants, each with a body of its own."""
    return [await fleet.add(body={**chat(), "seed": n}, tenant=f"t{n % 5}", **fields) for n in range(count)]


@pytest.mark.parametrize(("limit", "count"), [(48, 1), (8, 2)])
async def test_a_busy_server_gets_as_many_requests_as_it_takes(fleet: Fleet, limit: int, count: int) -> None:
    """Its time is judged in virtual time: tests/unit/test_engine_server_limit.py."""
    server = HttpEngine(lambda _id, _n: Reply(after_s=0.25))
    server.limit = limit
    async with server.serving(), workers(fleet, [server.url] * count):
        results = await fleet.results(await add(fleet, 100), 60)
    assert all(result.ok and result.attempt == 1 for result in results)
    assert server.hung_up == []
    await fleet.settled()


async def test_retry_after_delays_the_request_and_not_the_others(fleet: Fleet) -> None:
    later = Reply(429, {}, (("Retry-After-Ms", "2500"), ("Retry-After", "60")))
    server = HttpEngine(lambda request_id, n: later if (request_id, n) == ("late", 1) else Reply())
    async with server.serving(), workers(fleet, [server.url]):
        late = await fleet.add("late")
        await eventually(lambda: server.asked["late"] == 1, what="it was refused")
        began = time.monotonic()
        assert all(result.ok for result in await fleet.results([await fleet.add() for _ in range(10)]))
        assert server.asked["late"] == 1
        result = await fleet.result(late)
        assert (result.ok, result.attempt) == (True, 1)
        assert time.monotonic() - began > 2.4
        await fleet.settled()


async def test_a_request_that_is_held_back_ends_with_its_deadline_or_goes_on_elsewhere(fleet: Fleet) -> None:
    server = HttpEngine(lambda _id, _n: Reply(429, {}, (("Retry-After", "30"),)))
    async with server.serving():
        async with workers(fleet, [server.url]):
            assert (await fleet.result(await fleet.add(ttl=1_500))).status == "expired"
            request = await fleet.add()
            await eventually(lambda: server.asked[request] == 1, what="it was refused")
        server.answer = lambda _id, _n: Reply()
        async with workers(fleet, [server.url]):
            result = await fleet.result(request)
            assert (result.ok, result.attempt) == (True, 1)


async def test_a_drain_aborts_nothing_that_runs_beyond_a_lower_limit(fleet: Fleet) -> None:
    server = HttpEngine(lambda _id, _n: Reply(after_s=2))
    async with server.serving(), workers(fleet, [server.url]) as (inside,):
        ids = await add(fleet, 8)
        await eventually(lambda: server.inside == 8, what="all run")
        inside.worker._engine._limit.restart()  # type: ignore[attr-defined]
        await eventually(lambda: inside.worker.describe()["slots"] == 1, what="it is limited")
        assert inside.worker._shared.containment.slots == 64  # company of suspects shrinks from these
        inside.worker.ask_to_stop()
        results = await fleet.results(ids)
        assert all(result.ok and result.attempt == 1 for result in results)
        assert await inside.ended() == 0
        assert server.hung_up == []


@pytest.mark.parametrize("drain_ms", [10_000, 200])
async def test_what_waits_for_a_limited_server_at_a_drain_is_answered_or_goes_back(fleet: Fleet, drain_ms: int) -> None:
    server = HttpEngine(lambda _id, _n: Reply(after_s=1))
    server.limit = 2
    async with server.serving():
        async with workers(fleet, [server.url], drain_ms=drain_ms) as (inside,):
            ids = await add(fleet, 20)
            unsent = inside.worker._engine._unsent  # type: ignore[attr-defined]
            await eventually(lambda: inside.worker.describe()["slots"] <= 3 and unsent, what="some wait in the engine")
            inside.worker.ask_to_stop()
            assert await inside.ended() == 0
        assert len(server.hung_up) <= (0 if drain_ms == 10_000 else 3)
        await fleet.runs({})
        server.limit = None
        async with workers(fleet, [server.url]):
            results = await fleet.results(ids)
        assert all(result.ok and result.attempt == 1 for result in results)
        await fleet.settled()


async def test_a_worker_without_quota_is_unready_and_says_why(fleet: Fleet) -> None:
    server = HttpEngine(lambda _id, _n: NO_QUOTA)
    async with server.serving(), workers(fleet, [server.url]) as (inside,):
        ids = await add(fleet, 20)
        await eventually(lambda: not inside.worker.health().ready, what="it is not ready")
        described = inside.worker.describe()
        assert (described["state"], "insufficient_quota" in described["unready"]) == ("unfit", True)
        assert server.asked.total() <= 20
        await fleet.runs({})
        assert await fleet.broker.results(ids) == [None] * 20


async def test_a_worker_follows_its_server_down_and_up(fleet: Fleet) -> None:
    server = HttpEngine(lambda _id, _n: HALF_S)
    server.limit = 48
    async with server.serving(), workers(fleet, [server.url]) as (inside,):
        ids = await add(fleet, 1_500)

        async def until(least: int, most: int) -> None:
            await eventually(lambda: least <= inside.worker.describe()["slots"] <= most, 20, f"{least} to {most}")

        await until(33, 56)
        server.limit = 8
        await until(1, 9)
        assert inside.worker.describe()["limited"]
        server.limit = 64
        await until(60, 64)
        results = await fleet.results(ids, 60)
    assert all(result.ok and result.attempt == 1 for result in results)
    assert server.hung_up == []


@pytest.mark.parametrize("how", ["refused", "503"])
async def test_a_server_that_is_away_for_a_while_costs_no_attempt(fleet: Fleet, how: str) -> None:
    server = HttpEngine(lambda _id, _n: HALF_S)
    async with contextlib.AsyncExitStack() as serving:
        await serving.enter_async_context(server.serving())
        async with workers(fleet, [server.url]) as (inside,):
            assert (await fleet.result(await fleet.add())).ok
            if how == "refused":
                await serving.aclose()
            else:
                server.down = LOADING
            ids = await add(fleet, 40)
            short = await fleet.add(ttl=3_000)
            await eventually(lambda: not inside.worker.health().ready, what="it is not ready")
            assert "unready" in inside.worker.describe()
            asked = server.asked.total()
            assert (await fleet.result(short)).status == "expired"
            assert inside.worker.describe()["state"] == "unfit"
            await fleet.runs({})
            assert server.asked.total() == asked
            server.down, server.answer = None, lambda _id, _n: Reply(after_s=0.1)
            async with server.serving(server.port) if how == "refused" else contextlib.nullcontext():
                results = await fleet.results(ids)
            assert all(result.ok and result.attempt == 1 for result in results)
            assert inside.worker.health().ready
            await fleet.settled()


@pytest.mark.parametrize("how", ["limited", "away", "without quota"])
async def test_operators_see_what_its_server_does_to_a_worker(fleet: Fleet, how: str) -> None:
    server = HttpEngine(lambda _id, _n: NO_QUOTA if how == "without quota" else HALF_S)
    async with server.serving():
        worker = await fleet.worker("w1", engine="openai", vllm_url=server.url)
        if how == "limited":
            server.limit = 8
        elif how == "away":
            server.down = LOADING
        await add(fleet, 200)
        ready, words = {
            "limited": (1, "ready, limited to"),
            "away": (0, f"{server.url} answers 503"),
            "without quota": (0, f"{server.url} answers 429: insufficient_quota"),
        }[how]

        async def shown() -> bool:
            said = await asyncio.to_thread(piped, fleet.url, "workers")
            return words in said.stdout and worker.metric("streamfleet_ready") == ready

        await eventually(shown, 10, f"{how}: workers and metrics say so")
        answer = await asyncio.to_thread(worker.get, "/readyz")
        assert (answer.status, words in answer.text) == ((200, False) if ready else (503, True))
        if how == "limited":
            assert worker.metric("streamfleet_server_busy_total") > 0
            await eventually(lambda: worker.metric("streamfleet_slots") < 64, what="the page has the limit")


async def test_a_batch_waits_for_a_server_that_is_away(fleet: Fleet, tmp_path: Path) -> None:
    """One counted attempt would end a request."""
    server = HttpEngine(lambda _id, _n: Reply(after_s=0.1))
    settings: dict[str, Any] = {"gateway_keys": "off", "gateway_files": f"file://{tmp_path}/files", "max_deliveries": 1}
    body = {**chat(), "model": "test-model"}
    with GatewayProcess(fleet.url, tmp_path, **settings).ready() as gateway:
        async with server.serving(), workers(fleet, [server.url], max_deliveries=1) as (inside,):
            server.down = LOADING
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as sdk:
                batch = await start(sdk, write(tmp_path, [line(f"c-{n}", body=body) for n in range(10)]))
                await eventually(lambda: not inside.worker.health().ready, what="it is not ready")
                asked = server.questions
                await eventually(lambda: server.questions > asked + 3, what="it asks again and again")
                server.down = None
                done = await ended(sdk, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 10)
        assert await fleet.dead_letters() == []


async def test_where_one_of_two_servers_is_away_the_other_takes_all(fleet: Fleet) -> None:
    here, away = HttpEngine(lambda _id, _n: Reply(after_s=0.1)), HttpEngine(lambda _id, _n: Reply(after_s=0.1))
    async with here.serving(), contextlib.AsyncExitStack() as serving:
        await serving.enter_async_context(away.serving())
        async with workers(fleet, [here.url, away.url]) as (_, gone):
            await serving.aclose()
            results = await fleet.results(await add(fleet, 300))
            assert Counter(result.worker for result in results) == {"w0": 300}
            assert all(result.ok and result.attempt == 1 for result in results)
            assert not gone.worker.health().ready


async def test_a_body_that_kills_the_server_is_dead_and_its_neighbours_are_answered(fleet: Fleet) -> None:
    """Each worker lets it go back uncounted once, so the server dies at most once more for each worker."""
    count, most = 2, 5
    server = HttpEngine(lambda request_id, _n: KILLS if request_id == "bad" else HALF_S)
    async with server.serving(), workers(fleet, [server.url] * count, max_deliveries=most):
        ids = await add(fleet, 10)
        await fleet.add("bad")
        ids += await add(fleet, 10)
        bad, results = await fleet.result("bad", 60), await fleet.results(ids, 60)
    assert (bad.status, bad.attempt) == ("dead", most)
    assert most + 1 <= server.asked["bad"] <= most + count
    assert all(result.ok for result in results)
    await fleet.settled()
