"""Every large answer counts against one limit: where slow readers hold it, more are refused, and small ones are not."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from streamfleet.gateway.files.files import MOST_OPEN_PER_TENANT
from tests.integration.batch_lines import CHAT, line
from tests.integration.gateway_process import GatewayProcess, Stage, add_key, gateway_on
from tests.waiting import eventually

LIMIT = 1_048_576
LONG = "x" * 20_000
MANY = 100
HELD = "streamfleet_gateway_answer_bytes"


@pytest.fixture(scope="module")
def narrow(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("large")
    limits = {"gateway_max_held_bytes": LIMIT, "gateway_files": (folder / "files").as_uri()}
    with gateway_on(stage.url, folder, **limits) as process:
        yield process


@pytest.fixture
async def http(stage: Stage, narrow: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    key, _ = await add_key(stage.url, "reader", tenant="reader")
    async with narrow.http(key, timeout_s=60) as client:
        yield client


async def upload(http: httpx.AsyncClient, data: bytes, name: str = "a.jsonl") -> str:
    answer = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": (name, data)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def content(http: httpx.AsyncClient) -> str:
    return f"/v1/files/{await upload(http, b'x' * 100_000)}/content"


async def listed_files(http: httpx.AsyncClient) -> str:
    for _ in range(MANY):
        await upload(http, b"x", "n" * 500)
    return "/v1/files"


async def listed_batches(http: httpx.AsyncClient) -> str:
    file = await upload(http, line("a").encode() + b"\n")
    metadata = {f"{number:064}": "m" * 512 for number in range(16)}
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", "metadata": metadata}
    for _ in range(10):
        assert (await http.post("/v1/batches", json=body)).status_code == 200
    return "/v1/batches"


async def ended_job(http: httpx.AsyncClient) -> str:
    body = {"prompts": [LONG, LONG], "max_tokens": 5}
    path = f"/v1/batch/{(await http.post('/v1/batch/async', json=body)).json()['id']}"

    async def ended() -> bool:
        return bool((await http.get(path)).json()["status"] == "completed")

    await eventually(ended, 40, "the job has ended")
    return path


async def one_chat(http: httpx.AsyncClient) -> str:
    return "/v1/chat/completions"


async def prompts(http: httpx.AsyncClient) -> str:
    return "/v1/batch/sync"


BODIES = {
    "/v1/chat/completions": {"model": "simulated", "messages": [{"role": "user", "content": LONG}], "max_tokens": 6},
    "/v1/batch/sync": {"prompts": [LONG, LONG], "max_tokens": 5},
}


async def ask(http: httpx.AsyncClient, path: str) -> httpx.Response:
    if path in BODIES:
        return await http.post(path, json=BODIES[path])
    return await http.get(path)


def slow_reader(narrow: GatewayProcess, key: str, path: str) -> socket.socket:
    """A connection that reads nothing of a large content."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.connect(("127.0.0.1", narrow.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n\r\n".encode())
    return connection


@pytest.mark.parametrize("kind", [content, listed_files, listed_batches, ended_job, one_chat, prompts])
async def test_every_kind_of_large_answer_counts(
    narrow: GatewayProcess, http: httpx.AsyncClient, kind: Callable[[httpx.AsyncClient], Awaitable[str]]
) -> None:
    path = await kind(http)
    answer = await ask(http, path)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) > 65_536
    small = await upload(http, b"x")
    large = f"/v1/files/{await upload(http, b'x' * 20_000_000)}/content"
    with slow_reader(narrow, http.headers["authorization"], large):
        await eventually(lambda: narrow.metric(HELD) == LIMIT // 2, 10, "the tenant's share is held")
        refused = await ask(http, path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_bytes")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await http.get(f"/v1/files/{small}")).status_code == 200
        assert narrow.metric(HELD) == LIMIT // 2
    await eventually(lambda: narrow.metric(HELD) == 0, 10, "nothing is held of who left")
    assert (await ask(http, path)).status_code == 200
    assert '"level": "error"' not in narrow.printed()


async def test_uploads_have_places_of_their_own_and_their_senders_leave_them(
    stage: Stage, narrow: GatewayProcess, http: httpx.AsyncClient
) -> None:
    """They counted among the bodies: half of their places were enough to refuse every longer chat."""
    key = http.headers["authorization"]
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Length: 900000\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    )

    async def full() -> bool:
        answer = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": b"x"})
        return answer.status_code == 429 and answer.json()["error"]["code"] == "too_many_uploads"

    async def free() -> bool:
        return not await full()

    other, _ = await add_key(stage.url, "chats", tenant="chats")
    with contextlib.ExitStack() as uploads:
        for _ in range(MOST_OPEN_PER_TENANT):
            uploads.enter_context(narrow.raw()).sendall(head.encode())
        await eventually(full, 10, "all places of the tenant are taken")
        async with narrow.http(other, timeout_s=60) as second:
            for client in (http, second):
                answer = await ask(client, "/v1/chat/completions")
                assert answer.status_code == 200, answer.text
    await eventually(free, 10, "they left")
