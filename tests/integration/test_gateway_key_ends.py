"""Calls whose API key ends while they wait or read: they end within seconds, and so do their requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from streamfleet.common.connection import Connection
from streamfleet.common.protocol import Lane
from streamfleet.gateway.api_keys import GatewayNames, KeyRecord, digest_of, make_record
from streamfleet.gateway.body import LINGER_S
from streamfleet.gateway.broker.api_keys import GatewayBroker
from tests.integration.gateway_process import Stage, add_key, status_of
from tests.integration.worker_process import chat
from tests.waiting import eventually

PATH = "/v1/chat/completions"
LONG = chat(60, model="simulated")
WITHIN_S = 5.0
SIZE = 40_000_000
OPEN, STREAMS = "streamfleet_gateway_requests_open", "streamfleet_gateway_streams_open"
REFUSED_UPLOADS = 'streamfleet_gateway_requests_total{code="401",endpoint="/v1/files"}'
Ending = Callable[[GatewayBroker, str, KeyRecord], Awaitable[Any]]


@pytest.fixture
async def broker(stage: Stage) -> AsyncIterator[GatewayBroker]:
    opened = GatewayBroker(Connection(stage.url), GatewayNames())
    yield opened
    await opened.close()


async def revoke(broker: GatewayBroker, key: str, record: KeyRecord) -> None:
    assert await broker.revoke(record.id)


async def delete(broker: GatewayBroker, key: str, record: KeyRecord) -> None:
    await broker.connection.command("HDEL", broker.names.keys, digest_of(key))


async def expire(broker: GatewayBroker, key: str, record: KeyRecord) -> None:
    ended = make_record(digest_of(key), record.name, record.tenant, created_ms=1, expires_ms=2)
    await broker.connection.command("HSET", broker.names.keys, digest_of(key), ended.encoded())


async def take_lane(broker: GatewayBroker, key: str, record: KeyRecord) -> None:
    await broker.add(digest_of(key), make_record(digest_of(key), record.name, record.tenant, (Lane.LOW,)))


End = tuple[Ending, str, tuple[int | None, int | None]]
ANNOUNCED: list[End] = [
    (revoke, "invalid_api_key", (None, None)),
    (revoke, "invalid_api_key", (1_000, 1_000_000)),
    (take_lane, "lane_not_allowed", (1_000, 1_000_000)),
]
SILENT: list[End] = [(delete, "invalid_api_key", (None, None)), (expire, "invalid_api_key", (None, None))]


@pytest.mark.parametrize("ends", [ANNOUNCED, SILENT], ids=["announced", "without a word"])
async def test_all_calls_of_a_key_end_with_it(stage: Stage, broker: GatewayBroker, ends: list[End]) -> None:
    """Several keys at the same time, each in its own way; calls of another key go on."""
    together = asyncio.Barrier(len(ends))
    async with stage.client() as other:
        neighbour = asyncio.create_task(other.post(PATH, json=chat(6, model="simulated", stream=True)))
        await asyncio.gather(*(all_end(stage, broker, together, *each) for each in ends))
        assert (await neighbour).text.rstrip().endswith("[DONE]"), "another key's stream goes on"


async def all_end(
    stage: Stage,
    broker: GatewayBroker,
    together: asyncio.Barrier,
    end: Ending,
    code: str,
    limits: tuple[int | None, int | None],
) -> None:
    """Calls of each kind end with their key; all of the keys end at the same moment."""
    key, record = await add_key(stage.url, "ends", limits=limits)
    async with stage.gateway.http(key, timeout_s=60) as http:
        stream = asyncio.create_task(http.post(PATH, json={**LONG, "stream": True}))
        message = asyncio.create_task(http.post("/v1/messages", json={**LONG, "stream": True}))
        whole = asyncio.create_task(http.post(PATH, json=LONG))
        prompts = {"prompts": ["a", "b"], "model": "simulated", "max_tokens": 6_000, "ignore_eos": True}
        several = asyncio.create_task(http.post("/v1/batch/sync", json=prompts))
        named = {"Idempotency-Key": "kept"}
        kept = asyncio.create_task(http.post(PATH, json=chat(6, model="simulated", stream=True), headers=named))
        ids = await eventually(lambda: running(broker, record, 6, 3), 10, "all run")
        streams = 3 * together.parties + 1
        await eventually(lambda: stage.gateway.metric(STREAMS) >= streams, 10, "streams begin")
        await together.wait()
        began_s = time.monotonic()
        await end(broker, key, record)
        answers = await asyncio.wait_for(asyncio.gather(stream, kept, whole, several), 20)
        assert time.monotonic() - began_s < WITHIN_S
        for answer in answers[:2]:
            assert answer.status_code == 200, "it had begun"
            assert json.loads(answer.text.rstrip().rpartition("data: ")[2])["error"]["code"] == code
        kind = "permission_error" if code == "lane_not_allowed" else "authentication_error"
        assert json.loads((await message).text.rstrip().rpartition("data: ")[2])["error"]["type"] == kind
        for answer in answers[2:]:
            assert answer.status_code == (403 if code == "lane_not_allowed" else 401)
            assert answer.json()["error"]["code"] == code
        goes_on = answers[1].headers["x-streamfleet-id"]
        for each in ids:
            wanted = "succeeded" if each == goes_on else "cancelled"

            async def is_ended(request_id: str = each, status: str = wanted) -> bool:
                return await status_of(stage.url, request_id) == status

            await eventually(is_ended, 20, f"{each} is {wanted}")


async def test_who_reads_a_stream_again_is_ended_too(stage: Stage, broker: GatewayBroker) -> None:
    key, record = await add_key(stage.url, "reads")
    headers = {"X-Streamfleet-On-Disconnect": "continue"}
    async with stage.gateway.http(key, timeout_s=60) as http:
        first = asyncio.create_task(http.post(PATH, json={**LONG, "stream": True}, headers=headers))
        (request_id,) = await eventually(lambda: running(broker, record, 1, 1), 10, "it runs")
        second = asyncio.create_task(http.get(f"/v1/streams/{request_id}"))
        await eventually(lambda: stage.gateway.metric(STREAMS) >= 2, 10, "both read")
        await broker.revoke(record.id)
        for answer in await asyncio.wait_for(asyncio.gather(first, second), WITHIN_S):
            assert '"code":"invalid_api_key"' in answer.text.rstrip().rpartition("data: ")[2]
    assert await status_of(stage.url, request_id) == "", "it was to go on"


@pytest.mark.parametrize(("end", "reads"), [(revoke, True), (expire, False)])
async def test_downloads_end_with_their_key(stage: Stage, broker: GatewayBroker, end: Ending, reads: bool) -> None:
    key, record = await add_key(stage.url, "downloads", tenant="downloads")
    async with stage.gateway.http(key, timeout_s=60) as http:
        stored = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": b"x" * SIZE})
        path = f"/v1/files/{stored.json()['id']}/content"
    with stage.gateway.raw() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        await asyncio.to_thread(connection.recv, 1_000)
        await end(broker, key, record)
        if not reads:
            await eventually(lambda: ended_requests(stage, path), WITHIN_S, "it ended, though nobody reads")
        taken = await asyncio.wait_for(asyncio.to_thread(until_closed, connection, 0.02), 2 * WITHIN_S)
        assert len(taken) < SIZE


@pytest.mark.parametrize(("end", "sends"), [(revoke, False), (expire, True)])
async def test_uploads_end_with_their_key(stage: Stage, broker: GatewayBroker, end: Ending, sends: bool) -> None:
    key, record = await add_key(stage.url, "uploads", tenant="uploads")
    with stage.gateway.raw() as connection:
        head = f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {SIZE}\r\n"
        head += "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        part = '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        before, refused = stage.gateway.metric(OPEN), stage.gateway.metric(REFUSED_UPLOADS)
        await asyncio.to_thread(connection.sendall, (head + part).encode() + b"x" * 1_000_000)
        await eventually(lambda: stage.gateway.metric(OPEN) > before, 10, "it comes")
        answer = asyncio.create_task(asyncio.to_thread(until_closed, connection))
        await end(broker, key, record)
        async with asyncio.timeout(WITHIN_S + LINGER_S):
            while sends and not answer.done():
                with contextlib.suppress(ConnectionError):
                    await asyncio.to_thread(connection.sendall, b"x" * 10_000)
                await asyncio.wait((answer,), timeout=0.05)
            received = await answer
    assert received.startswith(b"HTTP/1.1 401")
    assert b"while this request waited" in received
    await eventually(lambda: stage.gateway.metric(REFUSED_UPLOADS) == refused + 1, 10, "it was refused")


def ended_requests(stage: Stage, path: str) -> list[dict[str, Any]]:
    """Log lines of the requests of a path."""
    return [line for line in stage.gateway.events("http_request") if line["path"] == path]


def until_closed(connection: socket.socket, pause_s: float = 0.0) -> bytes:
    """Returns what comes until the connection is closed, read with pauses."""
    taken = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            taken += part
            time.sleep(pause_s)
    return bytes(taken)


async def running(broker: GatewayBroker, record: KeyRecord, count: int, streams: int) -> list[str]:
    """Ids of a key's requests, once there are so many, and so many of them have streamed a token."""
    rows = await broker.connection.command("KEYS", f"{{default}}:request:{record.id}*")
    tokens = await broker.connection.command("KEYS", f"{{default}}:tokens:{record.id}*")
    ids = [row.decode().partition("request:")[2] for row in rows]
    return ids if len(ids) == count and len(tokens) == streams else []
