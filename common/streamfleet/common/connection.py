"""One connection to Redis: scripts by their hash, errors in our own words, reconnecting within a set patience."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import redis.exceptions
import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    stop_never,
    wait_random_exponential,
)

from streamfleet.common import scripts
from streamfleet.common.errors import (
    BrokerOutOfMemory,
    BrokerUnavailable,
    NotPermitted,
    SettingsError,
    StreamfleetError,
)

log = structlog.get_logger(__name__)
T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 15.0
BLOCK_MARGIN_S = 5.0
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]*)(?::([0-9]+))?(/[0-9]*)?")
# Refusals that pass without anybody asking otherwise: to die of them would be worse than to wait.
_PASSING = ("MISCONF ", "NOREPLICAS ", "BUSY Redis", "UNBLOCKED force")
# Said by the server itself, and of a command inside a script by Redis 6.2, 7 and 8 each in other words.
_FORBIDDEN = ("NOPERM", "ACL failure in script", "The user executing the script can't")
_PASSING_KINDS = (redis.exceptions.ClusterDownError, redis.exceptions.TryAgainError)
_LOST = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError, asyncio.TimeoutError)


class MissingGroup(StreamfleetError):
    """The consumer group, or its stream, is gone; it must be made again."""


def safe_address(url: str) -> str:
    """The URL's address without user and password, for messages; never raises, whatever stands in the URL."""
    scheme, found, rest = url.partition("://")
    address = rest.partition("?")[0]
    # What a password holds unescaped is not always what a URL parser takes for it: go by the last @.
    if "@" in address or (scheme != "unix" and not _ADDRESS.fullmatch(address)):
        address = rest.rpartition("@")[2].partition("?")[0]
    if scheme == "unix":
        return address
    match = _ADDRESS.fullmatch(address)
    if not found or match is None:
        return "(not an address)"
    host, port, path = match.groups()
    return f"{scheme}://{host or 'localhost'}:{port or 6379}{path or ''}"


def _why_unusable(error: Exception) -> str:
    if str(error).startswith("Port"):  # the rest of that message may be a part of the password
        return "the port is not a number; in a user name or password write / ? # @ : as %2F %3F %23 %40 %3A"
    return str(error)


