"""A Redis that hangs: it takes connections and answers nothing. All callers hear of it after two seconds or so."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamfleet.gateway import streaming
from streamfleet.gateway.batch_records import BATCH, FILE, new_id
from tests.fault.proxy import Proxy
from tests.integration.gateway_here import gateway_here
from tests.integration.gateway_process import add_key
from tests.integration.worker_process import chat
from tests.support.redis_server import RedisServer

WITHIN_S = 3.0
"""Two seconds, and the work for a hundred callers at once; without the time for which the event loop was late."""
TICK_S = 0.01
late_s = [0.0]
"""How late the ticks of the test's event loop came, all together: on a busy machine others have its CPU."""
FILE_ID, BATCH_ID = new_id(FILE, 1), new_id(BATCH, 1)
LINES = {"input_file_id": FILE_ID, "endpoint": "/v1/chat/completions", "completion_window": "1h"}
FORM: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"{}\n")}}
Call = tuple[str, str, dict[str, Any]]
CALLS: list[Call] = [
    ("POST", "/v1/chat/completions", {"json": chat(model="simulated")}),
    ("POST", "/v1/chat/completions", {"json": chat(model="simulated", stream=True)}),
    ("POST", "/v1/chat/completions", {"json": chat(model="simulated"), "headers": {"Idempotency-Key": "one"}}),
    ("POST", "/v1/completions", {"json": {"model": "simulated", "prompt": "hi"}}),
    ("POST", "/v1/embeddings", {"json": {"model": "simulated", "input": "hi"}}),
    ("POST", "/v1/responses", {"json": {"model": "simulated", "input": "hi"}}),
    ("POST", "/v1/messages", {"json": chat(model="simulated")}),
    ("POST", "/v1/messages", {"json": chat(model="simulated", stream=True)}),
    ("GET", "/v1/streams/{request}", {}),
    ("GET", "/v1/files", {}),
    ("POST", "/v1/files", FORM),
    ("GET", "/v1/files/{file}", {}),
    ("GET", "/v1/files/{file}/content", {}),
    ("DELETE", "/v1/files/{file}", {}),
    ("GET", "/v1/batches", {}),
    ("POST", "/v1/batches", {"json": LINES}),
    ("GET", "/v1/batches/{batch}", {}),
    ("POST", "/v1/batches/{batch}/cancel", {}),
    ("POST", "/v1/batch/sync", {"json": {"model": "simulated", "prompts": ["hi"]}}),
    ("POST", "/v1/batch/async", {"json": {"model": "simulated", "prompts": ["hi"]}}),
    ("GET", "/v1/batch/stats", {}),
]
LOOKS: list[Call] = [("GET", "/v1/models", {}), ("GET", "/v1/models/simulated", {})]
"""Calls that read nothing but the workers, which is not done again within two seconds."""


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[Proxy]:
    opened = Proxy(server.port)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
async def ticks() -> AsyncIterator[None]:
    async def tick() -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            late_s[0] += time.monotonic() - due

    task = asyncio.create_task(tick())
    yield
    task.cancel()


async def answer(http: httpx.AsyncClient, owner: str, method: str, path: str, more: dict[str, Any]) -> str:
    """Its status and code, and how long it took if that was too long."""
    began = time.monotonic() - late_s[0]
    said = await http.request(method, path.format(request=f"{owner}-1", file=FILE_ID, batch=BATCH_ID), **more)
    took = time.monotonic() - late_s[0] - began
    error = said.json()["error"] if said.status_code >= 400 else {"code": ""}
    code = error["code"] if "code" in error else {"overloaded_error": "queue_unavailable"}.get(error["type"])
    return f"{said.status_code} {code}{f' after {took:.1f} s' if took > WITHIN_S else ''}"


@pytest.mark.parametrize(
    ("keys", "models", "known"),
    [
        ("off", "", False),
        ("off", "simulated=default", True),
        ("unlimited", "simulated=default", False),
        ("unlimited", "simulated=default", True),
        ("limited", "simulated=default", True),
    ],
)
async def test_who_calls_while_redis_hangs_hears_of_it_soon(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, known: bool, models: str
) -> None:
    """Also all who call at once, and the first callers of a gateway, which has opened nothing yet."""
    limits = (10_000, 1_000_000) if keys == "limited" else (None, None)
    key, record = await add_key(server.url, f"hangs-{keys}", limits=limits)
    owner = "open" if keys == "off" else record.id
    settings: dict[str, object] = {
        "keys": "off" if keys == "off" else "on",
        "models": models,
        "files": tmp_path.as_uri(),
    }
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.5)  # what a stream waits in vain for, before the server hangs
    async with gateway_here(server.url, key if keys != "off" else None, **settings) as http:
        http.timeout = httpx.Timeout(60)
        if known:
            http.headers["X-Streamfleet-Ttl"] = "100ms"  # there is no worker
            await asyncio.gather(*(answer(http, owner, *call) for call in (*LOOKS, *CALLS)))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            calls = CALLS if models or known else [*LOOKS, *CALLS]
            said = await asyncio.gather(*(answer(http, owner, *call) for call in calls * 5))
        finally:
            os.kill(server.pid, signal.SIGCONT)
    found = {f"{call[0]} {call[1]}": answered for call, answered in zip(calls * 5, said, strict=True)}
    assert {name: answered for name, answered in found.items() if answered != "503 queue_unavailable"} == {}


async def test_connections_that_die_while_new_ones_work_are_replaced_in_that_time(
    server: RedisServer, proxy: Proxy, tmp_path: Path
) -> None:
    """As a NAT or a load balancer leaves them: nobody is told 503."""
    key, record = await add_key(server.url, "nat", limits=(10_000, None))
    async with gateway_here(proxy.url, key, models="simulated=default", files=tmp_path.as_uri()) as http:
        for path in ("/v1/files", "/v1/batches", "/v1/streams/{request}"):
            await answer(http, record.id, "GET", path, {})
        proxy.forget()
        calls: list[Call] = [("GET", path, {}) for path in ("/v1/files", "/v1/batches", "/v1/streams/{request}")]
        said = await asyncio.gather(*(answer(http, record.id, *call) for call in calls))
    assert said == ["200 ", "200 ", "404 request_not_found"]
