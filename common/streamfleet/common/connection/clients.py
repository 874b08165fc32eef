"""redis-py's clients, set up so that they do nothing by themselves: no retries, no time-outs, no reshaped replies."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streamfleet.common.connection.tls import check_tls_files, tls_options

CONNECT_TIMEOUT_S = 5.0


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
        **tls_options(url),
    )
    # Replies as the server sends them: redis-py's own shapes differ between its releases.
    client.response_callbacks.clear()
    return client


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
    """One command, raw words in and the reply out."""
    reply: Awaitable[Any] = client.execute_command(*words)  # type: ignore[no-untyped-call]
    return reply
