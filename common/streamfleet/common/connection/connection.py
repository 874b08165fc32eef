"""One connection to Redis: runs scripts, translates errors, reconnects within a given patience."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import redis.exceptions
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    stop_before_delay,
    stop_never,
    wait_random_exponential,
)
from tenacity.stop import StopBaseT

from streamfleet.common import scripts
from streamfleet.common.connection.clients import check_options
from streamfleet.common.connection.locator import FixedServer, Locator, SentinelMaster, SlotOwner
from streamfleet.common.connection.login import Login
from streamfleet.common.connection.server_clients import CurrentServer, ServerClients
from streamfleet.common.connection.translation import Distrusted, Refused, another_type, translated
from streamfleet.common.connection.urls import Kind, RedisUrl, read_url, safe_address, why_unusable
from streamfleet.common.errors import BrokerUnavailable, ClientClosed, SettingsError, StreamfleetError, WrongEventLoop
from streamfleet.common.logs import Logger
from streamfleet.common.secret_files import FileSecret

if TYPE_CHECKING:
    from streamfleet.common.settings_queue import QueueSettings

log = Logger(__name__)
T = TypeVar("T")
_LOGINS: WeakValueDictionary[tuple[int, int], Login] = WeakValueDictionary()
ANSWER_TIMEOUT_S = 15.0
BLOCK_MARGIN_S = 5.0
CHECK_AFTER_S = 3.0
"""Delay of an answer after which its connection is checked, in seconds."""
LAST_TIMEOUT_S = 2.0
LEAST_TRY_S = 1.0
"""Least time of the second try, in seconds: over a new connection, it succeeds if only the first was dead."""


class Connection:
    """A connection to one Redis for commands that answer at once, and a second one for blocking commands.

    It belongs to the process that created it, and to the event loop that used it first. After it is shut, and in a
    forked process, every method that sends a command raises ClientClosed; in another event loop, WrongEventLoop.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, or one for Sentinels or a cluster:
            ``redis+sentinel://host:26379,host:26379/service/0``, ``redis+cluster://host:6379,host:6379``.
        patience_s: time for which an operation is retried while Redis cannot be reached; None for ever.
        answer_timeout_s: longest wait of one try for its answer, in seconds. If that is shorter than the patience, all
            tries together take about as long as the patience: the second one has a second in any case, and time in
            which this process was held up is added.
        login: its user and password hold in place of the URL's.

    Attributes:
        answer_timeout_s: as given; it may be changed.
        refusal: why the last operation was refused a login that was accepted before; empty if it was not.

    Raises:
        SettingsError: the URL cannot be read.
    """

    def __init__(
        self,
        url: str,
        patience_s: float | None = 5.0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        login: Login | None = None,
    ) -> None:
        self.address, self.answer_timeout_s = safe_address(url), answer_timeout_s
        self._patience_s = patience_s
        self._bounded = patience_s is not None and answer_timeout_s < patience_s
        self._hashes: dict[str, str] = {}
        self._blocked: ServerClients | None = None
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shut = False
        self._limits: set[asyncio.Timeout] = set()
        try:
            read = read_url(url)
            check_options(read)
        except (ValueError, redis.exceptions.RedisError) as error:
            raise SettingsError(f"REDIS_URL {self.address}: {why_unusable(error)}") from None
        self._clustered = read.kind is Kind.CLUSTER
        self.refusal = ""
        self._login = login or Login(lambda: url, renewable=False)
        self._locator = _locator(read, self.address, self._login)
        self._server = CurrentServer(self._locator, self._login)

    @classmethod
    def open(
        cls, settings: QueueSettings, patience_s: float | None = 5.0, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Connection:
        """Returns a connection to the settings' Redis, with their file's or provider's credentials of each moment.

        Hosts and options are those that the file named at the start: all connections of a process use one deployment.
        They also share a login, because one that is opened while a password changes needs what was accepted before.
        """
        url, provider = settings.redis_url, settings.redis_credentials
        key = id(url), id(provider)  # both live as long as the login
        if (login := _LOGINS.get(key)) is None:
            login = Login(url.get_secret_value, provider, renewable=isinstance(url, FileSecret))
            _LOGINS[key] = login
        at_start = url.at_start if isinstance(url, FileSecret) else url.get_secret_value()
        return cls(at_start, patience_s, answer_timeout_s, login)

    @property
    def moves(self) -> int:
        """Number of times that the connection moved to another server."""
        return self._server.moves

    def home(self, key: str) -> None:
        """Set the key that locates the queue: in a cluster, all operations go to the node that holds it."""
        self._locator.home(key)

    async def ping(self) -> None:
        """Send PING: once, without retries, unless all tries together have a limit.

        Raises:
            BrokerUnavailable: no server answers at the address.
        """
        work = self._patiently if self._bounded else self._once
        await work(lambda clients: clients.commands.send("PING"))

    async def each_node(self) -> AsyncIterator[Connection]:
        """This connection; in a cluster one to each master in turn, which is closed after its turn."""
        if not isinstance(self._locator, SlotOwner):
            yield self
            return
        await self.ping()
        for url in self._locator.masters:
            node = Connection(url, self._patience_s, self.answer_timeout_s, self._login)
            try:
                yield node
            finally:
                await node.close()

    async def command(self, *words: Any) -> Any:
        """Send one command as raw words, and return the reply.

        Raises:
            BrokerUnavailable: Redis could not be reached for the whole patience.
            BrokerOutOfMemory: Redis is at its memory limit.
        """
        return await self._patiently(lambda clients: clients.commands.send(*words))

    async def command_once(self, *words: Any) -> Any:
        """Send one command without retries. Raises like `command`."""
        return await self._once(lambda clients: clients.commands.send(*words))

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send several commands in one round trip; replies in the same order. Raises like `command`."""
        return await self._patiently(lambda clients: clients.commands.send_all(commands))

    async def block(self, timeout_s: float, *words: Any) -> Any:
        """Send a command that blocks for up to `timeout_s` on the server; without retries.

        Raises:
            BrokerUnavailable: the connection broke.
        """

        async def wait(clients: ServerClients) -> Any:
            self._blocked = clients
            return await clients.blocking.send(*words, blocks_s=timeout_s)

        try:
            return await self._once(wait, timeout_s, BLOCK_MARGIN_S)
        except redis.exceptions.ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise another_type(self.address) from error
            raise
        finally:
            self._blocked = None

    async def unblock(self) -> None:
        """End a `block` in progress as if its time were up; a reply that is already on its way still arrives."""
        clients = self._blocked
        if clients is not None and (number := clients.blocking.number) is not None:
            # Sent to the same server: client ids are valid only there.
            await self._once(lambda _: clients.commands.send("CLIENT", "UNBLOCK", number))

    async def script(self, verb: str, keys: Sequence[str | bytes], args: Sequence[Any]) -> Any:
        """Run a verb's script. Raises like `command`, and MissingGroup."""
        return await self._patiently(lambda clients: self._evaluate(clients, verb, keys, args))

    async def script_once(self, verb: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script that must not be repeated automatically; without retries."""
        return await self._once(lambda clients: self._evaluate(clients, verb, keys, args))

    async def script_replicated(
        self, verb: str, keys: Sequence[str], args: Sequence[Any], replicas: int, timeout_ms: int
    ) -> tuple[Any, int]:
        """Run a script, then wait until `replicas` replicas have its writes, `timeout_ms` at most.

        Returns:
            The script's reply, and the number of replicas that have its writes. A script without writes does not wait.
        """
        wait, wait_s = ("WAIT", replicas, timeout_ms), timeout_ms / 1000

        async def work(clients: ServerClients) -> list[Any]:
            # One connection for both, because WAIT covers only its own connection's writes.
            try:
                return await clients.commands.send_all([self._by_hash(verb, keys, args), wait], wait_s)
            except redis.exceptions.NoScriptError:
                return await clients.commands.send_all([_by_text(verb, keys, args), wait], wait_s)

        reply, acknowledged = await self._patiently(work, wait_s)
        return reply, int(acknowledged)

    @property
    def inherited(self) -> bool:
        """True in a process that was forked from the connection's own."""
        return os.getpid() != self._process

    @property
    def abandoned(self) -> bool:
        """True if the connection can be neither used nor closed any more, because its event loop has ended."""
        return self._loop is not None and self._loop.is_closed()

    def check(self) -> None:
        """Raise an error if the connection cannot be used here.

        Raises:
            ClientClosed: it was shut, or belongs to another process.
            WrongEventLoop: it belongs to another event loop.
        """
        if self._shut:
            raise ClientClosed("the client was closed")
        if self.inherited:
            raise ClientClosed(
                f"this client was opened by process {self._process}: open one of its own in this process, {os.getpid()}"
            )
        self.check_loop()

    def check_loop(self) -> None:
        """Raise WrongEventLoop if the connection belongs to another event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise WrongEventLoop(
                "this client was opened in another event loop, by an earlier asyncio.run or in another thread: write "
                "`async with Client(...)` inside of each, or use a SyncClient, which works everywhere"
            )

    async def rest(self, seconds: float) -> None:
        """Sleep between two tries. Raises ClientClosed as soon as the connection is shut."""
        await self._unless_shut(lambda: asyncio.sleep(seconds), None)

    def shut(self) -> None:
        """End all operations in progress, and refuse later ones, with ClientClosed."""
        self._shut = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0.0)

    async def last(self, *words: Any) -> None:
        """Send a command even after the connection was shut: one try of up to 2 s; errors are ignored."""
        with contextlib.suppress(StreamfleetError, redis.exceptions.RedisError, OSError):
            async with asyncio.timeout(LAST_TIMEOUT_S):
                await self._server.use(lambda clients: clients.commands.send(*words))

    async def close(self) -> None:
        """Shut the connection, and close all sockets."""
        self.shut()
        await self._server.close()

    def _by_hash(self, verb: str, keys: Sequence[str | bytes], args: Sequence[Any]) -> tuple[Any, ...]:
        if verb not in self._hashes:
            self._hashes[verb] = scripts.sha(verb)
        return ("EVALSHA", self._hashes[verb], len(keys), *keys, *args)

    async def _evaluate(
        self, clients: ServerClients, verb: str, keys: Sequence[str | bytes], args: Sequence[Any]
    ) -> Any:
        try:
            return await clients.commands.send(*self._by_hash(verb, keys, args))
        except redis.exceptions.NoScriptError:
            return await clients.commands.send(*_by_text(verb, keys, args))

    async def _patiently(self, work: Callable[[ServerClients], Awaitable[T]], blocks_s: float = 0.0) -> T:
        now = asyncio.get_running_loop().time
        began_s = now()
        end_s = began_s + blocks_s + self._patience_s if self._patience_s and self._bounded else None
        try:
            return await self._once(work, blocks_s)
        except BrokerUnavailable:
            if self._patience_s == 0:
                raise
            if end_s is not None:  # time in which this process was held up says nothing of Redis
                end_s += max(0.0, now() - began_s - blocks_s - self.answer_timeout_s)
        stop: StopBaseT = stop_never
        if end_s is not None:
            stop = stop_before_delay(end_s - now())
        elif self._patience_s is not None:
            stop = stop_after_delay(self._patience_s)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(BrokerUnavailable),
            stop=stop,
            wait=wait_random_exponential(multiplier=0.05, max=2.0),
            sleep=self.rest,
            before_sleep=self._say_waiting,
            reraise=True,
        )

        async def again() -> T:
            left_s = None if end_s is None else max(LEAST_TRY_S, end_s - now())
            return await self._once(work, blocks_s, left_s)

        return await retrying(again)

    async def _once(
        self, work: Callable[[ServerClients], Awaitable[T]], blocks_s: float = 0.0, margin_s: float | None = None
    ) -> T:
        """Run one try. The server may block for `blocks_s` before it answers, and has `margin_s` for the answer."""
        late = asyncio.get_running_loop().call_later(blocks_s + CHECK_AFTER_S, self._server.check)
        try:
            timeout_s = blocks_s + (margin_s or self.answer_timeout_s)
            result = await self._unless_shut(lambda: self._server.use(work), timeout_s)
            self.refusal = ""
            return result
        except TimeoutError as error:
            if not self._login.asks:  # else the open connections are as good as before
                await self._server.drop()
            raise translated(error, self.address, self._clustered) from None
        except (redis.exceptions.RedisError, OSError, Refused) as error:
            ours = error if isinstance(error, Refused) else translated(error, self.address, self._clustered)
            if isinstance(ours, Refused) and self._may_pass(ours):
                self.refusal = str(ours)
                ours = BrokerUnavailable(self.refusal)
            if ours is error:
                raise
            raise ours from (error if isinstance(error, redis.exceptions.ResponseError) else None)
        finally:
            late.cancel()

    def _may_pass(self, refusal: Refused) -> bool:
        """True for a refusal after the start that the next content of a file, or the provider, may end."""
        return self._login.accepted and (self._login.renewable or isinstance(refusal, Distrusted))

    async def _unless_shut(self, work: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
        self.check()
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    return await work()
                finally:
                    self._limits.discard(limit)
        except Exception:
            self.check()  # an operation that `shut` ended raises ClientClosed, not its socket's error
            raise

    def _say_waiting(self, state: RetryCallState) -> None:
        if state.attempt_number in (1, 5) or state.attempt_number % 30 == 0:
            error = state.outcome.exception() if state.outcome else None
            log.warning("waiting_for_redis", address=self.address, tries=state.attempt_number, reason=str(error))


def _locator(url: RedisUrl, address: str, login: Login) -> Locator:
    if url.kind is Kind.SENTINEL:
        return SentinelMaster(url, address, login.at_sentinels)
    if url.kind is Kind.CLUSTER:
        return SlotOwner(url, address, login)
    return FixedServer(url)


def _by_text(verb: str, keys: Sequence[str | bytes], args: Sequence[Any]) -> tuple[Any, ...]:
    return ("EVAL", scripts.source(verb), len(keys), *keys, *args)
