"""Reads a request's body up to its size limit and within its time limit.

`read_body` returns the bytes. `drop_body` receives, within bounds, the rest of a body that was refused.
"""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from streamfleet.gateway.call import call_of
from streamfleet.gateway.errors import ApiError

LINGER_BYTES, LINGER_S = 4_194_304, 1.0
"""Bytes and seconds of a refused body that are still received: a client that is cut off while it sends does not read
the error."""


async def read_body(request: Request, most_bytes: int, timeout_s: float) -> bytes:
    """Returns the whole body.

    Raises:
        ApiError: the body is too large, or too slow.
        ClientDisconnect: the client left before the body was complete.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most_bytes:
        raise _too_large(most_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _within(request, most_bytes)
    except TimeoutError:
        text = f"the body did not arrive within {timeout_s:g} s"
        headers = {"connection": "close"}
        raise ApiError(408, text, "body_too_slow", headers=headers, reason="body_too_slow") from None


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


async def _within(request: Request, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size, call = 0, call_of(request)
    while not call.body_read:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        part = message.get("body", b"")
        call.body_read = not message.get("more_body", False)
        size += len(part)
        if size > most_bytes:
            raise _too_large(most_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(most_bytes: int) -> ApiError:
    text = f"the body is larger than {most_bytes} bytes, which is the limit"
    return ApiError(413, text, "request_too_large", reason="body_too_large")
