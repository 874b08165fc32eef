"""The outermost ASGI layer: gives each request an id, a log line and metrics, and ends it whatever fails inside.

It passes requests to the application and adds headers to the answers. It also gives `streaming` a direct way to the
connection, and cuts the connection of a caller that stops reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl

from streamfleet.gateway import metrics
from streamfleet.gateway.call import Call
from streamfleet.gateway.errors import CLIENT_LEFT

log = structlog.get_logger(__name__)
PROBES = frozenset({"/health", "/livez", "/readyz"})
"""Endpoints that take HEAD too, because load balancers use it."""
QUIET = PROBES | {"/ui/api/overview"}
"""Logged at the debug level only: probes and an open page send a request every few seconds."""
MOST_PATH_CHARS = 200


class SlowReader(Exception):
    """The caller does not read its answer."""


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
        write_timeout_s: longest time in which a caller may read nothing.
    """

    def __init__(self, app: ASGIApp, write_timeout_s: float) -> None:
        self._app = app
        self._write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = Call(asyncio.get_running_loop().time())
        state = scope.setdefault("state", {})
        state["call"] = call
        flow, abort = state.get("flow"), state.get("abort")
        if scope["method"] == "HEAD" and scope["path"] in PROBES:
            scope = {**scope, "method": "GET"}  # uvicorn keeps the original scope, and sends no body
        if flow is not None and abort is not None:
            state["direct_writer"] = DirectWriter(send, flow, abort)
        metrics.OPEN.inc()
        try:
            await self._app(scope, receive, self._sender(call, send, flow, state.get("unsent")))
        except SlowReader:
            call.refused = "slow_reader"
            _cut(scope)
        except Exception:
            log.exception("request_broke", http_id=call.id, path=scope["path"][:MOST_PATH_CHARS])
            if not call.complete:  # an answer that has begun cannot become an error
                _cut(scope)
        finally:
            call.release()
            metrics.OPEN.dec()
            _tell(call, scope)

    def _sender(self, call: Call, send: Send, flow: FlowControl | None, unsent: Callable[[], int] | None) -> Send:
        loop = asyncio.get_running_loop()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in call.headers.items():
                    headers.setdefault(name, value)
                headers.setdefault("x-request-id", call.id)
                headers.setdefault("x-content-type-options", "nosniff")
                headers.setdefault("openai-processing-ms", str(round((loop.time() - call.began_s) * 1000)))
            if flow is not None and unsent is not None and flow.write_paused:
                await self._taken(flow, unsent)
            await send(message)  # the connection is not paused, so this does not wait
            call.complete = message["type"] == "http.response.body" and not message.get("more_body")

        return sending

    async def _taken(self, flow: FlowControl, unsent: Callable[[], int]) -> None:
        """Wait until the connection takes more.

        Raises:
            SlowReader: the caller read no byte for the whole time-out.
        """
        while flow.write_paused:
            before = unsent()
            try:
                async with asyncio.timeout(self._write_timeout_s):
                    await flow.drain()
            except TimeoutError:
                if unsent() >= before:
                    raise SlowReader from None


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
