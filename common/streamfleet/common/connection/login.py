"""Logs each new connection in: with what the file of the URL, or a provider, says at that moment.

Managed services and rotated secrets change passwords while a fleet runs. Before each connection is opened, a `Login`
reads user and password anew, and has redis-py read the files of certificates again; open connections stay. While a
server does not take them yet, those that any server took last still count. After a refusal it pauses, so that a
password that is wrong for long does not flood the server. Another password ends the pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import redis.exceptions
from redis.asyncio.connection import parse_url
from redis.credentials import CredentialProvider

from streamfleet.common.connection.urls import read_url

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""Pauses after refused logins. The longest is short beside a lease, or leases would lapse with the right password."""
ASK_S = 10.0
"""Longest wait for a provider. A call to a cloud that hangs is then given up, and the next try asks anew."""
MOST_HUNG = 8
"""Calls that still hang; beside so many, the provider is not asked again."""
MOST_ACCEPTED = 2
"""Logins that are remembered: servers of one deployment change their passwords one by one."""
# Managed services and proxies word refusals in their own ways; redis-py takes these for errors of a command.
_OTHER_REFUSALS = ("invalid username-password pair", "AUTH failed")
_PROVIDER = "the provider of STREAMFLEET_REDIS_CREDENTIALS"
Words = tuple[str | None, str | None]
"""User and password."""


class ProviderFailed(redis.exceptions.AuthenticationError):
    """The provider gives no credentials."""


@dataclass(frozen=True)
class _Refusal:
    error: redis.exceptions.AuthenticationError
    words: Words
    pause_s: float
    over_at: float


class Login:
    """User, password and certificates of the connections to one deployment.

    Args:
        read: returns the URL as it is now.
        renewable: what `read` returns may change.
        provider: asked for user and password while the URL has no password.
        sentinels: use the user and password for Sentinels.

    Attributes:
        renewable: a login that is refused now may be accepted later.
    """

    def __init__(
        self,
        read: Callable[[], str],
        provider: CredentialProvider | None = None,
        *,
        renewable: bool,
        sentinels: bool = False,
    ) -> None:
        self._read, self._sentinels = read, sentinels
        self._provider = None if provider is None else _Provider(provider)
        self.renewable = renewable or provider is not None
        self._words: Words = None, None
        self._accepted: tuple[Words, ...] = ()  # the latest first
        self._refusals: dict[str, _Refusal] = {}

    @property
    def accepted(self) -> bool:
        """True if a login was accepted before."""
        return bool(self._accepted)

    @property
    def asks(self) -> bool:
        """True while the provider owes an answer: who waits for that learns nothing of the server."""
        return self._provider is not None and self._provider.asks

    @functools.cached_property
    def at_sentinels(self) -> Login:
        """The login at the Sentinels that the same URL names."""
        return Login(self._read, renewable=self.renewable, sentinels=True)

    async def enter(self, connection: Any, connect: Callable[[], Awaitable[None]]) -> None:
        """Open a connection of redis-py.

        Raises:
            redis.exceptions.AuthenticationError: the server refuses the login, or refused the same a moment ago.
        """
        where, words = f"{connection.host}:{connection.port}" if hasattr(connection, "host") else "", self._current()
        last = self._refusals.get(where)
        if last is not None and last.words != words:
            last = None
        if last is not None and time.monotonic() < last.over_at:
            raise type(last.error)(*last.error.args)
        # The file may be ahead of the server, and other servers too: what was accepted last are further choices.
        refusal = await self._try(words, connection, connect)
        for other in self._accepted:
            if refusal is not None and other != words:
                refusal = await self._try(other, connection, connect) and refusal
        if refusal is None:
            self._refusals.pop(where, None)
            return
        pause_s = FIRST_PAUSE_S if last is None else min(2 * last.pause_s, LONGEST_PAUSE_S)
        over_at = time.monotonic() + pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - a fleet must not come at once
        self._refusals[where] = _Refusal(refusal, words, pause_s, over_at)
        raise refusal

    async def _try(
        self, words: Words, connection: Any, connect: Callable[[], Awaitable[None]]
    ) -> redis.exceptions.AuthenticationError | None:
        """Open a connection with this login, or with the provider's. Returns the refusal; None if it is open."""
        try:
            ask = self._provider if words[1] is None else None
            connection.username, connection.password = words if ask is None else await ask.words()
            if hasattr(connection, "ssl_context"):
                connection.ssl_context.context = None  # it has the certificates of the time when it was made
            await connect()
        except redis.exceptions.RedisError as error:
            if (refusal := _refusal(error)) is None:
                raise
            return refusal
        self._accepted = (words, *(each for each in self._accepted if each != words))[:MOST_ACCEPTED]
        return None

    def _current(self) -> Words:
        with contextlib.suppress(ValueError):  # the file is being written: the last that could be read counts
            url = read_url(self._read())
            host = url.hosts[0] if url.hosts else ("", 0)
            found = parse_url(url.sentinel_url(*host) if self._sentinels else url.server_url(*host))
            self._words = found.get("username"), found.get("password")
        return self._words


class _Provider:
    """Asks a `CredentialProvider`, each time in a thread: its call to a cloud may hang.

    The threads are daemons, so neither the event loop nor the end of the process waits for them.
    """

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider
        self._question: tuple[Future[Words | ProviderFailed], float] | None = None  # and when it is given up
        self._threads: list[threading.Thread] = []

    @property
    def asks(self) -> bool:
        """True while a question is open."""
        return (question := self._question) is not None and not question[0].done()

    async def words(self) -> Words:
        """User and password. A question outlives a try whose time is up before; the next try gets the answer."""
        asked = self._question = self._question or self._ask()
        answer, given_up_at = asked
        await asyncio.wait([asyncio.wrap_future(answer)], timeout=given_up_at - time.monotonic())
        if self._question is asked:
            self._question = None
        words = answer.result() if answer.done() else ProviderFailed(f"{_PROVIDER} gave no answer for {ASK_S:g} s")
        if isinstance(words, ProviderFailed):
            raise words
        return words

    def _ask(self) -> tuple[Future[Words | ProviderFailed], float]:
        answer: Future[Words | ProviderFailed] = Future()

        def ask() -> None:
            try:
                *user, password = self._provider.get_credentials()
                answer.set_result((user[0] if user else None, password))
            except Exception as error:  # noqa: BLE001 - raised by `words`
                answer.set_result(ProviderFailed(f"{_PROVIDER} fails: {type(error).__name__}: {error}"))

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < MOST_HUNG:
            thread = threading.Thread(target=ask, name="credentials", daemon=True)
            self._threads.append(thread)  # the loop of another thread may do the same now
            thread.start()
        return answer, time.monotonic() + ASK_S


def _refusal(error: redis.exceptions.RedisError) -> redis.exceptions.AuthenticationError | None:
    """The error of a refused login; None for any other."""
    if isinstance(error, redis.exceptions.AuthenticationError):
        return error
    text = str(error)
    return redis.exceptions.AuthenticationError(text) if any(said in text for said in _OTHER_REFUSALS) else None
