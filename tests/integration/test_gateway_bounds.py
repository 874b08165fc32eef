"""Records that a key can make Redis keep are bounded by tenant: each kind that docs/gateway.md names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import httpx
import pytest
import redis.asyncio

from streamfleet.gateway.batch_records import BatchNames
from tests.integration.batch_lines import CHAT, line
from tests.integration.gateway_process import GatewayProcess, add_key, gateway_on
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

OPEN, KEPT = 4, 10
NAMES = BatchNames("{gateway}/")
EMOJI = "\U0001f600"


def gateway_in(server: RedisServer, folder: Any, at_once: int) -> Any:
    return gateway_on(
        server.url,
        folder,
        gateway_files=(folder / "files").as_uri(),
        gateway_models="simulated=default",
        constants={"gateway.batches.service.BATCHES_KEPT": KEPT, "gateway.batches.service.BATCHES_OPEN": OPEN},
        gateway_batches_at_once=at_once,
    )


@pytest.fixture(scope="module")
def idle(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that runs no batches, so that those that are accepted stay open."""
    with gateway_in(server, tmp_path_factory.mktemp("idle"), 0) as process:
        yield process


@pytest.fixture(scope="module")
def running(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that runs batches; no worker does what they ask for."""
    with gateway_in(server, tmp_path_factory.mktemp("running"), 8) as process:
        yield process


@pytest.fixture
async def rows(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def key(server: RedisServer, request: pytest.FixtureRequest) -> str:
    """Key of a tenant of the test's own."""
    return (await add_key(server.url, request.node.name))[0]


async def upload(http: httpx.AsyncClient, text: str = "") -> str:
    answer = await http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": (text or line("a") + "\n").encode()}
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def create(http: httpx.AsyncClient, file_id: str, name: str = "", **changes: Any) -> httpx.Response:
    body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **changes}
    return await http.post("/v1/batches", json=body, headers={"Idempotency-Key": name} if name else {})


