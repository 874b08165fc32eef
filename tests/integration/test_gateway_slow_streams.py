"""Readers that take nothing of their streams: each holds a bounded part of the memory, and delays no other."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
import redis.asyncio

from tests.integration.gateway_process import GatewayProcess, Stage, gateway_on
from tests.waiting import eventually

PATH = "/v1/chat/completions"
READERS, GROUPS, GROUP_BYTES = 4, 3_000, 4_000
MOST_BYTES = 4_000_000
"""Of one reader, whose stream has twelve megabytes: more than the kernel takes for it."""
READ = "streamfleet_gateway_streams_open"


@pytest.fixture(scope="module")
def gateway(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Nobody works at one of its queues: there, the test writes the tokens."""
    with gateway_on(
        stage.url, tmp_path_factory.mktemp("slow"), gateway_models="simulated=default,nobody=slow"
    ) as process:
        yield process


def ask(model: str) -> dict[str, object]:
    message = {"role": "user", "content": "Count with me"}
    return {"model": model, "messages": [message], "max_tokens": 100, "ignore_eos": True, "stream": True}


def begin(stage: Stage, gateway: GatewayProcess) -> socket.socket:
    """A connection that has asked for a stream, and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.connect(("127.0.0.1", gateway.port))
    body = json.dumps(ask("nobody")).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stage.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


async def publish(rows: redis.asyncio.Redis, request: str, first: int, last: int) -> None:
    """Write groups of a request's tokens, as a worker does."""
    chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * GROUP_BYTES}}]})
    async with rows.pipeline(transaction=False) as pipe:
        for seq in range(first, last):
            pipe.xadd(f"{{slow}}:tokens:{request}", {"attempt": 1, "run": "a", "seq": seq, "chunks": chunk})
        await pipe.execute()


async def test_a_stream_that_nobody_takes_holds_little_and_delays_no_other(
    stage: Stage, gateway: GatewayProcess
) -> None:
    async with redis.asyncio.Redis.from_url(stage.url, decode_responses=True) as rows, gateway.http(stage.key) as http:
        slow = [begin(stage, gateway) for _ in range(READERS)]

        async def requests() -> list[str]:
            found = [key.rpartition(":")[2] async for key in rows.scan_iter("{slow}:request:*")]
            return found if len(found) == READERS else []

        ids = await eventually(requests, 10, "all have asked")
        for request in ids:
            await publish(rows, request, 0, 1)
        await eventually(lambda: gateway.metric(READ) == READERS, 10, "all streams have begun")
        before = gateway.resident_bytes()
        for request in ids:
            await publish(rows, request, 1, GROUPS)
        beside = await http.post(PATH, json=ask("simulated"))
        assert beside.text.rstrip().endswith("[DONE]")
        grown = gateway.resident_bytes() - before
        assert gateway.metric(READ) == READERS, "they are still there"
    for connection in slow:
        connection.close()
    assert grown < READERS * MOST_BYTES
