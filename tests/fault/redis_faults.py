"""A Redis of the run's own: with an append-only file synchronised at every write, killed and started again at will."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tests.passwords import Credentials, Passwords, admin_of, refused
from tests.servers import newest
from tests.shifted_clock import ShiftedServer, no_shifting
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

KNOWN_S = 2.0
"""Time after a change of the password in which everybody logs in with it: nobody changes it again before."""
AWAY = (RedisError, OSError, asyncio.TimeoutError)


def server_binary(wanted: str) -> Path | None:
    """The server program of a release such as `7.0`, `redis-7.0` or `valkey`; the newest for an empty text.

    Raises:
        SystemExit: there is none.
    """
    found = find_servers()
    if not wanted:
        return newest(found)
    for label in reversed(found):
        if wanted in (label, label.split("-")[0], label.split("-")[1]):
            return found[label]
    raise SystemExit(f"--server {wanted}: not found; there are {', '.join(found)}")


class Faulty:
    """The server, its faults, and one at a time of them.

    Attributes:
        server: the server.
        passwords: what it wants, and who reads that.
        refusals: answers WRONGPASS and NOAUTH while its password changed.
        direct: a client of it for the harness, past all proxies; binary answers.
        outages: (from, to) in epoch ms of its absences.
    """

    def __init__(self, binary: Path | None, folder: Path) -> None:
        self.passwords, self.refusals = Passwords(folder), 0
        self.server: RedisServer = (RedisServer if no_shifting() else ShiftedServer)(binary, appendonly=True)
        self._lock = asyncio.Lock()
        self.direct: Any = None

    async def open(self) -> None:
        await asyncio.to_thread(self.server.__enter__)
        self.direct = redis.asyncio.Redis.from_url(
            self.server.url,
            socket_timeout=None,  # redis-py's own may swallow a cancellation on Python 3.11
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            credential_provider=Credentials(lambda: self.passwords.current(self.server.url)),
        )

    async def close(self) -> None:
        if self.direct is not None:
            await self.direct.aclose()
        await asyncio.to_thread(self.server.__exit__, None, None, None)

    async def kill(self, away_s: float) -> None:
        """SIGKILL, and a start with the same data after a while."""
        async with self._lock:
            await asyncio.to_thread(self.server.kill)
            await asyncio.sleep(away_s)
            await self._restart()

    async def restore(self, seconds: float) -> None:
        """SIGKILL, and a start with the data of some seconds ago, as from a backup."""
        async with self._lock:
            await self.direct.config_set(
                "auto-aof-rewrite-percentage", 0
            )  # the files may only grow while they are copied
            with tempfile.TemporaryDirectory(prefix="streamfleet-backup-") as backup:
                await asyncio.to_thread(shutil.copytree, self.server.folder, backup, dirs_exist_ok=True)
                await asyncio.sleep(seconds)
                await asyncio.to_thread(self.server.kill)
                shutil.rmtree(self.server.folder)
                await asyncio.to_thread(shutil.copytree, backup, self.server.folder)
                await self._restart()

    async def change_password(self, order: str, user: str, late_s: float, *, restart: bool) -> None:
        """Change the password, and cut all connections: by CLIENT KILL, or by a restart."""

        async def tell(old: str) -> None:
            self.server.require(self.passwords.password)
            if restart:
                await asyncio.to_thread(self.server.kill)
                await self._restart()
                return
            async with admin_of(self.server.port, old) as admin:  # `direct` has the new one already
                await admin.config_resetstat()
            await self.passwords.tell(self.server.port, old)

        async with self._lock:
            await self.passwords.change(order, user, late_s, tell)
            self.refusals += await refused(self.direct)
            await asyncio.sleep(KNOWN_S)

    async def _restart(self) -> None:
        await asyncio.to_thread(self.server.restart)
        if self.passwords.password:
            await self.ask("DBSIZE")  # answered once the data is loaded: some servers take no settings before
            await self.passwords.set_on(self.direct)  # the users are in no file

    async def fill(self, seconds: float) -> None:
        """Put the memory limit just below what is used, for a while."""
        async with self._lock:
            used = int((await self.direct.info("memory"))["used_memory"])
            await self.direct.config_set("maxmemory", used - 1)
            try:
                await asyncio.sleep(seconds)
            finally:
                await self.direct.config_set("maxmemory", 0)

    def shift_clock(self, by_ms: int) -> bool:
        """Set the server's wall clock so far ahead of the machine's; False where this machine cannot do that."""
        if not isinstance(self.server, ShiftedServer):
            return False
        self.server.shift(by_ms)
        return True

    async def forget_scripts(self) -> None:
        async with self._lock:
            await self.ask("SCRIPT", "FLUSH")

    async def ask(self, *words: Any) -> Any:
        """One command, over outages."""

        async def answered() -> list[Any]:
            try:
                return [await self.direct.execute_command(*words)]
            except AWAY:
                return []

        return (await eventually(answered, 30, f"Redis answers {words[0]}"))[0]
