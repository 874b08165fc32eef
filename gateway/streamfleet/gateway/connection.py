"""A connection's own limits, which uvicorn has none for: headers too large, too many or too slow, too many connections.

Whatever is sent beyond them is refused with an OpenAI-shaped error, and the connection closed. Nothing grows with what
a client sends: of headers at most the limit is kept, and of a body what `body` reads. At the limit of connections, the
one that has been idle for longest is closed for a new one.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from streamfleet.gateway import metrics
from streamfleet.gateway.errors import AWAY_S, SERVER, ApiError, retry_after
from streamfleet.gateway.shared_counts import Count, SharedCounts

AHEAD_S = 1.0
"""A client has all bytes of an answer a moment before the gateway is done with it, and may send its next request."""
LEAST_BYTES_S = 1_024
"""Pace at which a caller has to take its answer, in bytes a second."""
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one connection, and of how many there may be.

    Attributes:
        headers: of one request, how many.
        header_bytes: of one request, path and all, how large.
        head_timeout_s: how long they may take to arrive.
        write_timeout_s: time over which the pace of a caller that takes its answer is measured.
        connections: at once.
    """

    headers: int
    header_bytes: int
    head_timeout_s: float
    write_timeout_s: float
    connections: int


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within limits; make a subclass with `within`.

    Attributes:
        limits: of all connections.
        shared: counts of all processes of the gateway.
        idle: connections on which no request of an admitted caller is under way, those idle for longest first.
    """

    limits: ClassVar[Limits]
    shared: ClassVar[SharedCounts]
    idle: ClassVar[dict[LimitedProtocol, None]]

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
        self.shared.add(Count.CONNECTIONS, 1)
        open_now = len(self.connections) + self.shared.others(Count.CONNECTIONS)
        if open_now > self.limits.connections and not self._make_room():
            text = f"{self.limits.connections} connections are open, which is the limit; try again"
            headers = retry_after(AWAY_S)
            self._refuse(ApiError(503, text, "too_many_connections", SERVER, headers=headers, reason="connections"))
            return
        self._is_idle()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        metrics.CONNECTIONS.dec()
        self.shared.add(Count.CONNECTIONS, -1)
        self._is_busy()
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
        self._refuse(self._refusal or _malformed(msg.rstrip(".")))

    # -- the parser ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._forget_unread()  # from here on the buffer holds more than the last answer
        super().on_message_begin()
        self._in_head, self._head_count, self._head_bytes = True, 0, 0
        unsent = self.transport.get_write_buffer_size
        state = {"abort": self._abort, "admitted": self._is_busy, "flow": self.flow, "unsent": unsent}
        self.scope["state"] |= state

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
        wrong = _what_is_malformed(self.parser.get_http_version(), self.url, self.headers)
        if wrong:
            self._refusal = _malformed(wrong)
            raise ValueError(wrong)  # ends the parsing
        self._in_head, self._unproductive_bytes = False, 0
        self._requests += 1
        self._disarm()
        before = self.cycle
        super().on_headers_complete()
        if not self.pipeline:
            self._is_idle()  # until its caller is admitted
        else:
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
        self._is_idle()
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
        if unsent and before - unsent < LEAST_BYTES_S * self.limits.write_timeout_s:
            metrics.REFUSED.labels("slow_reader").inc()
            self.transport.abort()
        elif unsent:
            self._watch_unread(unsent)

    # -- room for connections --------------------------------------------------------------------------------

    def _is_idle(self) -> None:
        """Note that the connection serves no admitted caller, from this moment on."""
        self._is_busy()
        if self in self.connections:  # it is not lost
            self.idle[self] = None

    def _is_busy(self) -> None:
        self.idle.pop(self, None)

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest. Returns False if none is idle."""
        longest = next(iter(self.idle), None)
        if longest is not None:
            longest.give_way()
        return longest is not None

    def give_way(self) -> None:
        """Close this connection for a new one."""
        self._is_busy()
        metrics.REFUSED.labels("idle_connection").inc()
        if self.transport.get_write_buffer_size():
            self._abort()  # an orderly close would wait for its reader
        else:
            self.transport.close()

    def _abort(self) -> None:
        """End the connection at once. Nothing is written any more, and uvicorn misses no end of the answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.transport.abort()

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

    def _leave_answering(self) -> None:
        """End the request whose own body is broken, if its answer has not begun: the refusal is its answer."""
        if self._answering() and not (self._in_head or self.pipeline or self.cycle.response_started):
            self.cycle.disconnected = self.cycle.response_complete = True
            self.cycle.message_event.set()

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
        self._leave_answering()
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


def _what_is_malformed(version: str, url: bytes, headers: list[tuple[bytes, bytes]]) -> str:
    """Returns what is wrong with the head of a request, or an empty text; the parser has found nothing."""
    if version not in ("1.0", "1.1"):
        return f"HTTP/{version} is not spoken here, but HTTP/1.1"
    if not _has_path(url):
        return f"{url[:200].decode('ascii', 'replace')!r} is not the path of a request; see /openapi.json"
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return f"a request has one Host header, and this has {len(hosts) or 'none'}"
    if hosts and not _HOST.fullmatch(hosts[0]):
        return "the Host header names no host"
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and (version == "1.0" or [value.strip().lower() for value in codings] != [b"chunked"]):
        return "the only Transfer-Encoding that is taken is chunked, in HTTP/1.1"
    return ""


def _malformed(text: str) -> ApiError:
    return ApiError(400, text, "malformed_request", reason="malformed")


def _has_path(url: bytes) -> bool:
    """True if a request's target names a path: CONNECT's does not, nor a broken absolute one."""
    try:
        return bool(httptools.parse_url(url).path)
    except httptools.HttpParserInvalidURLError:
        return False


def within(limits: Limits, shared: SharedCounts | None = None) -> type[LimitedProtocol]:
    """The protocol with these limits, for uvicorn to make one of for each connection."""
    return type("Protocol", (LimitedProtocol,), {"limits": limits, "shared": shared or SharedCounts(), "idle": {}})
