"""Limits of one tenant for the sake of the others: bytes of files, tokens of batches; and batches with names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import redis.asyncio

from tests.integration.batch_lines import CHAT, line
from tests.integration.gateway_process import GatewayProcess, add_key, gateway_on
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

TOGETHER = 4_000
TOKENS = 250
"""At four bytes each, a file of 1,000 bytes."""
WINDOW = {"endpoint": CHAT, "completion_window": "24h"}


@pytest.fixture(scope="module")
def narrow(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that runs no batches, so that those that are accepted stay open."""
    folder = tmp_path_factory.mktemp("narrow")
    with gateway_on(
        server.url,
        folder,
        gateway_files=(folder / "files").as_uri(),
        gateway_file_bytes_per_tenant=TOGETHER,
        gateway_batch_tokens_per_tenant=TOKENS,
        gateway_models="simulated=default",
        gateway_batches_at_once=0,
    ) as process:
        yield process


@pytest.fixture
async def http(
    server: RedisServer, narrow: GatewayProcess, request: pytest.FixtureRequest
) -> AsyncIterator[httpx.AsyncClient]:
    """A tenant of the test's own."""
    key, _ = await add_key(server.url, request.node.name)
    async with narrow.http(key) as client:
        yield client


@pytest.fixture
async def rows(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        yield client


async def upload(http: httpx.AsyncClient, size: int) -> httpx.Response:
    """A file of so many bytes with one request in it."""
    text = line("a", metadata="")
    text = line("a", metadata="x" * (size - len(text) - 1)) + "\n"
    return await http.post("/v1/files", data={"purpose": "batch"}, files={"file": text.encode()})


async def create(http: httpx.AsyncClient, file_id: str, key: str = "", **changes: str) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return await http.post("/v1/batches", json={"input_file_id": file_id, **WINDOW, **changes}, headers=headers)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_files_have_a_limit_together(http: httpx.AsyncClient) -> None:
    first = (await upload(http, 3_000)).json()
    assert first["bytes"] == 3_000
    refused = await upload(http, 1_001)
    assert code(refused) == (413, "file_quota_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    assert (await upload(http, 1_000)).status_code == 200
    assert code(await upload(http, 1_000)) == (413, "file_quota_exceeded")
    assert (await http.delete(f"/v1/files/{first['id']}")).status_code == 200
    assert (await upload(http, 3_000)).status_code == 200
    assert len((await http.get("/v1/files")).json()["data"]) == 2


async def test_what_is_refused_is_not_kept(http: httpx.AsyncClient, rows: redis.asyncio.Redis) -> None:
    assert (await upload(http, TOGETHER + 1)).status_code == 413

    async def nothing() -> bool:
        return not await rows.zcard("{gateway}/loose")

    await eventually(nothing, 5, "its content is deleted")


async def test_open_batches_have_a_limit_together(http: httpx.AsyncClient) -> None:
    file = (await upload(http, 600)).json()["id"]
    assert (await create(http, file)).status_code == 200
    refused = await create(http, file)
    assert code(refused) == (429, "token_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    prompts = {"prompts": ["x" * 500]}
    assert code(await http.post("/v1/batch/async", json=prompts)) == (429, "token_limit_exceeded")
    assert (await http.post("/v1/batch/async", json={"prompts": ["x"]})).status_code == 202


async def test_what_is_beyond_the_limit_by_itself_is_not_to_be_tried_again(http: httpx.AsyncClient) -> None:
    refused = await create(http, (await upload(http, 1_001)).json()["id"])
    assert code(refused) == (413, "batch_too_large")
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    assert code(await http.post("/v1/batch/async", json={"prompts": ["x" * 1_000]})) == (413, "batch_too_large")


async def test_an_idempotency_key_names_a_batch(http: httpx.AsyncClient) -> None:
    file = (await upload(http, 300)).json()["id"]
    first = await create(http, file, "mine")
    assert first.status_code == 200
    assert (await create(http, file, "mine")).json() == first.json()
    assert code(await create(http, file, "mine", completion_window="1h")) == (409, "idempotency_conflict")
    assert (await create(http, file, "other")).json()["id"] != first.json()["id"]
    assert len((await http.get("/v1/batches")).json()["data"]) == 2


async def test_an_idempotency_key_names_a_job(http: httpx.AsyncClient, rows: redis.asyncio.Redis) -> None:
    async def ask(prompt: str) -> httpx.Response:
        return await http.post("/v1/batch/async", json={"prompts": [prompt]}, headers={"Idempotency-Key": "mine"})

    first = await ask("a" * 400)
    files = await rows.zcard("{gateway}/file_ends")
    again = await ask("a" * 400)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert code(await ask("b")) == (409, "idempotency_conflict")
    assert await rows.zcard("{gateway}/file_ends") == files, "the prompts are not stored again"
    while (await upload(http, 300)).status_code == 200:
        pass
    assert (await ask("a" * 400)).json()["id"] == first.json()["id"], "where there is no room for them either"


def told(answer: httpx.Response) -> tuple[int, str]:
    """Status, and the field that the message names, as Anthropic's clients read it."""
    return answer.status_code, answer.json()["error"]["message"].partition(":")[0]


async def ask(http: httpx.AsyncClient, size: int, key: str = "") -> httpx.Response:
    """A message batch of about so many bytes."""
    params = {"model": "simulated", "max_tokens": 1, "messages": [{"role": "user", "content": "x" * size}]}
    headers = {"Idempotency-Key": key} if key else {}
    body = {"requests": [{"custom_id": "a", "params": params}]}
    return await http.post("/v1/messages/batches", json=body, headers=headers)


async def test_a_message_batch_over_a_quota_is_told_of_its_requests(http: httpx.AsyncClient) -> None:
    assert told(await ask(http, 1_000)) == (413, "requests")
    assert (await ask(http, 500)).status_code == 200
    assert told(await ask(http, 500)) == (429, "requests")
    assert (await upload(http, 3_000)).status_code == 200
    assert told(await ask(http, 500)) == (413, "requests")


async def test_a_message_batch_with_a_name_is_there_over_each_quota(http: httpx.AsyncClient) -> None:
    made = (await ask(http, 500, "named")).json()["id"]
    assert (await upload(http, 3_300)).status_code == 200
    assert (await ask(http, 500, "named")).json()["id"] == made
    assert (await ask(http, 501, "named")).status_code == 409
    assert told(await ask(http, 1, "other")) == (413, "requests"), "there is no room for another"
