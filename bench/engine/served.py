"""`vllm serve`, driven over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import httpx

from bench.core.processes import started
from bench.engine.batch import Batch, Row, between_ms, timed
from bench.engine.setup import EngineSetup
from bench.engine.work import Body
from tests.support.redis_server import free_port

PATH = "/v1/chat/completions"
HOST = "127.0.0.1"
ANSWER_S = 600.0


class Served:
    """A server that is ready.

    Attributes:
        url: base URL.
        pid: process that speaks HTTP.
        headers: headers of every request.
    """

    def __init__(self, url: str, pid: int, headers: Mapping[str, str] | None = None) -> None:
        self.url, self.pid, self.headers = url, pid, dict(headers or {})
        self._client: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Context in which all `run` calls use the same connections, as a service's requests do."""
        async with self._new_client() as client:
            self._client = client
            try:
                yield
            finally:
                self._client = None

    async def run(self, asked: Sequence[Body], *, stream: bool = False, in_turn: bool = False) -> Batch:
        """Send all requests at once, or one after the other; with `stream`, tokens are seen as they arrive."""
        if self._client is not None:
            return await self._run(self._client, asked, stream, in_turn)
        async with self._new_client() as client:
            return await self._run(client, asked, stream, in_turn)

    def _new_client(self) -> aiohttp.ClientSession:
        # Not httpx, which searches all connections of a client for each request: beyond 64 at once, it is the limit.
        timeout = aiohttp.ClientTimeout(ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(
            self.url, headers=self.headers, timeout=timeout, connector=connector, raise_for_status=True
        )

    async def _run(self, client: aiohttp.ClientSession, asked: Sequence[Body], stream: bool, in_turn: bool) -> Batch:
        ask = _streamed if stream else _whole

        async def all_at_once() -> list[Row]:
            return list(await asyncio.gather(*(ask(client, body) for body in asked)))

        async def one_by_one() -> list[Row]:
            return [await ask(client, body) for body in asked]

        return await timed(self.pid, one_by_one if in_turn else all_at_once)


@contextmanager
def served(setup: EngineSetup) -> Iterator[Served]:
    """Start a server and wait until it is ready."""
    port = free_port()
    where = ["--host", HOST, "--port", str(port), "--disable-uvicorn-access-log"]
    url = f"http://{HOST}:{port}"
    command = ["-m", "bench.engine.vllm_command", "serve", str(setup.folder), *setup.argv, *where]
    with started(command, talks=False, environment={**os.environ, **setup.environment}) as child:
        child.wait_until(lambda: is_ready(url))
        yield Served(url, child.pid)


async def _whole(client: aiohttp.ClientSession, body: Body) -> Row:
    began = time.perf_counter()
    async with client.post(PATH, json=body) as response:
        answer = await response.read()
    total_ms = (time.perf_counter() - began) * 1000
    usage = json.loads(answer)["usage"]
    return Row(usage["prompt_tokens"], usage["completion_tokens"], None, None, total_ms)


async def _streamed(client: aiohttp.ClientSession, body: Body) -> Row:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    began, first_ms, usage = time.perf_counter(), None, None
    async with client.post(PATH, json=asked) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            if first_ms is None:  # vLLM sends its first chunk with the first token
                first_ms = (time.perf_counter() - began) * 1000
            elif b'"usage":{' in line:
                usage = json.loads(line.removeprefix(b"data: "))["usage"]
    total_ms = (time.perf_counter() - began) * 1000
    if first_ms is None or usage is None:
        raise RuntimeError("a streamed answer ended without its usage")
    written = usage["completion_tokens"]
    return Row(usage["prompt_tokens"], written, first_ms, between_ms(total_ms, first_ms, written), total_ms)


def is_ready(url: str) -> bool:
    """True if the server's health check succeeds."""
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False
