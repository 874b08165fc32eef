"""Two servers whose clocks stand still together, and a queue that tells both the same.

Today's brokers and scripts serve one of them, in this process; the kept ones serve the other (side.py). The replies of
each call must be the same, and after each step of a history every key of the whole keyspace.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamfleet.cli.demo.server import find_servers
from streamfleet.common.connection import Connection
from streamfleet.common.limits import QueueLimits
from tests.scripts import keyspace
from tests.scripts.compare.differences import ALLOWED, MADE_SAME, RENAMED, Allowed, for_kept
from tests.scripts.compare.kept import REPOSITORY, environment
from tests.scripts.compare.side import plain
from tests.scripts.harness import Queue
from tests.servers import newest
from tests.shifted_clock import ShiftedServer

BEGIN = 1_800_000_000_000
"""Time at which each history begins, epoch ms."""
KINDS = ("hash", "zset", "set")
IN_ORDER = {f"{kind}-max-listpack-{what}": "1000000" for kind in KINDS for what in ("entries", "value")}
"""Configuration with which two servers return members in the same order: hash tables have a seed of their own."""
OPTIONS = IN_ORDER | {"enable-debug-command": "local"}
EMPTY = (
    ("CONFIG", "SET", "maxmemory", 0),
    ("DEBUG", "SET-ACTIVE-EXPIRE", 0),  # a key goes when somebody looks, not when the server has time
    ("FLUSHALL",),
    ("SCRIPT", "FLUSH"),
    ("ACL", "SETUSER", "default", "-fcall"),  # kept brokers that know functions use EVALSHA then
)
MOST_CHARS = 300


class Different(Exception):
    """The kept scripts and today's did not do the same."""


