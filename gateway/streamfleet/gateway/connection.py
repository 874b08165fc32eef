"""A connection's own limits, which uvicorn has none for: headers too large, too many or too slow, too many connections.

Whatever is sent beyond them is refused with an OpenAI-shaped error, and the connection closed. Nothing grows with what
a client sends: of headers at most the limit is kept, and of a body what `body` reads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from streamfleet.gateway import metrics
from streamfleet.gateway.errors import AWAY_S, SERVER, ApiError, retry_after

AHEAD_S = 1.0
"""A client has all bytes of an answer a moment before the gateway is done with it, and may send its next request."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one connection, and of how many there may be.

    Attributes:
        headers: of one request, how many.
        header_bytes: of one request, path and all, how large.
        head_timeout_s: how long they may take to arrive.
        write_timeout_s: how long a caller may take no byte of an answer.
        connections: at once.
    """

    headers: int
    header_bytes: int
    head_timeout_s: float
    write_timeout_s: float
    connections: int


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within limits; make a subclass with `within`."""

    limits: ClassVar[Limits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal: ApiError | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._unproductive_bytes = 0
        self._head_count = self._head_bytes = self._requests = 0
        self._next_dropped = False
        self._answered_first: RequestResponseCycle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    # -- the connection ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        metrics.CONNECTIONS.inc()
        if len(self.connections) > self.limits.connections:
            text = f"{self.limits.connections} connections are open, which is the limit; try again"
            headers = retry_after(AWAY_S)
            self._refuse(ApiError(503, text, "too_many_connections", SERVER, headers=headers, reason="connections"))
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        metrics.CONNECTIONS.dec()
        self._disarm()
        self._forget_unread()
        super().connection_lost(exc)
        if self._answered_first is not None:  # uvicorn tells the queued one alone
            self._answered_first.disconnected = True
            self._answered_first.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._refused() or self._next_dropped:
            return
        # Bytes that end no header and belong to no body: half a header, a chunk's extension, a trailer.
        self._unproductive_bytes += len(data)
        super().data_received(data)
        if self._refused() or self._next_dropped:
            return
        if self._unproductive_bytes > self.limits.header_bytes + len(data):
            self._refuse(self._too_large())
        elif self._in_head and self._unproductive_bytes and self._head_timer is None:
            self._arm()

    def send_400_response(self, msg: str) -> None:
        """In place of uvicorn's, which is no JSON."""
        self._refuse(self._refusal or ApiError(400, msg.rstrip("."), "malformed_request", reason="malformed"))

    # -- the parser ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._forget_unread()  # from here on the buffer holds more than the last answer
        super().on_message_begin()
        self._in_head, self._head_count, self._head_bytes = True, 0, 0
        unsent = self.transport.get_write_buffer_size
        self.scope["state"] |= {"abort": self.transport.abort, "flow": self.flow, "unsent": unsent}

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_count += 1
        self._count(len(name) + len(value))
        if self._head_count > self.limits.headers:
            self._refusal = self._too_large()
            raise ValueError("too many headers")  # ends the parsing
        if self._in_head:  # trailers come behind a chunked body, and nobody asked for any
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._unproductive_bytes = False, 0
        if not _has_path(self.url):
            text = f"{self.url[:200].decode('ascii', 'replace')!r} is not the path of a request; see /openapi.json"
            self._refusal = ApiError(400, text, "malformed_request", reason="malformed")
            raise ValueError("no path")  # ends the parsing
        self._requests += 1
        self._disarm()
        before = self.cycle
        super().on_headers_complete()
        if self.pipeline:
            self._answered_first = before
            self.loop.call_later(AHEAD_S, self._drop_next, before)

    def on_body(self, body: bytes) -> None:
        self._unproductive_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._unproductive_bytes = True, 0
        super().on_message_complete()

    # -- a request that comes before the last one is answered --------------------------------------------------

    def _drop_next(self, answering: RequestResponseCycle) -> None:
        """Drop the queued request: uvicorn reads no further while it waits, and would not hear that its client leaves.

        The client sends it again, once the connection is closed behind the answer (RFC 9112, section 9.3.2).
        """
        if self.pipeline and not answering.response_complete:
            self.pipeline.clear()
            self.cycle, self._next_dropped, answering.keep_alive = answering, True, False
            self.flow.resume_reading()

    # -- an answer that is complete, and not read -------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.flow.write_paused:  # else little is left, which the event loop may be about to send
            self._watch_unread(self.transport.get_write_buffer_size())

    def _watch_unread(self, unsent: int) -> None:
        self._unread_timer = self.loop.call_later(self.limits.write_timeout_s, self._unread, unsent)

    def _forget_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _unread(self, before: int) -> None:
        self._unread_timer, unsent = None, self.transport.get_write_buffer_size()
        if unsent >= before:
            metrics.REFUSED.labels("slow_reader").inc()
            self.transport.abort()
        elif unsent:
            self._watch_unread(unsent)

    # -- refusing ------------------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.header_bytes:
            self._refusal = self._too_large()
            raise ValueError("headers too large")

    def _too_large(self) -> ApiError:
        text = f"at most {self.limits.headers} headers and {self.limits.header_bytes} bytes of them are taken"
        return ApiError(431, text, "headers_too_large", reason="headers_too_large")

    def _refused(self) -> bool:
        return self._refusal is not None

    def _answering(self) -> bool:
        return self._requests > 0 and not self.cycle.response_complete

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self._too_slow)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if self._answering():
            self._arm()  # an answer is on its way; what comes behind can wait
            return
        if not self._unproductive_bytes:
            self.transport.close()  # it connected and said nothing
            return
        text = f"the headers did not arrive within {self.limits.head_timeout_s:g} s"
        self._refuse(ApiError(408, text, "headers_too_slow", reason="headers_too_slow"))

    def _refuse(self, error: ApiError) -> None:
        self._refusal = error
        self._disarm()
        metrics.REFUSED.labels(error.reason).inc()
        if self.transport.is_closing():
            return
        if not self._answering():  # it would be mixed up with the answer
            body = error.body()
            headers = {
                **error.headers,
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
            }
            lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())
            self.transport.write(STATUS_LINE[error.status] + lines + b"\r\n" + body)
        self.transport.close()


def _has_path(url: bytes) -> bool:
    """True if a request's target names a path: CONNECT's does not, nor a broken absolute one."""
    try:
        return bool(httptools.parse_url(url).path)
    except httptools.HttpParserInvalidURLError:
        return False


def within(limits: Limits) -> type[LimitedProtocol]:
    """The protocol with these limits, for uvicorn to make one of for each connection."""
    return type("Protocol", (LimitedProtocol,), {"limits": limits})
