"""Connections made by redis-py, without its own retries, time-outs and reply conversions.

redis-py's clients and pool are not used: their extra work for each command (retries, locks, telemetry) is not wanted
here, and takes as long as Redis itself.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
from collections.abc import Hashable, Sequence
from typing import Any, cast

import hiredis
import redis.exceptions
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streamfleet.common.connection import options
from streamfleet.common.connection.login import Login
from streamfleet.common.connection.options import tls_options
from streamfleet.common.connection.urls import RedisUrl

CONNECT_TIMEOUT_S = 5.0
MOST_CONNECTIONS = 32
"""Largest number of connections of one client."""
KEEPALIVE_S = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Probes start after 30 s of silence, not after two hours as usual: NATs and load balancers drop idle connections."""


class _Packing:
    """Packs commands in C. redis-py does so only in its synchronous connection; packing a script call for 128 requests
    in Python costs more than the rest of the call."""

    def pack_command(self, *words: Any) -> list[bytes]:
        try:
            return [hiredis.pack_command(words)]
        except TypeError:  # hiredis knows fewer types
            packed: list[bytes] = super().pack_command(*words)  # type: ignore[misc]
            return packed


class _LoggingIn:
    """Connection with a user and password that may change."""

    login: Login | None = None

    async def connect(self) -> None:
        connect: Any = super().connect  # type: ignore[misc]
        if self.login is None or self.is_connected:  # type: ignore[attr-defined]
            await connect()
        else:
            await self.login.enter(self, connect)


class _Numbered:
    """Connection that knows its client id, with which CLIENT UNBLOCK can end its blocking read."""

    number: int | None = None


async def _ask_number(connection: Any) -> None:
    """Run redis-py's own steps after connecting, then ask for the client id."""
    connection.number = None
    await connection.on_connect()
    await connection.send_command("CLIENT", "ID")
    connection.number = await connection.read_response()


def connection_maker(url: str, *, numbered: bool = False) -> ConnectionPool:
    """redis-py's pool, used only to create and check connections; it holds none.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        numbered: the connections know their client ids.

    Raises:
        ValueError: the URL cannot be read.
    """
    pool = ConnectionPool.from_url(
        url,
        protocol=2,
        decode_responses=False,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        # Connection has its own timeout: redis-py's uses asyncio.wait_for, which on Python 3.11 may swallow a
        # cancellation, so that the cancelled task runs for ever.
        socket_timeout=None,
        # redis-py must not retry by itself: it could send an XADD twice unnoticed.
        retry=Retry(NoBackoff(), 0),
        redis_connect_func=_ask_number if numbered else None,
        **({} if url.startswith("unix://") else _keepalive()),  # a Unix socket has no such option
        **tls_options(url),
    )
    kind: Any = pool.connection_class
    pool.connection_class = _improved(kind, numbered)
    return pool


def _keepalive() -> dict[str, Any]:
    probes = {getattr(socket, name): value for name, value in KEEPALIVE_S.items() if hasattr(socket, name)}
    return {"socket_keepalive": True, "socket_keepalive_options": probes}


@functools.cache
def _improved(kind: Hashable, numbered: bool) -> Any:
    """A connection class (TCP, TLS, Unix socket) that logs in and packs in C, and is numbered if it blocks."""
    ours = (_Numbered, _LoggingIn, _Packing) if numbered else (_LoggingIn, _Packing)
    return type("Connection", (*ours, cast("type", kind)), {})


def check_options(url: RedisUrl) -> None:
    """Check before the first command that a URL can be used.

    Raises:
        ValueError: the URL cannot be read, or has an option that does not work.
    """
    options.check(url)
    text = url.server_url(*url.hosts[0]) if url.hosts else url.server_url()
    try:
        connection_maker(text).make_connection()  # type: ignore[no-untyped-call]
    except TypeError as error:
        name = re.search(r"unexpected keyword argument '([a-z_]+)'", str(error))
        # With an @ after the ?, the apparent option may be part of the password.
        shown = repr(name[1]) if name and "@" not in text.partition("?")[2] else "of this name"
        raise ValueError(
            f"behind the ? stands an option that this release of redis-py lacks: no option {shown}"
        ) from None