class Twins:
    """Today's scripts on one server and the kept ones on another.

    Args:
        servers: today's server, and the kept scripts'.
        side: the process that calls these.
        allowed: differences that are meant.

    Attributes:
        now: the time on both servers, epoch ms.
        connections: to both servers, while they are `opened`.
    """

    def __init__(self, servers: Sequence[ShiftedServer], side: subprocess.Popen[bytes], allowed: Allowed) -> None:
        self._servers, self._side, self.allowed = servers, side, allowed
        self.now = BEGIN
        self.connections: Sequence[Connection] = ()
        self._calls: list[str] = []

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect to both servers, which are empty, at `BEGIN`."""
        self.connections = [Connection(server.url) for server in self._servers]
        self._tell(None, "begin")
        self._calls.clear()
        self.at(BEGIN)
        try:
            for connection in self.connections:
                for words in EMPTY:
                    await connection.command(*words)
            yield
        finally:
            for connection in self.connections:
                await connection.close()

    def at(self, now_ms: int) -> None:
        """Set both clocks."""
        self.now = now_ms
        for server in self._servers:
            server.stand_at(now_ms)

    async def both(self, today: Any, queue: Queue | None, verb: str, args: Sequence[Any], named: Any) -> Any:
        """Let both sides do the same, and let a millisecond pass. Returns or raises what today's does.

        Args:
            today: the object of this side that has the verb.
            queue: the queue that it serves; None for commands.
            verb: method that is called.
            args, named: its arguments.

        Raises:
            Different: they did not reply the same.
        """
        self._calls.append(_short(f"{verb}{(*args, *named.items())}"))
        self._tell(queue, verb, args, named)
        raised, reply = None, None
        try:
            reply = await getattr(today, verb)(*args, **named)
            mine: tuple[str, Any] = ("reply", plain(reply))
        except Exception as error:  # noqa: BLE001 - the other side has to raise the same
            raised, mine = error, ("raised", type(error).__name__)
        theirs = pickle.load(self._side.stdout)  # type: ignore[arg-type]  # noqa: S301 - from our own process
        before, after = (self.allowed.reply(verb, each) for each in (theirs, mine))
        if before != after:
            raise Different(f"{self._calls[-1]} replies otherwise{difference(before, after)}")
        if verb in MADE_SAME:
            kept = self.connections[1]
            _, most = await kept.command("CONFIG", "GET", "maxmemory")
            await kept.command("CONFIG", "SET", "maxmemory", 0)
            await MADE_SAME[verb](*self.connections)
            await kept.command("CONFIG", "SET", "maxmemory", most)
        self.at(self.now + 1)
        if raised is not None:
            raise raised
        return reply

    async def compare(self) -> None:
        """Compare every key.

        Raises:
            Different: a key is not the same.
        """
        today, kept = map(self.allowed.dump, await asyncio.gather(*map(_dump, self.connections)))
        if kept != today:
            raise Different("\n".join([*self._calls, f"leave other keys{difference(kept, today)}"]))
        self._calls.clear()

    def _tell(self, queue: Queue | None, verb: str, args: Sequence[Any] = (), named: Mapping[str, Any] = {}) -> None:
        assert self._side.stdin
        args = for_kept(args) if verb == "command" else args
        name, limits = (queue.keys.queue, plain(queue.limits)) if queue else ("", None)
        fields = {name: plain(value) for name, value in named.items()}
        pickle.dump((name, limits, RENAMED.get(verb, verb), plain(list(args)), fields), self._side.stdin)
        self._side.stdin.flush()


@contextmanager
def twins(kept: Path, allowed: Allowed = ALLOWED) -> Iterator[Twins]:
    """Start both servers, and the process that runs the sources in the folder `kept`."""
    with ExitStack() as started:
        servers = [
            started.enter_context(ShiftedServer(newest(find_servers()), options=OPTIONS)) for _ in ("today", "kept")
        ]
        words = [sys.executable, "-m", "tests.scripts.compare.side", servers[1].url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        side = started.enter_context(subprocess.Popen(words, cwd=REPOSITORY, env=environment(kept), **pipes))  # type: ignore[call-overload]
        started.callback(side.kill)
        files = pickle.load(side.stdout)  # noqa: S301 - from our own process
        assert all(Path(file).is_relative_to(kept) for file in files), f"these are not the kept sources: {files}"
        yield Twins(servers, side, allowed)


class TwinQueue(Queue):
    """A queue whose broker and commands go to both servers."""

    def __init__(self, both: Twins, limits: QueueLimits, name: str = "q") -> None:
        super().__init__(both.connections[0], limits, name)
        self.both = both
        self.broker = _Mirrored(self.broker, both, self)  # type: ignore[assignment]
        self.connection = _Mirrored(self.connection, both)  # type: ignore[assignment]

    def with_limits(self, **changes: Any) -> TwinQueue:
        return TwinQueue(self.both, replace(self.limits, **changes), self.keys.queue)

    async def dump(self) -> keyspace.Dump:
        """Compare every key. Returns them all."""
        await self.both.compare()
        return await keyspace.read(self.both.connections[0], self.keys)


class _Mirrored:
    """A broker, or a connection, whose calls go to both sides."""

    def __init__(self, today: Any, both: Twins, queue: Queue | None = None) -> None:
        self._today, self._both, self._queue = today, both, queue

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._today, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **named: self._both.both(self._today, self._queue, name, args, named)


async def _dump(connection: Connection) -> dict[str, Any]:
    """Everything on a server, by key without the queue's prefix."""
    found = {}
    for key, kind, ttl, value in await connection.command("EVAL", keyspace.DUMP, 0):
        fields = dict(zip(value[::2], value[1::2], strict=True)) if kind == b"hash" else value
        found[keyspace.text(key).rpartition("}:")[2]] = {"type": kind, "ttl": ttl, "value": fields}
    return found


def difference(kept: Any, today: Any, path: str = "") -> str:
    """The first place where two values differ, and what stands there."""
    if isinstance(kept, dict) and isinstance(today, dict):
        name = next(
            name for name in (kept | today) if name not in kept or name not in today or kept[name] != today[name]
        )
        return difference(
            kept.get(name), today.get(name), f"{path}/{keyspace.text(name) if isinstance(name, bytes) else name}"
        )
    if isinstance(kept, list | tuple) and isinstance(today, list | tuple) and len(kept) == len(today):
        at = next(at for at, (one, other) in enumerate(zip(kept, today, strict=True)) if one != other)
        return difference(kept[at], today[at], f"{path}/{at}")
    return f": {path}\n  kept: {_short(repr(kept))}\n  today: {_short(repr(today))}"


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}…"
