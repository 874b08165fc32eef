"""A small HTTP server that answers as a test wants, for workers with the openai engine; it counts what it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

MODELS = {"object": "list", "data": [{"id": "test-model", "object": "model"}]}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@dataclass(frozen=True)
class Reply:
    """An answer to give: JSON of `body`, after so many seconds."""

    status: int = 200
    body: object = field(default_factory=lambda: ANSWER)
    headers: tuple[tuple[str, str], ...] = ()
    after_s: float = 0.0


KILLS = Reply(0)
"""The server dies and starts again: all its connections are reset."""


class HttpEngine:
    """Serves on the loopback while its context is open.

    Attributes:
        answer: what to say to the n-th request (from 1) of an id; a test may change it at any time.
        asked: how often each request id came.
        questions: number of questions for its models.
        hung_up: ids whose client left before the answer.
        inside, most: requests that are inside now, and that were inside at once, at most.
        limit: beyond so many inside it answers `busy`; None for no limit.
        busy: its answer then.
        down: its answer to everything, also to a question for its models; None while it is up.
        refused: number of requests that it answered so.
    """

    def __init__(self, answer: Callable[[str, int], Reply] = lambda _id, _n: Reply()) -> None:
        self.answer = answer
        self.asked: Counter[str] = Counter()
        self.hung_up: list[str] = []
        self.inside = self.most = self.refused = self.questions = 0
        self.limit: int | None = None
        self.down: Reply | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.busy = Reply(429, {"error": {"message": "too many requests", "type": "rate_limit_exceeded"}})
        self.port = 0

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[HttpEngine]:
        """Listen; on any free port unless told which."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self._writers.add(writer)
            path, request_id = await _read(reader)
            self.questions += path == "/v1/models"
            if self.down is not None:
                reply = self.down
            elif path == "/v1/models":
                reply = Reply(body=MODELS)
            else:
                self.asked[request_id] += 1
                reply = self.answer(request_id, self.asked[request_id])
                if self.limit is not None and self.inside >= self.limit:
                    self.refused += 1
                    reply = self.busy
            self.inside += 1
            self.most = max(self.most, self.inside)
            left = await self._left(reader, reply.after_s)
            self.inside -= 1
            if reply is KILLS:
                for each in self._writers:
                    each.transport.abort()
            elif left:
                self.hung_up.append(request_id)
            else:
                writer.write(_encode(reply))
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    @staticmethod
    async def _left(reader: asyncio.StreamReader, within_s: float) -> bool:
        if within_s == 0:
            return False
        try:
            return await asyncio.wait_for(reader.read(1), within_s) == b""
        except TimeoutError:
            return False


async def _read(reader: asyncio.StreamReader) -> tuple[str, str]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
    await reader.readexactly(int(headers.get("content-length", "0")))
    ids = [line.split(": ", 1)[1] for line in head[1:] if line.lower().startswith("x-request-id: ")]
    return head[0].split(" ")[1], ids[0] if ids else ""


def _encode(reply: Reply) -> bytes:
    body = json.dumps(reply.body).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
    lines = [f"{name}: {value}" for name, value in (*headers, *reply.headers)]
    return "\r\n".join([f"HTTP/1.1 {reply.status} Test", *lines, "", ""]).encode() + body
