"""A real HTTP server that receives webhooks, answers as a test wants, and keeps what came."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Came:
    """One webhook as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True)
class Say:
    """An answer to give after so many seconds; then the connection stays open for so many.

    A status of 0 answers nothing, and hangs up.
    """

    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    after_s: float = 0.0
    stays_s: float = 0.0


@dataclass
class Receiver:
    """Serves on the loopback while its context is open.

    Attributes:
        answer: what to say to the n-th webhook (from 1) of all that came.
        came: all of them.
        most: how many were inside at once, at most.
        connections: how many were opened.
    """

    answer: Callable[[int, Came], Say] = field(default=lambda _n, _came: Say())
    came: list[Came] = field(default_factory=list)
    most: int = 0
    connections: int = 0
    port: int = 0
    _inside: int = 0
    _serving: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def serving(self, trust: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        """Listen on any free port."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=trust)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def url(self, host: str = "127.0.0.1", scheme: str = "http", path: str = "/hook") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            return  # the sender left
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came = await _read(reader)
        self.came.append(came)
        said = self.answer(len(self.came), came)
        self._inside += 1
        self.most = max(self.most, self._inside)
        try:
            await _while_there(reader, said.after_s)
        finally:
            self._inside -= 1
        if said.status:
            headers = {"content-length": str(len(said.body)), **dict(said.headers)}
            head = [f"HTTP/1.1 {said.status} x", *(f"{name}: {value}" for name, value in headers.items())]
            writer.write("\r\n".join([*head, "", ""]).encode() + said.body)
            await writer.drain()
            await _while_there(reader, said.stays_s)


async def _while_there(reader: asyncio.StreamReader, for_s: float) -> None:
    """So long, or until the sender leaves."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), for_s)


async def _read(reader: asyncio.StreamReader) -> Came:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Came(first.split(" ")[1], headers, body)
