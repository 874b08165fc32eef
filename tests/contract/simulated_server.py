"""The simulated engine behind a real HTTP socket, as a process of its own, for the openai engine.

    python -m tests.contract.simulated_server [MAX_MODEL_LEN]

prints its port, serves until its standard input ends, and notices when a client hangs up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass, replace
from http import HTTPStatus

from streamfleet.common.protocol import Lane
from streamfleet.worker.engine.base import EngineReply, EngineRequest, EngineUnavailable, Text
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST


@dataclass(frozen=True)
class Call:
    """One HTTP request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Server:
    """HTTP/1.1, one request per connection: enough for a client library, and it sees every hang-up."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    async def serve(self) -> int:
        """Open on a free port of the loopback and return it."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Take no further connections."""
        self._server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            call = await _read(reader)
            events = _Events(writer)
            work = asyncio.ensure_future(self._answer(call, events))
            gone = asyncio.ensure_future(reader.read(1))  # nothing more is sent: it returns when the client leaves
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not work.done():
                work.cancel()
            elif events.begun and work.result().status == 200:
                events.end()
                await writer.drain()
            else:
                await _write(writer, work.result())
        writer.close()

    async def _answer(self, call: Call, events: _Events) -> EngineReply:
        if call.path == "/v1/models":
            models = [{"id": name, "object": "model", "max_model_len": 2048} for name in self._engine.models]
            return EngineReply(200, json.dumps({"object": "list", "data": models}).encode())
        if call.path == "/running":
            return EngineReply(200, json.dumps(self._engine.running).encode())
        try:
            body = json.loads(call.body)
        except ValueError:
            return EngineReply(400, b'{"error": {"message": "not JSON", "param": "body"}}')
        request = EngineRequest(call.headers.get("x-request-id", "none"), call.path, body, Lane.NORMAL)
        if isinstance(body, dict) and body.get("stream"):
            options = body.get("stream_options") or {}
            request.on_chunk, request.tells_usage = events.chunk, options.get("include_usage") is True
            request.counts_along = options.get("continuous_usage_stats") is True
        try:
            return await self._engine.run(request)
        except EngineUnavailable as error:
            return EngineReply(503, json.dumps({"error": {"message": str(error)}}).encode())


class _Events:
    """A streamed answer: server-sent events, each as soon as it is there, until the connection ends."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.begun = False

    def chunk(self, line: bytes | Text) -> None:
        if not self.begun:
            self._writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        self.begun = True
        self._writer.write(b"data: " + bytes(line) + b"\n\n")

    def end(self) -> None:
        self._writer.write(b"data: [DONE]\n\n")


async def _read(reader: asyncio.StreamReader) -> Call:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Call(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _write(writer: asyncio.StreamWriter, reply: EngineReply) -> None:
    head = (
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(reply.body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + reply.body)
    await writer.drain()


async def main(max_model_len: int) -> None:
    """Serve until standard input ends, as it does when whoever started this is gone."""
    engine = SimulatedEngine(replace(GENERIC_FAST, slots=32, max_model_len=max_model_len), embeddings=False)
    await engine.start()
    print(await Server(engine).serve(), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2048))
