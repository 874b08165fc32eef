"""A receiver of webhooks on the loopback interface, which verifies each as the Standard Webhooks specification says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

READ_TIMEOUT_S = 20.0
MOST_BODY_BYTES = 65_536
OLDEST_S = 300


@dataclass(frozen=True, slots=True)
class Delivered:
    """One webhook: its id, whether its signature is right, and what it says."""

    id: str
    verified: bool
    body: bytes

    @property
    def subject(self) -> str:
        """What it is about: the id in its `data`; empty where it has none."""
        try:
            return str(json.loads(self.body)["data"]["id"])
        except (ValueError, TypeError, KeyError):
            return ""


def verified(secret: str, headers: Mapping[str, str], body: bytes, now_s: float) -> bool:
    """Whether it is signed with this secret, and not old.

    Args:
        secret: begins with `whsec_`.
        headers: with names in lower case.
        body: the bytes as they came.
        now_s: epoch seconds.
    """
    stamp = headers.get("webhook-timestamp", "")
    if not stamp.isdecimal() or abs(now_s - int(stamp)) > OLDEST_S:
        return False
    signed = f"{headers.get('webhook-id', '')}.{stamp}.".encode() + body
    mac = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256)
    wanted = f"v1,{base64.b64encode(mac).decode()}".encode()
    given = headers.get("webhook-signature", "").encode().split(b" ")
    return any(hmac.compare_digest(wanted, each) for each in given)


@dataclass
class Receiver:
    """Listens while its context is open; answers 204 to what is verified, 401 to all else.

    Attributes:
        secret: that of the sender.
        port: where it listens.
        came: all that came.
    """

    secret: str
    port: int = 0
    came: list[Delivered] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Receiver]:
        """Listen on any free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    @property
    def url(self) -> str:
        """What to give as `callback_url`."""
        return f"http://127.0.0.1:{self.port}/hook"

    async def about(self, subject: str, within_s: float) -> Delivered | None:
        """The first webhook about this; None when none comes in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    self._news.clear()
                    for each in self.came:
                        if each.subject == subject:
                            return each
                    await self._news.wait()
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                status = await self._take(reader)
                writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
                await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # no webhook: hung up on
        finally:
            writer.close()

    async def _take(self, reader: asyncio.StreamReader) -> str:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = (line.partition(":") for line in head.split("\r\n")[1:] if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        if not 0 <= length <= MOST_BODY_BYTES:
            return "413 Content Too Large"
        body = await reader.readexactly(length)
        good = verified(self.secret, headers, body, time.time())
        self.came.append(Delivered(headers.get("webhook-id", ""), good, body))
        self._news.set()
        return "204 No Content" if good else "401 Unauthorized"