class Client:
    """Client of one server with several connections; a new one is opened when a command finds none free.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        login: its user and password hold in place of the URL's.

    Raises:
        ValueError: the URL cannot be read.
    """

    _most = MOST_CONNECTIONS
    _numbered = False

    def __init__(self, url: str, login: Login | None = None) -> None:
        self._maker: Any = connection_maker(url, numbered=self._numbered)
        self._login = login
        self._turns = asyncio.Semaphore(min(self._most, self._maker.max_connections))
        self._idle: list[Any] = []
        self._used: dict[Any, float] = {}  # value: event-loop time at which the answer is due

    async def send(self, *words: Any, blocks_s: float = 0.0) -> Any:
        """Send one command as raw words, and return the reply. Raises the server's error.

        Waits while all connections are in use.

        Args:
            words: words of the command.
            blocks_s: longest time that the server may block before it answers, in seconds.
        """
        (reply,) = await self.send_all([words], blocks_s)
        return reply

    async def send_all(self, commands: Sequence[Sequence[Any]], blocks_s: float = 0.0) -> list[Any]:
        """Send several commands in one round trip; replies in their order. Raises the first error after reading all."""
        async with self._turns:
            connection = self._idle.pop() if self._idle else self._maker.make_connection()
            connection.login = self._login
            self._used[connection] = asyncio.get_running_loop().time() + blocks_s
            try:
                await self._ready(connection)
                if connection not in self._used:
                    raise redis.exceptions.ConnectionError("closed while it was being opened")
                replies = await _exchange(connection, commands)
            finally:
                await self._put_back(connection)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def close(self) -> None:
        """Close all connections; operations in progress end with an error. A later command opens a new connection."""
        # Closed connections are never reused: one that is reopened while it is being closed would leak.
        connections = [*self._idle, *self._used]
        self._idle, self._used = [], {}
        closing = (connection.disconnect() for connection in connections)
        await asyncio.gather(*closing, return_exceptions=True)  # redis-py gives up a slow one

    def overdue(self, since: float) -> list[Any]:
        """Connections in use whose answers were due before this event-loop time."""
        return [connection for connection, due in self._used.items() if due < since]

    async def drop(self, dead: Sequence[Any] = ()) -> None:
        """Close these connections in use, and all idle ones, without a message to the server, which may be gone."""
        connections, self._idle = [*self._idle, *dead], []
        for connection in connections:
            self._used.pop(connection, None)
            await connection.disconnect(nowait=True)

    async def _ready(self, connection: Any) -> None:
        """Open the connection, also if the server has closed it since its last use."""
        await self._maker.ensure_connection(connection)

    async def _put_back(self, connection: Any) -> None:
        if self._used.pop(connection, None) is not None and connection.is_connected:
            self._idle.append(connection)
        else:  # also one whose login was refused: the open ones are taken first
            await connection.disconnect(nowait=True)


class BlockingClient(Client):
    """Client of one server with one connection, for one command at a time, which may block.

    If the connection breaks between two commands, the second fails instead of reconnecting: messages may have been
        lost,
    so the caller must check its state again.
    """

    _most = 1
    _numbered = True

    @property
    def number(self) -> int | None:
        """The connection's client id, for CLIENT UNBLOCK; None while it is not open."""
        numbers = (connection.number for connection in (*self._used, *self._idle) if connection.is_connected)
        return next(numbers, None)

    async def _ready(self, connection: Any) -> None:
        await connection.connect()


async def _exchange(connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands and read the reply to each; errors are returned among the replies.

    If this is cancelled, redis-py closes the connection, so no later command gets the unread replies.
    """
    packed = [part for words in commands for part in connection.pack_command(*words)]
    await connection.send_packed_command(packed, check_health=False)
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except redis.exceptions.ResponseError as error:
            if "unauthenticated" in str(error):  # of a large command, in place of NOAUTH: "Protocol error: …"
                raise redis.exceptions.AuthenticationError(str(error)) from None
            replies.append(error)
    return replies
