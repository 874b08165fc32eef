"""A TCP link to a gateway that is cut after so many bytes of its answers, wherever that is."""

from __future__ import annotations

import asyncio

from tests.integration.tcp_link import TcpLink

FIRST_OF_SEVERAL = 0xC0
"""Bytes from here on begin a character of several bytes in UTF-8."""


class CuttingLink(TcpLink):
    """Forwards both ways until its time is over.

    Args:
        port: of the gateway.
        most_bytes: forwarded of what it answers.
        in_a_character: go on from there to the first character of several bytes, and cut behind its first byte.

    Attributes:
        forwarded: what came through of its answers.
        cut: whether the end came by the cut.
    """

    def __init__(self, port: int, most_bytes: int, *, in_a_character: bool = False) -> None:
        super().__init__(port)
        self._most_bytes, self._in_a_character = most_bytes, in_a_character
        self.forwarded, self.cut = b"", False

    @property
    def url(self) -> str:
        """URL to connect to instead."""
        return f"http://127.0.0.1:{self.port}"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._server_port)
        up = asyncio.create_task(_forward(reader, requests))
        try:
            while not self.cut and (data := await answers.read(65_536)):
                kept = self._kept(data)
                self.forwarded += kept
                writer.write(kept)
                await writer.drain()
        finally:
            up.cancel()
            for end in (writer, requests):
                end.close()

    def _kept(self, data: bytes) -> bytes:
        """Returns the part of the data that comes through."""
        room = max(0, self._most_bytes - len(self.forwarded))
        if len(data) <= room:
            return data
        wanted = FIRST_OF_SEVERAL if self._in_a_character else 0
        found = next((at for at in range(room, len(data)) if data[at] >= wanted), None)
        self.cut = found is not None
        return data if found is None else data[: found + self._in_a_character]


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
