"""One key cannot fill a lane: whichever way it enqueues, and through whichever gateway, others find room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from tests.integration.batch_lines import CHAT, line
from tests.integration.gateway_process import GatewayProcess, add_key, gateway_on
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

LIMIT, SHARE = 40, 20
WAITS = {"X-Streamfleet-On-Disconnect": "continue", "X-Streamfleet-Ttl": "1h"}
SAID = "other tenants use it"


@pytest.fixture(scope="module")
def gateways(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    """Two gateways with narrow lanes; no worker runs."""
    with contextlib.ExitStack() as opened:
        files = tmp_path_factory.mktemp("files").as_uri()
        yield [
            opened.enter_context(
                gateway_on(
                    server.url,
                    tmp_path_factory.mktemp(name),
                    gateway_files=files,
                    gateway_models="simulated=default",
                    lane_limit=LIMIT,
                )
            )
            for name in ("one", "two")
        ]


@pytest.fixture
async def rows(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """The Redis, without anything but keys and files."""
    async with redis.asyncio.Redis.from_url(server.url) as client:
        async for key in client.scan_iter("{default}:*"):
            await client.delete(key)
        yield client


def chat(text: str = "x", **more: object) -> dict[str, object]:
    return {"model": "simulated", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, object], **headers: str) -> httpx.Response:
    return await http.post(path, json=body, headers={**WAITS, **headers})


class Lane:
    """A lane, and callers that hang up once their requests wait in it."""

    def __init__(self, rows: redis.asyncio.Redis, name: str) -> None:
        self._rows, self.name = rows, name

    async def length(self) -> int:
        return int(await self._rows.xlen(f"{{default}}:lane:{self.name}"))

    async def send(self, *requests: Coroutine[Any, Any, httpx.Response]) -> list[httpx.Response]:
        """Wait until each is answered or in the lane, and hang up. Returns the answers."""
        before, tasks = await self.length(), [asyncio.ensure_future(each) for each in requests]

        async def seen_to() -> bool:
            return sum(task.done() for task in tasks) + await self.length() - before >= len(tasks)

        await eventually(seen_to, 30, "all are answered or in the lane")
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return [each for each in found if isinstance(each, httpx.Response)]


def refused(answers: list[httpx.Response]) -> int:
    """Number of answers, all of which say that the tenant has its share."""
    for answer in answers:
        assert answer.status_code == 429, answer.text
        error = answer.json()["error"]
        assert error["code"] == "queue_full"
        assert SAID in error["message"]
        assert int(answer.headers["retry-after"]) >= 1
    return len(answers)


async def _chats(http: httpx.AsyncClient, lane: Lane) -> None:
    assert refused(await lane.send(*(ask(http, CHAT, chat()) for _ in range(30)))) == 30 - SHARE


async def _named(http: httpx.AsyncClient, lane: Lane) -> None:
    some = (ask(http, CHAT, chat(), **{"Idempotency-Key": f"{id(http)}-{n}"}) for n in range(30))
    assert refused(await lane.send(*some)) == 30 - SHARE


async def _streams(http: httpx.AsyncClient, lane: Lane) -> None:
    assert refused(await lane.send(*(ask(http, CHAT, chat(stream=True)) for _ in range(30)))) == 30 - SHARE


async def _embeddings(http: httpx.AsyncClient, lane: Lane) -> None:
    body: dict[str, object] = {"model": "simulated", "input": "x"}
    assert refused(await lane.send(*(ask(http, "/v1/embeddings", body) for _ in range(30)))) == 30 - SHARE


async def _sync_prompts(http: httpx.AsyncClient, lane: Lane) -> None:
    body: dict[str, object] = {"model": "simulated", "prompts": ["x"] * 30}
    assert await lane.send(ask(http, "/v1/batch/sync", body)) == []
    assert refused(await lane.send(ask(http, "/v1/batch/sync", body))) == 1


async def _batch(http: httpx.AsyncClient, lane: Lane) -> None:
    text = "".join(f"{line(f'l{n}')}\n" for n in range(60))
    file = (await http.post("/v1/files", data={"purpose": "batch"}, files={"file": text.encode()})).json()["id"]
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    answer = await http.post("/v1/batches", json=body, headers={"X-Streamfleet-Lane": lane.name})
    assert answer.status_code == 200, answer.text


async def _job(http: httpx.AsyncClient, lane: Lane) -> None:
    body = {"model": "simulated", "prompts": ["x"] * 60}
    answer = await http.post("/v1/batch/async", json=body, headers={"X-Streamfleet-Lane": lane.name})
    assert answer.status_code == 202, answer.text


Way = Callable[[httpx.AsyncClient, Lane], Coroutine[Any, Any, None]]


def lane_of(way: Way) -> str:
    """A lane of its own for what enqueues again whatever a test takes out."""
    lanes: dict[Way, str] = {_batch: "high", _job: "low"}
    return lanes.get(way, "normal")


WAYS: list[Way] = [_chats, _named, _streams, _embeddings, _sync_prompts, _batch, _job]


async def test_alone_a_key_has_the_whole_lane(
    server: RedisServer, gateways: list[GatewayProcess], rows: redis.asyncio.Redis
) -> None:
    key, _ = await add_key(server.url, "alone")
    lane = Lane(rows, "normal")
    async with gateways[0].http(key) as http:
        full = await lane.send(*(ask(http, CHAT, chat()) for _ in range(LIMIT + 5)))
        assert len(full) == 5
        assert "is full" in full[0].json()["error"]["message"]
    assert await lane.length() == LIMIT


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
async def test_one_key_fills_half_of_a_lane_and_another_one_finds_room(
    server: RedisServer, gateways: list[GatewayProcess], rows: redis.asyncio.Redis, way: Way
) -> None:
    flooding, _ = await add_key(server.url, f"flood-{way.__name__}")
    other, _ = await add_key(server.url, f"other-{way.__name__}")

    lane = Lane(rows, lane_of(way))
    async with (
        gateways[0].http(flooding) as first,
        gateways[1].http(flooding) as second,
        gateways[1].http(other) as http,
    ):
        in_lane = {"X-Streamfleet-Lane": lane.name}
        assert await lane.send(ask(http, CHAT, chat(), **in_lane)) == []
        await way(first, lane)
        await eventually(lambda: _is(lane.length(), SHARE + 1), 20, "it has its half waiting")
        assert refused(await lane.send(ask(second, CHAT, chat(), **in_lane))) == 1
        assert await lane.length() == SHARE + 1
        for _ in range(3):
            assert await lane.send(ask(http, CHAT, chat(), **in_lane)) == []


async def _is(number: Awaitable[int], wanted: int) -> bool:
    return await number == wanted


async def test_without_keys_everybody_has_the_whole_lane(
    server: RedisServer, rows: redis.asyncio.Redis, tmp_path: Path
) -> None:
    lane = Lane(rows, "normal")
    settings = {"gateway_keys": "off", "gateway_models": "simulated=default", "lane_limit": LIMIT}
    with gateway_on(server.url, tmp_path, gateway_files=(tmp_path / "files").as_uri(), **settings) as gateway:
        async with gateway.http() as http:
            assert len(await lane.send(*(ask(http, CHAT, chat()) for _ in range(LIMIT + 5)))) == 5
    assert await lane.length() == LIMIT
