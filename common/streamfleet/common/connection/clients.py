"""redis-py's clients, set up so that they do nothing by themselves: no retries, no time-outs, no reshaped replies."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Hashable, Iterable, Sequence
from typing import Any, cast

import hiredis
import redis.exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streamfleet.common.connection.tls import check_tls_files, tls_options

CONNECT_TIMEOUT_S = 5.0


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


def open_client(url: str, *, dedicated: bool = False) -> Redis:
    """A client of one server; connects at its first command.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        dedicated: all its commands go over one connection.

    Raises:
        ValueError: the URL cannot be read.
    """
    client = Redis.from_url(
        url,
        single_connection_client=dedicated,
        protocol=2,
        decode_responses=False,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        # Our own timeout, in Connection: redis-py's goes through asyncio.wait_for, which on Python 3.11 may
        # swallow a cancellation, and the task that was to end goes on for ever.
        socket_timeout=None,
        socket_keepalive=True,
        # redis-py would retry by itself, and so send an XADD twice without our knowing: it must not.
        retry=Retry(NoBackoff(), 0),
        redis_connect_func=_ask_number if dedicated else None,
        **tls_options(url),
    )
    # Replies as the server sends them: redis-py's own shapes differ between its releases.
    client.response_callbacks.clear()
    pool = client.connection_pool
    kind: Any = pool.connection_class
    pool.connection_class = _improved(kind, dedicated)
    return client


@functools.cache
def _improved(kind: Hashable, numbered: bool) -> Any:
    """A kind of connection (TCP, TLS, Unix socket), packing in C, and numbered when it is to block."""
    ours = (_Numbered, _Packing) if numbered else (_Packing,)
    return type("Connection", (*ours, cast("type", kind)), {})


def blocking_number(client: Redis) -> int | None:
    """The number of a dedicated client's connection, for CLIENT UNBLOCK; None while it is not connected."""
    connection: Any = client.connection
    return connection.number if connection is not None and connection.is_connected else None


def check_options(url: str) -> None:
    """Find out before the first command whether a URL can be used.

    Raises:
        ValueError: the URL cannot be read, or has an option that there is not.
    """
    check_tls_files(url)
    try:
        open_client(url).connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except TypeError as error:
        name = re.search(r"unexpected keyword argument '([a-z_]+)'", str(error))
        # With an @ behind the ?, what looks like an option may be a part of the password.
        shown = repr(name[1]) if name and "@" not in url.partition("?")[2] else "of this name"
        raise ValueError(f"behind the ? stands an option that there is not: no option {shown}") from None


def send(client: Redis, *words: Any) -> Awaitable[Any]:
    """One command, raw words in and the reply out. Raises what the server answers."""
    if client.single_connection_client:
        reply: Awaitable[Any] = client.execute_command(*words)  # type: ignore[no-untyped-call]
        return reply
    return _ask(client, words)


async def _ask(client: Redis, words: Sequence[Any]) -> Any:
    # Past execute_command: what it does besides (retries, telemetry) is not wanted here, and takes as long as Redis.
    pool = client.connection_pool
    connection = await pool.get_connection()  # type: ignore[no-untyped-call]
    try:
        await connection.send_packed_command(connection.pack_command(*words), check_health=False)
        return await connection.read_response()
    finally:
        await pool.release(connection)


async def send_all(client: Redis, commands: Iterable[Sequence[Any]]) -> list[Any]:
    """Several commands in one round trip; replies in their order. Raises the first error of them, once all are read."""
    commands = list(commands)
    pool = client.connection_pool
    connection = await pool.get_connection()  # type: ignore[no-untyped-call]
    replies: list[Any] = []
    try:
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except redis.exceptions.ResponseError as error:
                replies.append(error)
    finally:
        await pool.release(connection)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
