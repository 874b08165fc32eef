"""Tokens a minute of an API key: it gets no more than these, whatever way it asks, and one answer as a debt at most."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis.asyncio

from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import Profile
from tests.integration.batch_lines import line, start, write
from tests.integration.gateway_process import GatewayProcess, add_key, gateway_on
from tests.integration.worker_in_process import worker_inside
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

LIMIT, CONTEXT, AT_ONCE = 1_000, 2_048, 20
CHAT = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
TEXT = {"model": "simulated", "prompt": "hi", "ignore_eos": True}
CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def gateway(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    files = (folder / "files").as_uri()
    with gateway_on(server.url, folder, gateway_models="simulated=default", gateway_files=files) as process:
        yield process


@pytest.fixture
async def rows(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """Redis, beside a worker that makes thousands of tokens a second."""
    profile = Profile("roomy, for tests", 0.0, ((1, 100), (64, 6_400)), 64, 1_000_000, CONTEXT, jitter=0.0)
    async with (
        redis.asyncio.Redis.from_url(server.url, decode_responses=True) as opened,
        worker_inside(server.url, SimulatedEngine(profile, speed=100.0)),
    ):

        async def told() -> bool:
            return any(json.loads(each).get("max_model_len") for each in await opened.hvals("{default}:workers"))

        await eventually(told, 10, "the worker says how long a sequence may be")
        yield opened


async def used(rows: redis.asyncio.Redis, prefix: str) -> tuple[int, int]:
    """Number of requests of this prefix that succeeded, and their tokens."""
    names = [name async for name in rows.scan_iter(f"{{default}}:result:{prefix}*", count=1_000)]
    found = [await rows.hmget(name, "status", "usage") for name in names]
    usages = [json.loads(str(usage)) for status, usage in found if status == "succeeded"]
    return len(usages), sum(usage["total_tokens"] for usage in usages)


@pytest.mark.parametrize(
    ("path", "body", "debt"),
    [
        (CHATS, CHAT | {"max_tokens": 400}, 0),
        (CHATS, CHAT, CONTEXT),
        (CHATS, CHAT | {"max_tokens": None}, CONTEXT),
        (CHATS, CHAT | {"max_tokens": 1, "max_completion_tokens": 400}, 0),
        (CHATS, CHAT | {"max_tokens": 400, "max_completion_tokens": None}, 0),
        (TEXTS, TEXT | {"max_tokens": 400, "max_completion_tokens": 1}, 0),
        (TEXTS, TEXT | {"max_tokens": 100, "n": 4}, 0),
        (TEXTS, TEXT | {"max_tokens": 100, "prompt": ["a", "b", "c", "d"]}, 0),
        (TEXTS, TEXT | {"max_tokens": 1, "prompt": [[1] * 200, [2] * 200]}, 0),
    ],
)
async def test_a_key_gets_its_limit_however_it_asks(
    server: RedisServer, gateway: GatewayProcess, rows: redis.asyncio.Redis, path: str, body: dict[str, Any], debt: int
) -> None:
    key, record = await add_key(server.url, "busy", limits=(None, LIMIT))
    began_s = time.monotonic()
    async with gateway.http(key, timeout_s=60) as http:
        answers = await asyncio.gather(*(http.post(path, json=body) for _ in range(AT_ONCE)))
        assert {answer.status_code for answer in answers} == {200, 429}
        count, tokens = await used(rows, record.id)
        filled = LIMIT * (time.monotonic() - began_s) / 60
        assert count, "it is not locked out"
        assert tokens <= LIMIT + filled + debt
        if debt:
            assert count == 1, "one at a time"
            assert (await http.post(path, json=body)).status_code == 429, "it is in debt"


@pytest.mark.parametrize(
    ("endpoint", "field"), [(CHATS, "max_tokens"), (CHATS, "max_completion_tokens"), (TEXTS, "max_tokens")]
)
async def test_of_several_prompts_without_a_limit_one_may_be_a_debt(
    server: RedisServer,
    gateway: GatewayProcess,
    rows: redis.asyncio.Redis,
    endpoint: str,
    field: str,
) -> None:
    """All others have to fit into the limit; an answer of 429 costs nothing."""
    key, record = await add_key(server.url, "several", limits=(None, LIMIT))
    ask = {"model": "simulated", "endpoint": endpoint, "ignore_eos": True, field: None}
    async with gateway.http(key, timeout_s=60) as http:
        answer = await http.post("/v1/batch/sync", json={**ask, "prompts": ["hi"] * AT_ONCE})
        assert answer.status_code == 429
        assert answer.headers["x-should-retry"] == "false", "it can never be had"
        assert await used(rows, record.id) == (0, 0)
        assert (await http.post("/v1/batch/sync", json={**ask, "prompts": ["hi"]})).status_code == 200
        count, tokens = await used(rows, record.id)
        assert (count, tokens <= LIMIT + CONTEXT) == (1, True)


@pytest.mark.usefixtures("rows")
async def test_who_sets_no_limit_gets_one_answer_after_the_other(server: RedisServer, gateway: GatewayProcess) -> None:
    """Tokens that an answer did not use are there again for the next one."""
    key, _ = await add_key(server.url, "chatty", limits=(None, 3 * CONTEXT))
    body = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], "stop": ["hi"]}

    async def answered() -> bool:
        async with gateway.http(key) as http:
            return (await http.post(CHATS, json=body)).status_code == 200

    for _ in range(8):
        await eventually(answered, 5, "what was reserved and not used is back")


@pytest.mark.parametrize(("lane", "charged"), [("high", True), ("normal", True), ("low", False), (None, False)])
async def test_a_batch_outside_of_the_low_lane_keeps_to_the_tokens_of_its_key(
    server: RedisServer,
    gateway: GatewayProcess,
    rows: redis.asyncio.Redis,
    tmp_path: Path,
    lane: str | None,
    charged: bool,
) -> None:
    key, record = await add_key(server.url, f"batch-{lane}", limits=(None, LIMIT))
    began_s = time.monotonic()
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key) as sdk:
        lines = [line("a large one", tokens=LIMIT)] + [line(f"line {number}", tokens=400) for number in range(10)]
        headers = {} if lane is None else {"X-Streamfleet-Lane": lane}
        batch = await start(sdk, write(tmp_path, lines), extra_headers=headers)
        most = 2 if charged else len(lines)

        async def ran() -> Any:
            counts = (await sdk.batches.retrieve(batch.id)).request_counts
            return counts if counts is not None and counts.completed >= most else None

        counts = await eventually(ran, 20, "as many lines have run as may, and are recorded")
        count, tokens = await used(rows, batch.id)
        filled = LIMIT * (time.monotonic() - began_s) / 60
        left = float(await rows.hget(f"{{gateway}}/left:{record.id}", "tokens") or LIMIT)
        if charged:
            assert tokens <= LIMIT + filled
            assert left <= LIMIT - tokens + filled
            assert counts.failed == 1, "what is beyond the limit by itself is refused"
            await sdk.batches.cancel(batch.id)
        else:
            assert (count, left) == (len(lines), LIMIT)
