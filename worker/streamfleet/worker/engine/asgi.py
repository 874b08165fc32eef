"""Calls an ASGI application in this process, without a socket, as one HTTP request.

Unlike httpx's ASGITransport, a cancelled call tells the application that the client is gone and waits until it stops,
so an engine behind it drops the request instead of generating on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

DISCONNECT_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Response:
    """A whole HTTP response; without its body if that was streamed."""

    status: int
    body: bytes
    streamed: bool = False


class NoResponse(Exception):
    """The application ended without a complete response; ``__cause__`` is its exception, if it raised one."""


async def post(
    app: Application,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    on_part: Callable[[bytes], None] | None = None,
) -> Response:
    """POST a JSON body and wait for the whole response.

    If `on_part` is given and the response is an event stream, each part of the body goes there at once.

    When the calling task is cancelled, the application sees ``http.disconnect`` and gets `DISCONNECT_GRACE_S`
    to end by itself; then it is cancelled too.

    Raises:
        NoResponse: the application gave no complete response.
    """
    exchange = _Exchange(body, on_part)
    task = asyncio.ensure_future(app(_scope(path, headers, body), exchange.receive, exchange.send))
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        exchange.disconnected.set()
        await _end(task)
        raise
    error = None if task.cancelled() else task.exception()
    # Starlette answers 500 and then raises the exception behind it: a complete response counts.
    if exchange.complete:
        return Response(exchange.status, b"".join(exchange.chunks), exchange.streamed)
    raise NoResponse(f"no response to POST {path}") from error


async def _end(task: asyncio.Future[None]) -> None:
    task.add_done_callback(_seen)
    try:
        await asyncio.wait({task}, timeout=DISCONNECT_GRACE_S)
    finally:
        task.cancel()


def _seen(task: asyncio.Future[None]) -> None:
    """Retrieve the exception, so that asyncio does not report it: nobody wants this answer."""
    if not task.cancelled():
        task.exception()


class _Exchange:
    def __init__(self, body: bytes, on_part: Callable[[bytes], None] | None) -> None:
        self._body: bytes | None = body
        self._on_part = on_part
        self.streamed = False
        self.disconnected = asyncio.Event()
        self.status = 0
        self.chunks: list[bytes] = []
        self.complete = False

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.streamed = self._on_part is not None and _is_event_stream(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            part = message.get("body", b"")
            if self._on_part is not None and self.streamed:
                self._on_part(part)
            else:
                self.chunks.append(part)
            if not message.get("more_body", False):
                self.complete = True
                self.disconnected.set()  # as servers do: the client sends nothing more


def _is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    kinds = [value for name, value in headers if name.lower() == b"content-type"]
    return any(kind.lower().startswith(b"text/event-stream") for kind in kinds)


def _scope(path: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    raw += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return {
        "type": "http",
        # With 2.4 Starlette would ignore a disconnect while it streams, until a send fails; here sends never fail.
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": raw,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
