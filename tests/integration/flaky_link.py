"""A TCP link to Redis that breaks where a test wants it: after a script was sent, before its answer is let through."""

from __future__ import annotations

import asyncio

from streamfleet.common import scripts
from tests.integration.tcp_link import TcpLink


class FlakyLink(TcpLink):
    """Forwards both ways while its context is open.

    Attributes:
        broken: verbs whose answers were swallowed so far.
    """

    def __init__(self, redis_port: int) -> None:
        super().__init__(redis_port)
        self._armed: dict[str, bytes] = {}
        self.broken: list[str] = []

    def break_after(self, verb: str, answer_with: bytes = b"") -> None:
        """Let calls of this verb reach Redis; lose the first answer that holds these bytes, and the connection."""
        self._armed[verb] = answer_with

    @property
    def url(self) -> str:
        """URL to connect to instead."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        asked: list[bytes] = [b""]
        ways = {
            asyncio.create_task(_requests(reader, redis_writer, asked)),
            asyncio.create_task(self._answers(redis_reader, writer, asked)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, redis_writer):
                end.close()
            await asyncio.gather(*ways, writer.wait_closed(), redis_writer.wait_closed(), return_exceptions=True)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bytes]) -> None:
        while data := await reader.read(1 << 20):
            for verb, mark in list(self._armed.items()):
                if scripts.sha(verb).encode() in asked[0] and mark in data:
                    del self._armed[verb]
                    self.broken.append(verb)
                    return
            writer.write(data)
            await writer.drain()


async def _requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bytes]) -> None:
    while data := await reader.read(1 << 20):
        asked[0] = data
        writer.write(data)
        await writer.drain()
