"""Reads a request's body up to its size limit and within its time limit.

`read_body` returns the bytes. `drop_body` receives, within bounds, the rest of a body that was refused.
`Bodies` bounds the bytes of all bodies that the gateway holds while it reads them and puts them into a queue; another
one bounds the bytes of answers that are held for their readers.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.requests import ClientDisconnect, Request

from streamfleet.gateway import metrics
from streamfleet.gateway.call import call_of
from streamfleet.gateway.errors import AWAY_S, LIMITED, NOT_AGAIN, SERVER, ApiError, retry_after
from streamfleet.gateway.shared_counts import Count, SharedCounts

TIMEOUT_S = 60.0
"""Time for the body of a request to arrive: 4 MiB at half a megabit a second."""
SMALL_ANSWER_BYTES = 65_536
"""Bytes of an answer up to which it is not counted: the limit of connections bounds those."""
ROOM_S = 5.0
"""Most seconds that the answer of a request waits for room, because it was computed already."""
OTHERS_S = 0.1
"""Pause between two looks for room that another process has let go: nothing tells of it."""
LINGER_BYTES, LINGER_S = 4_194_304, 1.0
"""Bytes and seconds of a refused body that are still received: a client that is cut off while it sends does not read
the error."""


class Bodies:
    """Bytes of the bodies that a gateway holds at once: of requests, or of answers.

    Args:
        most_bytes: of all callers together; one tenant has at most half of it. A single body always finds room.
        answers: True for those of answers.
        shared: counts of all processes; None for a gateway of one.
    """

    def __init__(self, most_bytes: int, *, answers: bool = False, shared: SharedCounts | None = None) -> None:
        self._most_bytes = most_bytes
        self._shared, self._counted = shared or SharedCounts(), Count.ANSWERS if answers else Count.BODIES
        self._what = "answers" if answers else "bodies"
        self._reason = "answer_bytes" if answers else "body_bytes"
        self._metric = metrics.ANSWER_BYTES if answers else metrics.BODY_BYTES
        self._held: Counter[str | None] = Counter()
        self._waiting_bytes, self._freed = 0, asyncio.Event()

    def hold(self, tenant: str | None) -> Holding:
        """Room for one body; nothing is held yet. The tenant is None where keys are off: then no half is kept free."""
        return Holding(self, tenant)

    def check(self, tenant: str | None, own: int, size: int) -> None:
        """Check that there is room.

        Args:
            tenant: whose body it is.
            own: bytes of it that are held.
            size: bytes of it that would be held.

        Raises:
            ApiError: all bodies together, or those of the tenant, would be too large.
        """
        others, most = self._held.total() - own + self._shared.others(self._counted), self._most_bytes
        if others and others + size > most:
            text = f"this gateway holds {self._what} of {others} bytes, and {most} is the limit; try again"
            raise ApiError(503, text, "too_many_bytes", SERVER, headers=retry_after(AWAY_S), reason=self._reason)
        others, most = self._held[tenant] - own + self._shared.others(self._counted, tenant), self._most_bytes // 2
        if tenant is not None and others and others + size > most:
            text = (
                f"this gateway holds {self._what} of {others} bytes of this tenant, and {most} is the limit; try again"
            )
            raise ApiError(429, text, "too_many_bytes", LIMITED, headers=retry_after(AWAY_S), reason=self._reason)

    def count(self, tenant: str | None, change: int) -> None:
        """Add to the bytes that are held; negative for bytes that are let go."""
        self._metric.inc(change)
        self._shared.add(self._counted, change, tenant)
        self._held[tenant] += change
        if not self._held[tenant]:
            del self._held[tenant]  # tenants come and go
        if change < 0 and self._waiting_bytes:
            self._freed.set()
            self._freed.clear()  # who waits now is woken

    async def wait_for_room(self, size: int, until_s: float) -> bool:
        """Wait until bytes are let go, on behalf of an answer of that size. It is in memory meanwhile.

        Args:
            size: of the answer.
            until_s: give up at this time of the loop's clock.

        Returns:
            False if the time is up, or if those that wait would hold more than a quarter of the limit.
        """
        processes, now_s = self._shared.processes, asyncio.get_running_loop().time
        if self._waiting_bytes and self._waiting_bytes + size > self._most_bytes // (4 * processes):
            return False
        self._waiting_bytes += size
        try:
            async with asyncio.timeout_at(until_s if processes == 1 else min(until_s, now_s() + OTHERS_S)):
                return await self._freed.wait()
        except TimeoutError:
            return now_s() < until_s
        finally:
            self._waiting_bytes -= size


class Holding:
    """Bytes of one body that are held. Make it with `Bodies.hold`.

    Attributes:
        bytes: how many.
    """

    def __init__(self, bodies: Bodies, tenant: str | None) -> None:
        self._bodies, self._tenant, self.bytes = bodies, tenant, 0

    def expect(self, size: int) -> None:
        """Check, before a body of this size is read, that there is room for it. Raises ApiError."""
        self._bodies.check(self._tenant, self.bytes, size)

    def add(self, size: int) -> None:
        """Count bytes that have arrived. Raises ApiError if there is no room for them."""
        self.resize(self.bytes + size)

    def resize(self, size: int) -> None:
        """Set the number of bytes that are held. Raises ApiError, with the number as before, if there is no room."""
        if size > self.bytes:
            self._bodies.check(self._tenant, self.bytes, size)
        self._bodies.count(self._tenant, size - self.bytes)
        self.bytes = size

    async def add_soon(self, size: int) -> None:
        """Count bytes as `add` does, if need be after a short wait for room. Raises ApiError if there is still none."""
        until_s = asyncio.get_running_loop().time() + ROOM_S
        while True:
            try:
                self.add(size)
            except ApiError:
                if not await self._bodies.wait_for_room(size, until_s):
                    raise
            else:
                return

    def release(self) -> None:
        """Count the body as no longer held."""
        self.resize(0)


async def read_body(request: Request, most_bytes: int, holding: Holding, setting: str = "") -> bytes:
    """Returns the whole body. It counts as held until `Call.release`, or the end of the request.

    Args:
        request: has the body.
        most_bytes: of the body.
        holding: counts it.
        setting: the operator's name of `most_bytes`; empty where it is fixed.

    Raises:
        ApiError: the body is encoded, too large, or too slow, or the gateway holds too many bytes.
        ClientDisconnect: the client left before the body was complete.
    """
    check_encoding(request)
    call_of(request).release = holding.release
    announced = request.headers.get("content-length", "")
    if announced.isdecimal():
        if int(announced) > most_bytes:
            raise _too_large(most_bytes, setting)
        holding.expect(int(announced))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _within(request, most_bytes, holding, setting)
    except TimeoutError:
        text = f"the body did not arrive within {TIMEOUT_S:g} s"
        headers = {"connection": "close"}
        raise ApiError(408, text, "body_too_slow", headers=headers, reason="body_too_slow") from None


def check_encoding(request: Request) -> None:
    """Refuse a compressed body: nothing here decodes one. Raises ApiError."""
    named = ",".join(request.headers.getlist("content-encoding")).split(",")
    coded = [coding for each in named if (coding := each.strip().lower()) not in ("", "identity")]
    if coded:
        text = f"a body is taken as it is, without Content-Encoding {coded[0][:40]!r}: send it uncompressed"
        headers = {"accept-encoding": "identity", **NOT_AGAIN}
        reason = "content_encoding"
        raise ApiError(415, text, "unsupported_encoding", param="Content-Encoding", headers=headers, reason=reason)


async def drop_body(request: Request) -> bool:
    """Receive the rest of a body, within bounds. Returns True if that was all of it."""
    if call_of(request).body_read or request.method in ("GET", "HEAD", "OPTIONS", "DELETE"):
        return True
    if "100-continue" in request.headers.get("expect", "").lower():
        return False  # the client waits for permission to send
    taken = 0
    try:
        async with asyncio.timeout(LINGER_S):
            while taken < LINGER_BYTES:
                message = await request.receive()
                if message["type"] != "http.request":
                    return False
                if not message.get("more_body"):
                    return True
                taken += len(message.get("body", b""))
    except (TimeoutError, ClientDisconnect):
        pass
    return False


async def _within(request: Request, most_bytes: int, holding: Holding, setting: str) -> bytes:
    parts: list[bytes] = []
    size, call = 0, call_of(request)
    try:
        while not call.body_read:
            message = await request.receive()
            if message["type"] != "http.request":
                raise ClientDisconnect
            part = message.get("body", b"")
            call.body_read = not message.get("more_body", False)
            size += len(part)
            if size > most_bytes:
                raise _too_large(most_bytes, setting)
            holding.add(len(part))
            parts.append(part)
        return b"".join(parts)
    finally:
        parts.clear()  # an error keeps this frame for as long as it is answered


def _too_large(most_bytes: int, setting: str) -> ApiError:
    named = f" ({setting} of this gateway), images and sound included" if setting else ""
    text = f"the body is larger than {most_bytes} bytes, which is the limit{named}"
    return ApiError(413, text, "request_too_large", reason="body_too_large")
