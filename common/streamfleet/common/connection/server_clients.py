"""The clients of the server that holds the queue; they are replaced when the queue moves to another server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from streamfleet.common.connection.clients import BlockingClient, Client
from streamfleet.common.connection.locator import Locator
from streamfleet.common.connection.login import Login
from streamfleet.common.connection.translation import FAILURES, Refused, points_elsewhere
from streamfleet.common.connection.urls import safe_address
from streamfleet.common.errors import BrokerUnavailable
from streamfleet.common.logs import Logger

log = Logger(__name__)
T = TypeVar("T")
GRACE_S = 1.0
"""Seconds after a new connection's answer in which a server that was only busy answers all others."""


class ServerClients:
    """The two clients of one server.

    Attributes:
        commands: for commands that answer at once; several connections.
        blocking: for blocking commands; one connection.
        users: number of operations in progress.
    """

    def __init__(self, url: str, login: Login | None = None) -> None:
        self.url, self._login = url, login
        self.commands = Client(url, login)
        self.blocking = BlockingClient(url, login)
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
        fresh = Client(self.url, self._login)
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


class CurrentServer:
    """Runs operations with the clients of the current server.

    Replaced clients are closed after their last operation: closed earlier, their operations would get errors that are
    not the server's.

    Attributes:
        moves: number of changes to another server.
    """

    def __init__(self, locator: Locator, login: Login) -> None:
        self.moves = 0
        self._locator, self._login = locator, login
        self._clients: ServerClients | None = None
        self._must_locate = True
        self._located_at = 0.0
        self._replaced: list[ServerClients] = []
        self._locating = asyncio.Lock()
        self._checking: asyncio.Task[None] | None = None

    async def use(self, work: Callable[[ServerClients], Awaitable[T]]) -> T:
        """Run an operation; after an error that may mean a moved server, the next operation locates it again."""
        clients = await self._current()
        clients.users += 1
        try:
            return await work(clients)
        except Exception as error:
            if clients is self._clients and points_elsewhere(error):
                self._must_locate = True
            raise
        except asyncio.CancelledError:  # perhaps by a time-out, because the server is gone
            self._must_locate = True
            raise
        finally:
            clients.users -= 1
            if clients.users == 0 and clients in self._replaced:
                self._replaced.remove(clients)
                await clients.close()

    def check(self) -> None:
        """Check in the background for dead connections, because an answer is overdue."""
        if self._clients is not None and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._check(self._clients))

    async def _check(self, clients: ServerClients) -> None:
        with contextlib.suppress(*FAILURES):
            await clients.drop_silent()

    async def drop(self) -> None:
        """Drop the server's other connections after an answer timed out, because they may be dead too."""
        if self._checking is not None:
            self._checking.cancel()
        if self._clients is not None:
            await self._clients.drop()

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
        every, self._replaced, self._clients = [*self._replaced, self._clients], [], None
        for clients in every:
            if clients is not None:
                await clients.close()

    async def _current(self) -> ServerClients:
        if (clients := self._trusted()) is not None:
            return clients
        async with self._locating:
            if (clients := self._trusted()) is not None:
                return clients
            try:
                url = await self._locator.locate()
            except (BrokerUnavailable, Refused):
                if self._must_locate or self._clients is None:
                    raise
                url = self._clients.url  # the locator has no answer, but the current server does
            self._must_locate, self._located_at = False, asyncio.get_running_loop().time()
            if self._clients is not None and self._clients.url == url:
                return self._clients
            old, self._clients = self._clients, (clients := ServerClients(url, self._login))
            if old is not None:
                self.moves += 1
                log.warning("redis_moved", server=safe_address(url))
            if old is not None and old.users:
                self._replaced.append(old)
                await old.blocking.close()  # a blocking read on the old server would never get anything
            elif old is not None:
                await old.close()
            return clients

    def _trusted(self) -> ServerClients | None:
        stale = asyncio.get_running_loop().time() - self._located_at > self._locator.trust_s
        return None if self._must_locate or stale else self._clients