class Connection:
    """A connection to one Redis, for commands that answer at once, and a second for those that block.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` URL.
        patience_s: how long an operation goes on trying while Redis is away; None for ever.

    Raises:
        SettingsError: the URL cannot be read.
    """

    def __init__(self, url: str, patience_s: float | None = 5.0) -> None:
        self.address = safe_address(url)
        self._patience_s = patience_s
        self._hashes: dict[str, str] = {}
        try:
            # redis-py would retry by itself, and so send an XADD twice without our knowing: it must not.
            self._client = self._open(url)
            self._blocking = self._open(url, single_connection_client=True)
            self._blocking_id: int | None = None
        except (ValueError, redis.exceptions.RedisError) as error:
            raise SettingsError(f"REDIS_URL {self.address}: {_why_unusable(error)}") from None

    @staticmethod
    def _open(url: str, single_connection_client: bool = False) -> Redis:
        client = Redis.from_url(
            url,
            single_connection_client=single_connection_client,
            protocol=2,
            decode_responses=False,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            # Our own timeout, in _translated: redis-py's goes through asyncio.wait_for, which on Python 3.11 may
            # swallow a cancellation, and the task that was to end goes on for ever.
            socket_timeout=None,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        # Replies as the server sends them: redis-py's own shapes differ between its releases.
        client.response_callbacks.clear()
        return client

    async def ping(self) -> None:
        """One try, whatever the patience.

        Raises:
            BrokerUnavailable: nobody answers at the address.
        """
        await self._translated(lambda: _send(self._client, "PING"))

    async def command(self, *words: Any) -> Any:
        """One command, raw words in and the reply out.

        Raises:
            BrokerUnavailable: Redis stayed away for the whole patience.
            BrokerOutOfMemory: Redis is at its memory limit.
        """
        return await self._patiently(lambda: _send(self._client, *words))

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Several commands in one round trip; replies in the same order. Raises like `command`."""

        async def send() -> list[Any]:
            async with self._client.pipeline(transaction=False) as pipe:
                for words in commands:
                    pipe.execute_command(*words)
                return list(await pipe.execute())

        return await self._patiently(send)

    async def block(self, timeout_s: float, *words: Any) -> Any:
        """A command that blocks for up to `timeout_s` on the server; one try.

        Raises:
            BrokerUnavailable: the connection broke.
        """

        async def wait() -> Any:
            self._blocking_id = await _send(self._blocking, "CLIENT", "ID")
            return await _send(self._blocking, *words)

        try:
            return await self._translated(wait, timeout_s + BLOCK_MARGIN_S)
        finally:
            self._blocking_id = None

    async def unblock(self) -> None:
        """End a `block` under way as if its time were up; what it was just being given still arrives."""
        if self._blocking_id is not None:
            await self._translated(lambda: _send(self._client, "CLIENT", "UNBLOCK", self._blocking_id))

    async def script(self, verb: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a verb's script. Raises like `command`, and MissingGroup."""
        return await self._patiently(lambda: self._evaluate(verb, keys, args))

    async def script_once(self, verb: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script that must not be sent twice unawares: one try."""
        return await self._translated(lambda: self._evaluate(verb, keys, args))

    async def close(self) -> None:
        await self._client.aclose()
        await self._blocking.aclose()

    async def _evaluate(self, verb: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if verb not in self._hashes:
            self._hashes[verb] = scripts.sha(verb)
        try:
            return await _send(self._client, "EVALSHA", self._hashes[verb], len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            return await _send(self._client, "EVAL", scripts.source(verb), len(keys), *keys, *args)

    async def _patiently(self, operation: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._translated(operation)
        except BrokerUnavailable:
            if self._patience_s == 0:
                raise
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(BrokerUnavailable),
            stop=stop_never if self._patience_s is None else stop_after_delay(self._patience_s),
            wait=wait_random_exponential(multiplier=0.05, max=2.0),
            before_sleep=self._say_waiting,
            reraise=True,
        )
        return await retrying(self._translated, operation)

    async def _translated(self, operation: Callable[[], Awaitable[T]], timeout_s: float | None = ANSWER_TIMEOUT_S) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await operation()
        except redis.exceptions.AuthenticationError as error:
            raise SettingsError(f"Redis at {self.address} refuses the user or password: {error}") from None
        except redis.exceptions.BusyLoadingError:
            raise BrokerUnavailable(f"Redis at {self.address} is still loading its data") from None
        except _LOST as error:
            raise BrokerUnavailable(f"no answer from Redis at {self.address}: {_reason(error)}") from None
        except redis.exceptions.ResponseError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: redis.exceptions.ResponseError) -> Exception:
        text = str(error)
        if "NOGROUP" in text or "No such key" in text or "UNBLOCKED the stream key" in text:
            return MissingGroup(text)
        if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM" in text or "used memory > 'maxmemory'" in text:
            return BrokerOutOfMemory(
                f"Redis at {self.address} is at its memory limit and refuses new requests; raise maxmemory"
            )
        if isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY" in text or "MASTERDOWN" in text:
            return BrokerUnavailable(f"Redis at {self.address} is a replica: {text}")
        if isinstance(error, redis.exceptions.NoPermissionError) or any(code in text for code in _FORBIDDEN):
            return NotPermitted(f"the user of REDIS_URL {self.address} lacks a permission: {text}")
        if isinstance(error, _PASSING_KINDS) or any(code in text for code in _PASSING):
            return BrokerUnavailable(f"Redis at {self.address} refuses for now: {text}")
        return error

    def _say_waiting(self, state: RetryCallState) -> None:
        if state.attempt_number in (1, 5) or state.attempt_number % 30 == 0:
            log.warning("waiting_for_redis", address=self.address, tries=state.attempt_number)


def _send(client: Redis, *words: Any) -> Awaitable[Any]:
    reply: Awaitable[Any] = client.execute_command(*words)  # type: ignore[no-untyped-call]
    return reply


def _reason(error: BaseException) -> str:
    if isinstance(error, (asyncio.TimeoutError, redis.exceptions.TimeoutError)) and not str(error):
        return "timed out"
    return str(error) or type(error).__name__
