"""The clients of the server that holds the queue; they are replaced when the queue moves to another server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import structlog

from streamfleet.common.connection.clients import BlockingClient, Client
from streamfleet.common.connection.locator import Locator
from streamfleet.common.connection.translation import FAILURES, points_elsewhere
from streamfleet.common.connection.urls import safe_address
from streamfleet.common.errors import BrokerUnavailable

log = structlog.get_logger(__name__)
T = TypeVar("T")
GRACE_S = 1.0
"""Seconds after a new connection's answer in which a server that was only busy answers all others."""


class Line:
    """The two clients of one server.

    Attributes:
        commands: for commands that answer at once; several connections.
        blocking: for blocking commands; one connection.
        users: number of operations in progress.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.commands = Client(url)
        self.blocking = BlockingClient(url)
        self.users = 0

    async def close(self) -> None:
        await self.commands.close()
        await self.blocking.close()

    async def drop_silent(self) -> None:
        """Drop connections that are or may be dead, if the server answers a new one.

        NATs and load balancers drop connections silently: commands get neither an answer nor an error. A busy server
            does
        not answer the new connection either, and then its connections are kept.
        """
        began = asyncio.get_running_loop().time()
        fresh = Client(self.url)
        try:
            await fresh.send("PING")
            await asyncio.sleep(GRACE_S)
        finally:
            await fresh.close()
        dead = self.commands.overdue(began)
        if dead or self.blocking.overdue(began):
            log.warning("redis_connections_dead", server=safe_address(self.url))
            await self.drop(dead)

    async def drop(self, dead: Sequence[Any] = ()) -> None:
        """Close these connections, the idle ones, and the blocking one, because all may have died together."""
        await self.commands.drop(dead)
        await self.blocking.close()


class Lines:
    """Runs operations on the line to the current server.

    A replaced line is closed after its last operation: closed earlier, its operations would get errors that are not the
    server's.

    Attributes:
        moves: number of changes to another server.
    """

    def __init__(self, locator: Locator) -> None:
        self.moves = 0
        self._locator = locator
        self._line: Line | None = None
        self._doubted = True
        self._located_at = 0.0
        self._replaced: list[Line] = []
        self._locating = asyncio.Lock()
        self._checking: asyncio.Task[None] | None = None

    async def use(self, work: Callable[[Line], Awaitable[T]]) -> T:
        """Run an operation; after an error that may mean a moved server, the next operation locates it again."""
        line = await self._current()
        line.users += 1
        try:
            return await work(line)
        except Exception as error:
            if line is self._line and points_elsewhere(error):
                self._doubted = True
            raise
        except asyncio.CancelledError:  # perhaps by a time-out, because the server is gone
            self._doubted = True
            raise
        finally:
            line.users -= 1
            if line.users == 0 and line in self._replaced:
                self._replaced.remove(line)
                await line.close()

    def check(self) -> None:
        """Check in the background for dead connections, because an answer is overdue."""
        if self._line is not None and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._check(self._line))

    async def _check(self, line: Line) -> None:
        with contextlib.suppress(*FAILURES):
            await line.drop_silent()

    async def drop(self) -> None:
        """Drop the server's other connections after an answer timed out, because they may be dead too."""
        if self._checking is not None:
            self._checking.cancel()
        if self._line is not None:
            await self._line.drop()

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
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
                url = self._line.url  # the locator has no answer, but the current server does
            self._doubted, self._located_at = False, asyncio.get_running_loop().time()
            if self._line is not None and self._line.url == url:
                return self._line
            old, self._line = self._line, (line := Line(url))
            if old is not None:
                self.moves += 1
                log.warning("redis_moved", server=safe_address(url))
            if old is not None and old.users:
                self._replaced.append(old)
                await old.blocking.close()  # a blocking read on the old server would never get anything
            elif old is not None:
                await old.close()
            return line

    def _trusted(self) -> Line | None:
        stale = asyncio.get_running_loop().time() - self._located_at > self._locator.trust_s
        return None if self._doubted or stale else self._line
