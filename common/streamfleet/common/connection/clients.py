"""Connections made by redis-py, set up so that they do nothing by themselves: no retries, no time-outs, no reshaped
replies.

Its clients and its pool are left out: what they do besides for each command (retries, locks, telemetry) is not wanted
here, and takes as long as Redis.
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

from streamfleet.common.connection.tls import check_tls_files, tls_options

CONNECT_TIMEOUT_S = 5.0
MOST_CONNECTIONS = 32
"""Of one client."""
KEEPALIVE_S = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""The kernel probes after 30 s of silence, not after its usual two hours: NATs and load balancers drop what is idle."""


class _Packing:
    """Packs commands in C. redis-py does so only in its synchronous connection; in Python, the words of a script call
    for 128 requests cost more than all else about it."""

    def pack_command(self, *words: Any) -> list[bytes]:
        try:
            return [hiredis.pack_command(words)]
        except TypeError:  # it knows fewer types
            packed: list[bytes] = super().pack_command(*words)  # type: ignore[misc]
            return packed


class _Numbered:
    """Knows the number under which its server can end a blocking read of it."""

    number: int | None = None


async def _ask_number(connection: Any) -> None:
    """In place of redis-py's own steps after connecting, which it takes first."""
    connection.number = None
    await connection.on_connect()
    await connection.send_command("CLIENT", "ID")
    connection.number = await connection.read_response()


def connection_maker(url: str, *, numbered: bool = False) -> ConnectionPool:
    """redis-py's pool, which knows how to make and to check a connection; it holds none.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        numbered: its connections know their numbers.

    Raises:
        ValueError: the URL cannot be read.
    """
    pool = ConnectionPool.from_url(
        url,
        protocol=2,
        decode_responses=False,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        # Our own timeout, in Connection: redis-py's goes through asyncio.wait_for, which on Python 3.11 may
        # swallow a cancellation, and the task that was to end goes on for ever.
        socket_timeout=None,
        # redis-py would retry by itself, and so send an XADD twice without our knowing: it must not.
        retry=Retry(NoBackoff(), 0),
        redis_connect_func=_ask_number if numbered else None,
        **({} if url.startswith("unix://") else _keepalive()),  # a Unix socket has no such option
        **tls_options(url),
    )
    kind: Any = pool.connection_class
    pool.connection_class = _improved(kind, numbered)
    return pool


def _keepalive() -> dict[str, Any]:
    options = {getattr(socket, name): value for name, value in KEEPALIVE_S.items() if hasattr(socket, name)}
    return {"socket_keepalive": True, "socket_keepalive_options": options}


@functools.cache
def _improved(kind: Hashable, numbered: bool) -> Any:
    """A kind of connection (TCP, TLS, Unix socket), packing in C, and numbered when it is to block."""
    ours = (_Numbered, _Packing) if numbered else (_Packing,)
    return type("Connection", (*ours, cast("type", kind)), {})


def check_options(url: str) -> None:
    """Find out before the first command whether a URL can be used.

    Raises:
        ValueError: the URL cannot be read, or has an option that there is not.
    """
    check_tls_files(url)
    try:
        connection_maker(url).make_connection()  # type: ignore[no-untyped-call]
    except TypeError as error:
        name = re.search(r"unexpected keyword argument '([a-z_]+)'", str(error))
        # With an @ behind the ?, what looks like an option may be a part of the password.
        shown = repr(name[1]) if name and "@" not in url.partition("?")[2] else "of this name"
        raise ValueError(f"behind the ? stands an option that there is not: no option {shown}") from None


class Client:
    """Talks to one server over several connections, each opened when a command finds no other free.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.

    Raises:
        ValueError: the URL cannot be read.
    """

    _most = MOST_CONNECTIONS
    _numbered = False

    def __init__(self, url: str) -> None:
        self._maker: Any = connection_maker(url, numbered=self._numbered)
        self._turns = asyncio.Semaphore(min(self._most, self._maker.max_connections))
        self._idle: list[Any] = []
        self._used: dict[Any, float] = {}  # with the time, by the event loop, at which the answer is due

    async def send(self, *words: Any, blocks_s: float = 0.0) -> Any:
        """One command, raw words in and the reply out. Raises what the server answers.

        It waits while all connections are in use.

        Args:
            words: of the command.
            blocks_s: how long the server may block before it answers.
        """
        (reply,) = await self.send_all([words], blocks_s)
        return reply

    async def send_all(self, commands: Sequence[Sequence[Any]], blocks_s: float = 0.0) -> list[Any]:
        """Several in one round trip; replies in their order. Raises the first error of them, once all are read."""
        async with self._turns:
            connection = self._idle.pop() if self._idle else self._maker.make_connection()
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
        """Close all connections: what waits on one ends with an error. A later command opens another."""
        # None of them is ever used again: a connection that somebody opens while it is being closed is lost track of.
        connections = [*self._idle, *self._used]
        self._idle, self._used = [], {}
        closing = (connection.disconnect() for connection in connections)
        await asyncio.gather(*closing, return_exceptions=True)  # one that takes too long is given up by redis-py

    def overdue(self, since: float) -> list[Any]:
        """Connections in use whose answers were due before this time of the event loop."""
        return [connection for connection, due in self._used.items() if due < since]

    async def drop(self, dead: Sequence[Any] = ()) -> None:
        """Close these connections in use, and all idle ones, without a word to the server: it may not hear any."""
        connections, self._idle = [*self._idle, *dead], []
        for connection in connections:
            self._used.pop(connection, None)
            await connection.disconnect(nowait=True)

    async def _ready(self, connection: Any) -> None:
        """Open it, also where the server has closed it since it was last used."""
        await self._maker.ensure_connection(connection)

    async def _put_back(self, connection: Any) -> None:
        if connection in self._used:
            del self._used[connection]
            self._idle.append(connection)
        else:
            await connection.disconnect(nowait=True)


class BlockingClient(Client):
    """Talks to one server over one connection, one command at a time, which may block.

    Where that connection breaks between two commands, the second fails: the server may be gone, and whoever waits for
    its news has to look at everything anew.
    """

    _most = 1
    _numbered = True

    @property
    def number(self) -> int | None:
        """The connection's number, for CLIENT UNBLOCK; None while it is not open."""
        numbers = (connection.number for connection in (*self._used, *self._idle) if connection.is_connected)
        return next(numbers, None)

    async def _ready(self, connection: Any) -> None:
        await connection.connect()


async def _exchange(connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands and read the reply to each, errors among them.

    Where it is broken off, redis-py closes the connection: nobody gets the replies that were not read.
    """
    packed = [part for words in commands for part in connection.pack_command(*words)]
    await connection.send_packed_command(packed, check_health=False)
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except redis.exceptions.ResponseError as error:
            replies.append(error)
    return replies
