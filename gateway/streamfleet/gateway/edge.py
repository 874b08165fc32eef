"""The outermost ASGI layer: gives each request an id, a log line and metrics, and ends it whatever fails inside.

It passes requests to the application and adds headers to the answers. It also gives `streaming` a direct way to the
connection. `Answer` bounds what slow readers hold: it sends in pieces that the connection takes, counts large answers
against the limit of all, and cuts the connection of a caller that does not keep the pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl

from streamfleet.gateway import metrics
from streamfleet.gateway.body import SMALL_ANSWER_BYTES, Bodies
from streamfleet.gateway.call import Call
from streamfleet.gateway.connection import LEAST_BYTES_S
from streamfleet.gateway.errors import CLIENT_LEFT, ApiError
from streamfleet.gateway.messages.translation import answer_of, speaks_anthropic

log = structlog.get_logger(__name__)
PROBES = frozenset({"/health", "/livez", "/readyz"})
"""Endpoints that take HEAD too, because load balancers use it."""
QUIET = PROBES | {"/ui/api/overview"}
"""Logged at the debug level only: probes and an open page send a request every few seconds."""
MOST_PATH_CHARS = 200
MOST_HELD_S = 600.0
"""Time in which a reader has to take what is held for it: the more that is, the faster."""


class SlowReader(Exception):
    """The caller does not read its answer, or too slowly."""


class DirectWriter:
    """Writes pieces of an answer to the connection at once, past all layers in between.

    Args:
        send: of the connection; it does not wait while `flow` is not paused.
        flow: flow control of the connection.
        abort: ends the connection.
    """

    def __init__(self, send: Send, flow: FlowControl, abort: Callable[[], None]) -> None:
        self._send, self._flow, self._abort = send, flow, abort

    def ready(self) -> bool:
        """True if the connection takes more now; otherwise the writer has to wait elsewhere."""
        return not self._flow.write_paused

    def write(self, data: bytes) -> None:
        """Write a piece of the body. End the connection if that fails, because a stream must have no gap."""
        sending = self._send({"type": "http.response.body", "body": data, "more_body": True})
        try:
            sending.send(None)  # type: ignore[attr-defined]
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - one caller's error must not stop the pieces of others
            log.warning("stream_not_written", error=str(error))
        sending.close()  # type: ignore[attr-defined]
        self._abort()


class Edge:
    """Wraps the application; the server calls this.

    Args:
        app: the application, which answers errors too.
        write_timeout_s: time over which the pace of a reader is measured.
        answers: bytes of the large answers that are held; None for no limit of them.
    """

    def __init__(self, app: ASGIApp, write_timeout_s: float, answers: Bodies | None = None) -> None:
        self._app = app
        self._write_timeout_s, self._answers = write_timeout_s, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = Call(
            asyncio.get_running_loop().time(), anthropic=speaks_anthropic(scope["path"], scope.get("headers", ()))
        )
        if call.anthropic:
            call.headers["request-id"] = call.id
        state = scope.setdefault("state", {})
        state["call"] = call
        flow, abort = state.get("flow"), state.get("abort")
        if scope["method"] == "HEAD" and scope["path"] in PROBES:
            scope = {**scope, "method": "GET"}  # uvicorn keeps the original scope, and sends no body
        if flow is not None and abort is not None:
            state["direct_writer"] = DirectWriter(send, flow, abort)
        call.keep_connection = state.get("admitted", call.keep_connection)
        answer = Answer(
            send, call, flow, state.get("unsent"), self._answers, self._write_timeout_s, lambda: _cut(scope)
        )
        metrics.OPEN.inc()
        try:
            await self._app(scope, receive, answer.send)
        except SlowReader:
            call.refused = "slow_reader"
            _cut(scope)
        except ApiError as error:  # for its answer, which has begun, there is no room
            call.refused = error.reason
            _cut(scope)
        except Exception:
            log.exception("request_broke", http_id=call.id, path=scope["path"][:MOST_PATH_CHARS])
            if not call.complete:  # an answer that has begun cannot become an error
                _cut(scope)
        finally:
            call.end()
            metrics.OPEN.dec()
            _tell(call, scope)


class Answer:
    """The answer to one request, on its way to the connection.

    Args:
        send: of the connection.
        call: state of the request.
        flow, unsent: flow control of the connection, and how many bytes it has not sent; None where there is none.
        answers: bytes of large answers that are held; None for no limit of them.
        timeout_s: time over which the pace of the reader is measured.
        abort: ends the connection.
    """

    def __init__(
        self,
        send: Send,
        call: Call,
        flow: FlowControl | None,
        unsent: Callable[[], int] | None,
        answers: Bodies | None,
        timeout_s: float,
        abort: Callable[[], None],
    ) -> None:
        self._send, self._call, self._flow, self._unsent = send, call, flow, unsent
        self._answers, self._timeout_s, self._abort = answers, timeout_s, abort
        self._closed = self._judging = False
        self._waited_s, self._taken_bytes = 0.0, 0

    async def send(self, message: Message) -> None:
        """Send a message of the application, once the connection takes it.

        Raises:
            SlowReader: the reader does not keep the pace.
            ApiError: a large part of an answer that has begun finds no room.
        """
        if message["type"] == "http.response.start":
            await self._begin(message)
            return
        if self._closed:
            return
        body: bytes = message.get("body", b"")
        if len(body) > SMALL_ANSWER_BYTES:
            await self._hold(len(body))
            await self._pass_in_pieces(message, body)
        else:
            await self._pass(message)
        self._call.complete = not message.get("more_body")

    async def _begin(self, message: Message) -> None:
        call, headers = self._call, MutableHeaders(scope=message)
        error: ApiError | None = None
        refused = b""
        size = headers.get("content-length")
        if size is not None and int(size) > SMALL_ANSWER_BYTES and call.answer is None:
            try:
                await self._hold(int(size))
            except ApiError as refusal:
                error = refusal
                call.refused = error.reason
                # Nothing of the answer is kept but what lets a page of another origin read the error.
                kept = [(name, value) for name, value in headers.raw if name.startswith((b"access-control-", b"vary"))]
                status, refused = answer_of(refusal, call)
                message = {"type": message["type"], "status": status, "headers": kept}
                headers = MutableHeaders(scope=message)
                headers.update(error.headers)
                headers.update({"content-length": str(len(refused)), "content-type": "application/json"})
        call.status = message["status"]
        for name, value in call.headers.items():
            headers.setdefault(name, value)
        headers.setdefault("x-request-id", call.id)
        headers.setdefault("x-content-type-options", "nosniff")
        took_s = asyncio.get_running_loop().time() - call.began_s
        headers.setdefault("openai-processing-ms", str(round(took_s * 1000)))
        await self._pass(message)
        if error is not None:
            await self._pass({"type": "http.response.body", "body": refused})
            self._closed = call.complete = True

    async def _hold(self, size: int) -> None:
        """Count an answer that holds so many bytes at once. Raises ApiError if there is no room for it in a while."""
        held = 0 if self._call.answer is None else self._call.answer.bytes
        if self._answers is not None and size > held:
            await self._call.hold_answer_soon(self._answers, size - held)

    async def _pass_in_pieces(self, message: Message, body: bytes) -> None:
        """Pass a large body. If that ends in the middle, cut the connection: what follows would stand inside of it."""
        call, size = self._call, SMALL_ANSWER_BYTES
        try:
            for first in range(0, len(body), size):
                last = first + size >= len(body)
                more = not last or message.get("more_body", False)
                await self._pass({**message, "body": body[first : first + size], "more_body": more})
                call.midway = not last
        except BaseException:
            if call.midway:
                self._closed = True
                self._abort()
            raise

    async def _pass(self, message: Any) -> None:
        if self._flow is not None and self._unsent is not None and self._flow.write_paused:
            await self._wait(self._flow, self._unsent)
        await self._send(message)  # the connection is not paused, so this does not wait

    async def _wait(self, flow: FlowControl, unsent: Callable[[], int]) -> None:
        """Wait until the connection takes more. Raises SlowReader."""
        if self._judging:  # another part of the same stream waits, and judges
            await flow.drain()
            return
        loop = asyncio.get_running_loop()
        self._judging = True
        try:
            while flow.write_paused:
                before, since_s = unsent(), loop.time()
                try:
                    async with asyncio.timeout(self._timeout_s - self._waited_s):
                        await flow.drain()
                except TimeoutError:
                    pass
                self._waited_s += loop.time() - since_s
                self._taken_bytes += before - unsent()
                if self._waited_s >= self._timeout_s:
                    self._judge()
        finally:
            self._judging = False

    def _judge(self) -> None:
        held = 0 if self._call.answer is None else self._call.answer.bytes
        if self._taken_bytes < max(LEAST_BYTES_S, held / MOST_HELD_S) * self._waited_s:
            raise SlowReader
        self._waited_s, self._taken_bytes = 0.0, 0


def _cut(scope: Scope) -> None:
    """End the connection at once: an orderly close would first wait for unsent bytes."""
    abort: Callable[[], None] | None = scope["state"].get("abort")
    if abort is not None:
        abort()


def _tell(call: Call, scope: Scope) -> None:
    path, status = scope["path"], call.status or CLIENT_LEFT
    seconds = asyncio.get_running_loop().time() - call.began_s
    labels = metrics.endpoint_label(path), metrics.code_label(status)
    metrics.REQUESTS.labels(*labels).inc()
    metrics.SECONDS.labels(*labels).observe(seconds)
    if call.refused:
        metrics.REFUSED.labels(call.refused).inc()
    elif not call.complete:
        call.facts["left"] = True
    write = log.debug if path in QUIET else log.info
    write(
        "http_request",
        http_id=call.id,
        method=scope["method"],
        path=path[:MOST_PATH_CHARS],
        status=status,
        ms=round(seconds * 1000, 1),
        **call.facts,
    )
