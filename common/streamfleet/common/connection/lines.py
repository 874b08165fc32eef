"""The line to the server that holds the queue, opened anew where that server turns out to be another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from streamfleet.common.connection.clients import BlockingClient, Client
from streamfleet.common.connection.locator import Locator
from streamfleet.common.connection.translation import points_elsewhere
from streamfleet.common.connection.urls import safe_address
from streamfleet.common.errors import BrokerUnavailable

log = structlog.get_logger(__name__)
T = TypeVar("T")


class Line:
    """Two clients of one server.

    Attributes:
        commands: for what answers at once; several connections.
        blocking: for what blocks; one connection.
        users: operations under way.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.commands = Client(url)
        self.blocking = BlockingClient(url)
        self.users = 0

    async def close(self) -> None:
        await self.commands.close()
        await self.blocking.close()


class Lines:
    """Hands out the line that is right now.

    A line that was replaced is closed when its last operation has ended: closing it under others' hands would give
    them errors that say nothing of the server.

    Attributes:
        moves: how often the server turned out to be another.
    """

    def __init__(self, locator: Locator) -> None:
        self.moves = 0
        self._locator = locator
        self._line: Line | None = None
        self._doubted = True
        self._located_at = 0.0
        self._replaced: list[Line] = []
        self._locating = asyncio.Lock()

    async def use(self, work: Callable[[Line], Awaitable[T]]) -> T:
        """Run an operation; after an error that may mean that the server is elsewhere, the next looks for it again."""
        line = await self._current()
        line.users += 1
        try:
            return await work(line)
        except Exception as error:
            if line is self._line and points_elsewhere(error):
                self._doubted = True
            raise
        except asyncio.CancelledError:  # perhaps by a time-out: the server may be gone without a word
            self._doubted = True
            raise
        finally:
            line.users -= 1
            if line.users == 0 and line in self._replaced:
                self._replaced.remove(line)
                await line.close()

    async def close(self) -> None:
        lines, self._replaced, self._line = [*self._replaced, self._line], [], None
        for line in lines:
            if line is not None:
                await line.close()

    async def _current(self) -> Line:
        if (line := self._trusted()) is not None:
            return line
        async with self._locating:
            if (line := self._trusted()) is not None:
                return line
            try:
                url = await self._locator.locate()
            except BrokerUnavailable:
                if self._doubted or self._line is None:
                    raise
                url = self._line.url  # nobody knows better, and it answers
            self._doubted, self._located_at = False, asyncio.get_running_loop().time()
            if self._line is not None and self._line.url == url:
                return self._line
            old, self._line = self._line, (line := Line(url))
            if old is not None:
                self.moves += 1
                log.warning("redis_moved", server=safe_address(url))
            if old is not None and old.users:
                self._replaced.append(old)
                await old.blocking.close()  # nothing will come to a read from a server that is left
            elif old is not None:
                await old.close()
            return line

    def _trusted(self) -> Line | None:
        stale = asyncio.get_running_loop().time() - self._located_at > self._locator.trust_s
        return None if self._doubted or stale else self._line
