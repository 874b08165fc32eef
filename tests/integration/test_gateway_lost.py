"""A gateway and requests that Redis lost: a batch asks for them again, everybody else is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis.asyncio

from tests.constants import BATCH_WINDOW
from tests.integration.batch_lines import both, ended, line, names, start, write
from tests.integration.forgetting import lose
from tests.integration.gateway_process import GatewayProcess, add_key, gateway_on
from tests.integration.worker_process import WorkerProcess, chat
from tests.waiting import eventually

COUNT = 60
MODELS = "simulated=default"


@dataclass
class Ground:
    """A gateway whose queue no worker serves yet."""

    url: str
    folder: Path
    gateway: GatewayProcess
    rows: Any

    async def waits(self, count: int, prefix: str = "") -> list[str]:
        """The ids of so many requests, once they are in the queue."""

        async def look() -> list[str]:
            found = [name.partition("request:")[2] async for name in self.rows.scan_iter("{default}:request:*")]
            return sorted(found) if len(found) >= count else []

        found: list[str] = await eventually(look, 10, "the requests are there")
        return [name for name in found if name.startswith(prefix)]


@pytest.fixture
def worker_later(redis_url: str, tmp_path: Path) -> Iterator[Any]:
    with contextlib.ExitStack() as workers:
        yield lambda: workers.enter_context(WorkerProcess(redis_url, tmp_path, "w1", speed=20))


@pytest.fixture
async def ground(redis_url: str, tmp_path: Path) -> AsyncIterator[Ground]:
    settings: dict[str, object] = {
        "gateway_keys": "off",
        "gateway_models": MODELS,
        "gateway_files": f"file://{tmp_path}/files",
    }
    with gateway_on(redis_url, tmp_path, constants={BATCH_WINDOW: 40}, **settings) as gateway:
        async with redis.asyncio.Redis.from_url(redis_url, decode_responses=True, socket_timeout=None) as rows:
            yield Ground(redis_url, tmp_path, gateway, rows)


async def test_a_batch_asks_again_for_what_was_lost(ground: Ground, worker_later: Any) -> None:
    wanted = [f"c{number}" for number in range(COUNT)]
    async with openai.AsyncOpenAI(base_url=f"{ground.gateway.url}/v1", api_key="none", max_retries=3) as sdk:
        batch = await start(sdk, write(ground.folder, map(line, wanted)))
        ids = await ground.waits(40, batch.id)
        await lose(ground.rows, ids[:25])
        worker_later()
        done = await ended(sdk, batch.id, 40)
        assert (done.status, done.request_counts.completed) == ("completed", COUNT)
        answers, errors = await both(sdk, done)
    assert names(answers) == sorted(wanted)
    assert errors == []
    (told,) = [each for each in ground.gateway.events("batch_interrupted") if "RequestLost" in each["error"]]
    assert "enqueue it again" in told["error"]


async def ask_for_both(http: httpx.AsyncClient, seconds: float) -> list[httpx.Response]:
    """The answers to a request with a stream and one without."""
    bodies = (chat(seconds, model="simulated", stream=stream) for stream in (False, True))
    return await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for body in bodies))


async def test_who_waits_is_told_to_send_it_again(ground: Ground) -> None:
    async with ground.gateway.http() as http:
        asking = asyncio.create_task(ask_for_both(http, 0.1))
        await lose(ground.rows, await ground.waits(2))
        for answer in await asyncio.wait_for(asking, 20):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "request_lost")
            assert int(answer.headers["retry-after"]) >= 1
            assert "x-should-retry" not in answer.headers


async def test_its_tokens_are_put_back(redis_url: str, tmp_path: Path) -> None:
    """Otherwise a caller that sends it again pays twice."""
    with gateway_on(redis_url, tmp_path, gateway_models=MODELS) as gateway:
        key, _ = await add_key(redis_url, "thrifty", limits=(None, 10_000))
        async with (
            redis.asyncio.Redis.from_url(redis_url, decode_responses=True, socket_timeout=None) as rows,
            gateway.http(key) as http,
        ):
            ground = Ground(redis_url, tmp_path, gateway, rows)
            asking = asyncio.create_task(ask_for_both(http, 40))
            ids = await ground.waits(2)
            before = await _tokens_left(http)
            await lose(rows, ids)
            for answer in await asyncio.wait_for(asking, 20):
                assert answer.json()["error"]["code"] == "request_lost"

            async def put_back() -> bool:
                return await _tokens_left(http) > 9_900

            assert before < 6_000, "most was taken; it is filled again by the minute"
            await eventually(put_back, 5, "they are there again")


async def _tokens_left(http: httpx.AsyncClient) -> int:
    return int((await http.get("/v1/models")).headers["x-ratelimit-remaining-tokens"])


async def test_streams_that_have_begun_end_with_an_error(redis_url: str, tmp_path: Path) -> None:
    """Also that of a reader who came later, by the request's id."""
    settings: dict[str, object] = {"gateway_keys": "off", "gateway_models": MODELS}
    with gateway_on(redis_url, tmp_path, **settings) as gateway:
        async with (
            redis.asyncio.Redis.from_url(redis_url, decode_responses=True, socket_timeout=None) as rows,
            gateway.http() as http,
        ):
            body = chat(0.1, model="simulated", stream=True)
            begun = {"X-Streamfleet-Expected": "tell"}
            headers = {"X-Streamfleet-On-Disconnect": "continue", **begun}
            first = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers))
            (name,) = await Ground(redis_url, tmp_path, gateway, rows).waits(1)
            second = asyncio.create_task(http.get(f"/v1/streams/{name}", headers=begun))
            await eventually(lambda: gateway.metric("streamfleet_gateway_streams_open") == 2, 10, "both have begun")
            await lose(rows, [name])
            for answer in await asyncio.wait_for(asyncio.gather(first, second), 20):
                assert answer.status_code == 200
                assert '"code":"request_lost"' in answer.text.splitlines()[-2]


async def test_of_several_prompts_the_lost_one_says_so(ground: Ground, worker_later: Any) -> None:
    async with ground.gateway.http(timeout_s=40) as http:
        prompts = {"prompts": ["one", "two", "three"], "max_tokens": 2}
        asking = asyncio.create_task(http.post("/v1/batch/sync", json=prompts))
        ids = await ground.waits(3)
        await lose(ground.rows, [ids[1]])
        await eventually(lambda: ground.gateway.printed().count("waiting_for_redis"), 5, "the gateway saw that")
        worker_later()
        results = (await asyncio.wait_for(asking, 40)).json()["results"]
    assert [each["status"] for each in results] == ["succeeded", "failed", "succeeded"]
    assert results[1]["error"]["code"] == "request_lost"
