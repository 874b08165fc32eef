"""The observed HTTP gateway: its settings and keys, and real traffic through it: calls, streams, batches, webhooks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from streamfleet.common.connection import Connection
from streamfleet.common.protocol import LANES
from streamfleet.gateway.api_keys import GatewayNames, digest_of, make_record, new_secret
from streamfleet.gateway.broker.api_keys import GatewayBroker
from streamfleet.gateway.broker.webhooks import WebhookBroker
from streamfleet.gateway.webhook_messages import WebhookNames
from streamfleet.gateway.webhooks import signing

SETTINGS = {
    "GATEWAY_WEBHOOKS_ALLOW_PRIVATE": "true",
    "GATEWAY_WEBHOOKS_ALLOW_HTTP": "true",
    "GATEWAY_WEBHOOKS_PORTS": "0",
}
TENANT = "observe"
PAUSE_S, BATCH_EVERY, BATCH_LINES = 1.0, 4, 6
URGENT = {"X-Streamfleet-Lane": "critical", "X-Streamfleet-Ttl": "15s"}
"""Headers that put these calls ahead of the rest of the load, which exceeds the fleet's capacity."""
BODY = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 8}


@dataclass(frozen=True)
class Door:
    """URL of the gateway, and an API key."""

    url: str
    key: str


async def let_in(redis_url: str, url: str) -> Door:
    """Make an API key for all lanes, and a secret that signs its tenant's webhooks."""
    key = new_secret()
    digest = digest_of(key)
    keys = GatewayBroker(Connection(redis_url), GatewayNames())
    webhooks = WebhookBroker(Connection(redis_url), WebhookNames())
    try:
        await keys.add(digest, make_record(digest, TENANT, TENANT, LANES))
        fresh = signing.rotate([], signing.new_secret(), await webhooks.now_ms(), 0)
        await webhooks.set_secrets(TENANT, b"", signing.encode_secrets(fresh))
    finally:
        await keys.close()
        await webhooks.close()
    return Door(url, key)


async def call_until(stopped: asyncio.Event, door: Door) -> int:
    """Send calls until `stopped` is set. Returns the number of calls with the expected answer."""
    answered = rounds = 0
    headers = {"Authorization": f"Bearer {door.key}"}
    async with (
        receiver() as callback_url,
        httpx.AsyncClient(base_url=door.url, headers=headers, timeout=20, trust_env=False) as http,
    ):
        while not stopped.is_set():
            calls = [_chat(http), _stream(http), _leave(http), _wrong(http)]
            calls += [] if rounds % BATCH_EVERY else [_batch(http, callback_url)]
            done = await asyncio.gather(*calls, return_exceptions=True)
            answered += sum(each is True for each in done)
            rounds += 1 if any(each is True for each in done) else 0  # the gateway may still be starting
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), PAUSE_S)
    return answered


async def _chat(http: httpx.AsyncClient) -> bool:
    answer = await http.post("/v1/chat/completions", json=BODY, headers=URGENT)
    return answer.status_code == 200


async def _stream(http: httpx.AsyncClient) -> bool:
    async with http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}, headers=URGENT) as answer:
        return (await answer.aread()).endswith(b"data: [DONE]\n\n")


async def _leave(http: httpx.AsyncClient) -> bool:
    """Send a request and disconnect, so that it is cancelled."""
    with contextlib.suppress(httpx.TimeoutException):
        await http.post("/v1/chat/completions", json=BODY | {"max_tokens": 200}, headers=URGENT, timeout=0.3)
    return True


async def _wrong(http: httpx.AsyncClient) -> bool:
    return (await http.get("/v1/models", headers={"Authorization": "Bearer nobody"})).status_code == 401


async def _batch(http: httpx.AsyncClient, callback_url: str) -> bool:
    """Create a file and its batch; the gateway runs it, and sends a webhook at its end."""
    ask: dict[str, Any] = {"method": "POST", "url": "/v1/chat/completions", "body": BODY}
    lines = "\n".join(json.dumps({"custom_id": f"line-{number}", **ask}) for number in range(BATCH_LINES))
    stored = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("ask.jsonl", lines.encode())})
    wanted = {
        "input_file_id": stored.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "20s",
        "callback_url": callback_url,
    }
    accepted = await http.post("/v1/batches", json=wanted, headers={"X-Streamfleet-Lane": "critical"})
    return accepted.status_code == 200


@asynccontextmanager
async def receiver() -> AsyncIterator[str]:
    """A receiver of webhooks that refuses the first attempt. Yields its URL."""
    came = 0

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = next((line for line in head.split("\r\n") if line.startswith("content-length:")), ":0")
            await reader.readexactly(int(length.partition(":")[2]))
            came += 1
            status = b"503 Service Unavailable" if came == 1 else b"204 No Content"
            writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/told"