async def ask_job(http: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    return await http.post("/v1/batch/async", json={"prompts": ["x"], "model": "simulated", **changes})


def refused(answer: httpx.Response, status: int, code: str) -> bool:
    return (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_open_batches_and_jobs_are_bounded_together(idle: GatewayProcess, server: RedisServer, key: str) -> None:
    async with idle.http(key) as http:
        file = await upload(http)
        answers = await asyncio.gather(*(create(http, file) for _ in range(OPEN - 1)), ask_job(http))
        assert {answer.status_code for answer in answers} == {200, 202}
        for answer in (await create(http, file), await create(http, file, "named"), await ask_job(http)):
            assert refused(answer, 429, "too_many_batches")
            assert f"{OPEN} batches and jobs" in answer.json()["error"]["message"]
            assert int(answer.headers["retry-after"]) > 1
    other, _ = await add_key(server.url, "another tenant")
    async with idle.http(other) as http:
        assert (await create(http, await upload(http))).status_code == 200


async def _end(http: httpx.AsyncClient, answer: httpx.Response) -> str:
    """Id of a batch or job that was accepted, after its end."""
    assert answer.status_code in (200, 202), answer.text
    found = answer.json()
    path = f"/v1/batch/{found['batch_id']}" if "batch_id" in found else f"/v1/batches/{found['id']}"
    assert (await http.post(f"{path}/cancel")).status_code == 200

    async def over() -> bool:
        return (await http.get(path)).json()["status"] in ("cancelled", "failed")

    await eventually(over, 20, "it ends")
    return str(found["id"])


async def test_of_those_that_ended_the_oldest_go_first_with_their_files_and_names(
    running: GatewayProcess, rows: redis.asyncio.Redis, key: str, request: pytest.FixtureRequest
) -> None:
    tenant, made = request.node.name, []
    async with running.http(key) as http:
        file = await upload(http)
        stays = (await create(http, file, "stays")).json()["id"]  # the oldest, but it has not ended
        for number in range(KEPT + 6):
            answer = await (create(http, file, f"n{number}") if number % 2 else ask_job(http))
            made.append(await _end(http, answer))
        records = await rows.zcard(NAMES.batches(tenant)) + await rows.zcard(NAMES.batches(tenant, "job_"))
        assert records <= KEPT
        found = [await rows.exists(NAMES.batch(each)) for each in made]
        assert found == sorted(found), "the oldest are gone, and the newest are there"
        assert sum(found) == records - 1
        assert await rows.exists(NAMES.batch(stays))
        names = [name async for name in rows.scan_iter(f"{NAMES.named('')}*")]
        known = {await rows.hget(name, "batch") for name in names}
        assert known & set(made) == {each for each in made if await rows.exists(NAMES.batch(each)) and "batch_" in each}
        listed = (await http.get("/v1/batches?limit=100")).json()["data"]
        assert {each["id"] for each in listed} == {stays, *known & set(made)}
        # The input, and one error file of each that is kept: the line that was not run.
        assert await rows.zcard(NAMES.files(tenant)) <= 1 + 2 * KEPT
        assert len([each async for each in rows.scan_iter("{gateway}/done:*")]) <= OPEN
        assert await rows.hget(NAMES.use(tenant), "open") == "1"


async def test_a_tenant_that_has_far_more_than_are_kept_is_told_so_and_soon_has_room(
    idle: GatewayProcess, rows: redis.asyncio.Redis, key: str, request: pytest.FixtureRequest
) -> None:
    """As after the limit was lowered."""
    ids = {f"batch_{number:04}": 0 for number in range(600)}
    await rows.zadd(NAMES.batches(request.node.name), ids)
    async with idle.http(key) as http:
        file = await upload(http)
        answer = await create(http, file)
        assert refused(answer, 429, "too_many_batches")
        assert f"more than {KEPT} batches and jobs are kept" in answer.json()["error"]["message"]
        assert "not ended" not in answer.json()["error"]["message"]
        assert 0 < int(answer.headers["retry-after"]) <= 5
        assert (await create(http, file)).status_code == 200


async def test_a_tenant_is_told_how_many_of_its_own_batches_a_gateway_runs(
    running: GatewayProcess, server: RedisServer, key: str
) -> None:
    async def here(http: httpx.AsyncClient) -> int:
        return int((await http.get("/v1/batch/stats")).json()["batches_here"])

    other, _ = await add_key(server.url, "runs nothing")
    async with running.http(key) as http, running.http(other) as idle:
        file = await upload(http)
        answers = [await create(http, file), await ask_job(http)]
        assert {answer.status_code for answer in answers} == {200, 202}
        await eventually(lambda: _is(here(http), 2), 20, "both run")
        assert await here(idle) == 0


async def _is(number: Awaitable[int], wanted: int) -> bool:
    return await number == wanted


async def test_files_are_bounded_in_number(
    idle: GatewayProcess, rows: redis.asyncio.Redis, key: str, request: pytest.FixtureRequest
) -> None:
    tenant = request.node.name
    async with idle.http(key) as http:
        file = await upload(http)
        await rows.zadd(NAMES.files(tenant), {f"file-{number}": 0 for number in range(19_999)})
        uploaded = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": b"{}\n"})
        for answer in (uploaded, await create(http, file), await ask_job(http)):
            assert refused(answer, 413, "file_quota_exceeded")
            assert "those of batches and jobs" in answer.json()["error"]["message"], "jobs' files cannot be deleted"
        await rows.zrem(NAMES.files(tenant), "file-1")
        assert (await create(http, file)).status_code == 200


@pytest.mark.parametrize("job", [False, True])
@pytest.mark.parametrize(
    ("metadata", "ok"),
    [
        ({f"{n:02}" + "k" * 62: "v" * 512 for n in range(16)}, True),
        ({f"{n:02}" + "k" * 62: EMOJI * 512 for n in range(16)}, False),
        ({f"{n:02}" + "é" * 62: "é" * 512 for n in range(16)}, False),
        ({f"{n:02}": '"' * 500 for n in range(16)}, True),
        ({f"{n:02}": '"\\' * 256 + "" for n in range(15)} | {"last": "\x00" * 512}, False),
        ({"a": EMOJI * 512, "b": EMOJI * 512}, True),
    ],
)
async def test_metadata_is_bounded_as_it_is_stored(
    idle: GatewayProcess,
    server: RedisServer,
    rows: redis.asyncio.Redis,
    job: bool,
    metadata: dict[str, str],
    ok: bool,
    request: pytest.FixtureRequest,
) -> None:
    key, _ = await add_key(server.url, request.node.name[:100])
    async with idle.http(key) as http:
        answer = await (
            ask_job(http, metadata=metadata) if job else create(http, await upload(http), metadata=metadata)
        )
        if not ok:
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "metadata"
            assert "16384 bytes" in answer.json()["error"]["message"]
            return
        assert answer.status_code in (200, 202), answer.text
        found = answer.json()
        stored = await rows.hgetall(NAMES.batch(found["id"]))
        assert json.loads(stored["metadata"]) == metadata
        assert sum(len(name) + len(value) for name, value in stored.items()) < 18_000


async def test_what_a_window_is_padded_with_is_not_stored(
    idle: GatewayProcess, rows: redis.asyncio.Redis, key: str
) -> None:
    async with idle.http(key) as http:
        answer = await create(http, await upload(http), completion_window="24h" + " " * 50_000)
        assert await rows.hget(NAMES.batch(answer.json()["id"]), "window") == "24h"
        answer = await ask_job(http, completion_window=" " * 50_000 + "24h")
        assert await rows.hget(NAMES.batch(answer.json()["id"]), "window") == "24h"


async def test_errors_of_a_batch_are_bounded_in_bytes(
    running: GatewayProcess, rows: redis.asyncio.Redis, key: str
) -> None:
    wrong = "".join(f"{line(EMOJI * 200 + str(number), url=EMOJI * 80)}\n" for number in range(120))
    async with running.http(key) as http:
        batch = (await create(http, await upload(http, wrong + line("good") + "\n"))).json()["id"]
        await eventually(lambda: rows.hget(NAMES.batch(batch), "errors"), 20, "its lines are checked")
        assert 8_000 < await rows.hstrlen(NAMES.batch(batch), "errors") < 17_000
        told = (await http.get(f"/v1/batches/{batch}")).json()["errors"]["data"]
        assert told[0]["line"] == 1


async def test_stored_responses_that_are_open_make_no_room(
    idle: GatewayProcess, rows: redis.asyncio.Redis, key: str, request: pytest.FixtureRequest
) -> None:
    """The oldest that ended would."""
    asked = {"model": "simulated", "input": "hi", "background": True}
    async with idle.http(key) as http:
        assert (await http.post("/v1/responses", json=asked)).status_code == 200
        await rows.hset(NAMES.use(request.node.name), "response_bytes", "1000000000000")
        answer = await http.post("/v1/responses", json=asked)
    assert refused(answer, 429, "too_many_responses")
    assert "have not ended" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0
