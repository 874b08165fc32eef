"""A receiver of webhooks on the loopback interface; it verifies signatures by the Standard Webhooks specification."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

READ_TIMEOUT_S = 20.0
MOST_BODY_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Delivered:
    """One received webhook: its id, True if its signature is right, and its body."""

    id: str
    verified: bool
    body: bytes

    @property
    def subject(self) -> str:
        """The id in its `data`; empty if there is none."""
        try:
            return str(json.loads(self.body)["data"]["id"])
        except (ValueError, TypeError, KeyError):
            return ""


def verified(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """True if the webhook is signed with this secret, and at most five minutes old."""
    from standardwebhooks.webhooks import Webhook, WebhookVerificationError

    try:
        Webhook(secret).verify(body, headers, json_parse=False)
    except (WebhookVerificationError, ValueError):  # ValueError: what came is no text, or no base64
        return False
    return True


@dataclass
class Receiver:
    """Listens while its context is open; answers 204 to verified webhooks, 401 to others.

    Attributes:
        secret: secret of the sender.
        port: its port.
        came: all received webhooks.
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
        """The `callback_url` of this receiver."""
        return f"http://127.0.0.1:{self.port}/hook"

    async def about(self, subject: str, within_s: float) -> Delivered | None:
        """The first webhook about a subject; None if none arrives in time."""
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
            return  # not a webhook: close the connection
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
        good = verified(self.secret, headers, body)
        self.came.append(Delivered(headers.get("webhook-id", ""), good, body))
        self._news.set()
        return "204 No Content" if good else "401 Unauthorized"
