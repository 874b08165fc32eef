"""Ended requests of one tenant's API keys take a bounded part of Redis, whatever kind of call they come from."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
import redis.asyncio

from streamfleet.common.keys import Keys
from tests.integration.batch_lines import CHAT, line
from tests.integration.gateway_process import GatewayProcess, add_key, gateway_on
from tests.integration.worker_process import WorkerProcess
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

BOUND = 1_048_576
GRACE_MS = 60_000
KEYS = Keys("default")
AT_ONCE = 16
ONE_TOKEN = {"model": "simulated", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 1}
LONG = ONE_TOKEN | {"max_tokens": 8_000, "ignore_eos": True}
STREAM = ONE_TOKEN | {"max_tokens": 100, "stream": True}
GOES_ON = {"X-Streamfleet-On-Disconnect": "continue"}


class Stage(NamedTuple):
    """Two gateways on one Redis, and a worker."""

    url: str
    gateways: tuple[GatewayProcess, GatewayProcess]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with RedisServer(newest(find_servers())) as server, contextlib.ExitStack() as stack:
        folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
        files = (folders[0] / "files").as_uri()
        worker = WorkerProcess(server.url, folders[0], "w1", speed=50, tenant_result_bytes=BOUND)
        stack.callback(worker.destroy)
        one, two = (
            stack.enter_context(gateway_on(server.url, folder, gateway_files=files, gateway_models="simulated=default"))
            for folder in folders
        )
        worker.ready_blocking()
        yield Stage(server.url, (one, two))


class Kept(NamedTuple):
    """A tenant's ended requests in Redis: those that stay, their bytes, and how many are about to go."""

    ids: set[str]
    bytes: int
    going: int


async def kept(rows: redis.asyncio.Redis, tenant: str) -> Kept:
    ids, total, going = set[str](), 0, 0
    async for key in rows.scan_iter(KEYS.result("*"), count=1_000):
        if await rows.hget(key, "tenant") != tenant:
            continue
        name = key.removeprefix(KEYS.result(""))
        if await rows.pttl(key) <= GRACE_MS:
            assert await rows.pttl(KEYS.request(name)) <= GRACE_MS
            assert await rows.pttl(KEYS.tokens(name)) <= GRACE_MS
            going += 1
            continue
        ids.add(name)
        for each in (key, KEYS.request(name), KEYS.tokens(name)):
            total += await rows.memory_usage(each, samples=0) or 0
    return Kept(ids, total, going)


async def ask(http: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> int:
    return (await http.post(CHAT, json=body, headers=headers)).status_code


async def leave(http: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> None:
    """Ask, and hang up as soon as the request is in its queue."""
    with contextlib.suppress(httpx.TimeoutException):
        await http.post(CHAT, json=body, headers=headers, timeout=httpx.Timeout(10, read=0.1))


async def run_batch_and_job(http: httpx.AsyncClient, lines: int) -> None:
    text = "".join(f"{line(str(number))}\n" for number in range(lines))
    files = {"file": text.encode()}
    file = (await http.post("/v1/files", data={"purpose": "batch"}, files=files)).json()["id"]
    given = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    batch = (await http.post("/v1/batches", json=given)).json()["id"]
    prompts = {"model": "simulated", "prompts": ["x"] * lines, "max_tokens": 1}
    job = (await http.post("/v1/batch/async", json=prompts)).json()["batch_id"]

    async def over() -> bool:
        found = [await http.get(path) for path in (f"/v1/batches/{batch}", f"/v1/batch/{job}")]
        return {each.json()["status"] for each in found} == {"completed"}

    await eventually(over, 30, "batch and job have ended")


async def one_of_each_kind(http: httpx.AsyncClient, number: int) -> None:
    """A call of each kind that ends: answered, refused, left, named, streamed, of several prompts."""
    named = {"Idempotency-Key": f"n{number}"}
    prompts = {"model": "simulated", "prompts": ["x"] * 4, "max_tokens": 1}
    assert await ask(http, ONE_TOKEN) == 200
    assert await ask(http, ONE_TOKEN, **named) == 200
    assert await ask(http, ONE_TOKEN, **named) == 200, "the same request"
    assert await ask(http, ONE_TOKEN | {"max_tokens": 10**6}) == 400
    assert await ask(http, STREAM) == 200
    assert await ask(http, STREAM, **GOES_ON) == 200
    assert await ask(http, ONE_TOKEN, **{"X-Streamfleet-Ttl": "1ms"}) in (200, 504)
    assert (await http.post("/v1/completions", json={"model": "simulated", "prompt": "x"})).status_code == 200
    assert (await http.post("/v1/batch/sync", json=prompts)).status_code == 200
    await leave(http, LONG)
    await leave(http, LONG | {"stream": True})
    await leave(http, LONG | {"max_tokens": 500}, **GOES_ON)


async def test_whatever_a_key_asks_its_ended_requests_are_bounded_and_those_of_others_stay(
    stage: Stage, rows: redis.asyncio.Redis
) -> None:
    flood, _ = await add_key(stage.url, "flood", limits=(None, 10**9))
    second, _ = await add_key(stage.url, "flood 2", tenant="flood")
    other, _ = await add_key(stage.url, "other")
    one, two = stage.gateways
    async with one.http(other) as http:
        assert await ask(http, ONE_TOKEN, **{"Idempotency-Key": "stays"}) == 200
    async with one.http(flood, 60) as here, two.http(second, 60) as there:

        async def calls(part: int) -> None:
            for number in range(2):
                await one_of_each_kind((here, there)[part % 2], 100 * part + number)

        await asyncio.gather(*(calls(part) for part in range(AT_ONCE)))
        await run_batch_and_job(here, 50)

        async def all_ended() -> bool:
            return not [lane for lane in KEYS.lanes if await rows.xlen(lane)]

        await eventually(all_ended, 60, "all requests have ended")
        found = await kept(rows, "flood")
        assert found.going > 100, "there were many more than may stay"
        assert found.bytes <= BOUND
        ended = [str(each).split(" ") for each in await rows.lrange(KEYS.ended("flood"), 0, -1)]
        assert found.ids == {each[2] for each in ended}, "each ending is counted"
        counted = int(ended[-1][0]) - int(ended[0][0]) + int(ended[0][1])
        largest = max(int(each[1]) for each in ended)
        assert BOUND - largest < counted <= BOUND, "no more went than had to"
        assert await ask(here, ONE_TOKEN, **{"Idempotency-Key": "newest"}) == 200
        before = await rows.hgetall("{default}:counts")
        assert await ask(here, ONE_TOKEN, **{"Idempotency-Key": "newest"}) == 200
        assert await rows.hgetall("{default}:counts") == before, "the newest are there, whatever else goes"
        gone = await here.get(f"/v1/streams/{'0' * 16}-{'0' * 32}")
        assert gone.status_code == 404
    assert len((await kept(rows, "other")).ids) == 1
