"""Redis servers that belong together, on loopback: replicas of a master, Sentinels that watch it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis

from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

LOCAL = "127.0.0.1"
# Since 7.0 a master waits 5 s for more replicas before it sends its data to the first.
AT_ONCE = {"repl-diskless-sync-delay": "0"}


def server_binary(label: str = "") -> Path | None:
    """The server program of a release (`redis-7.0`), the newest without one."""
    return find_servers()[label] if label else newest(find_servers())


@contextlib.contextmanager
def asking(port: int, **options: Any) -> Iterator[redis.Redis]:
    """A client of one node, whatever it is; answers are text."""
    client = redis.Redis(host=LOCAL, port=port, decode_responses=True, socket_timeout=5, **options)
    try:
        yield client
    finally:
        client.close()


def tell(port: int, *words: object) -> Any:
    """One command to one node."""
    with asking(port) as client:
        return client.execute_command(*words)  # type: ignore[no-untyped-call]


def info(port: int, section: str = "replication") -> dict[str, Any]:
    """A section of a node's INFO."""
    with asking(port) as client:
        found: dict[str, Any] = client.info(section)
        return found


def synced(port: int) -> bool:
    """True if this node is a replica with everything that its master has."""
    try:
        found = info(port)
    except redis.RedisError:
        return False
    return found["role"] == "slave" and found.get("master_link_status") == "up"


class SentinelServer(RedisServer):
    """A Sentinel that watches one master.

    Args:
        binary: server program.
        service: name of the master.
        port: port of the master.
        directives: further `sentinel <directive> <service> <value>` lines.
        lines: further lines as they are.
    """

    def __init__(
        self, binary: Path | None, service: str, port: int, directives: Mapping[str, object], *lines: str
    ) -> None:
        super().__init__(binary)
        self._lines = [
            f"sentinel monitor {service} {LOCAL} {port} 2",
            *(f"sentinel {name} {service} {value}" for name, value in directives.items()),
            *lines,
        ]

    def _command(self, folder: Path) -> list[str]:
        settings = {"port": self.port, "bind": LOCAL, "dir": folder, "logfile": "server.log"}
        file = folder / "sentinel.conf"
        file.write_text("\n".join([*(f"{name} {value}" for name, value in settings.items()), *self._lines, ""]))
        plain = super()._command(folder)
        before = plain[: plain.index(str(self.binary))]
        return [*before, str(self.binary), str(file), "--sentinel"]


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Port of something that takes connections and never answers, as a machine that hangs."""
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: taken.append(writer), LOCAL, 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        assert taken, "nobody asked it"
        for writer in taken:
            writer.close()
            await writer.wait_closed()
        server.close()


def make_replica(node: RedisServer, master: RedisServer) -> None:
    """Have a node follow another, and wait until it has everything."""
    with asking(node.port) as client:
        client.replicaof(LOCAL, master.port)
    eventually_blocking(lambda: synced(node.port), 20, f"{node.port} follows {master.port}")


def running(node: RedisServer) -> bool:
    """True if its process was started and not killed since."""
    try:
        return node.pid > 0
    except RuntimeError:
        return False


def cut(master: RedisServer, replicas: list[RedisServer]) -> None:
    """Break the replicas' links to their master, and keep them broken until `mend`, as a fault of the network does."""
    for replica in replicas:
        with asking(replica.port) as client:
            client.config_set("masterauth", "refused")  # the master has no password: it answers this with an error
    tell(master.port, "CLIENT", "KILL", "TYPE", "replica")


def mend(replicas: list[RedisServer]) -> None:
    """Let replicas that were cut off connect again."""
    for replica in replicas:
        with asking(replica.port) as client:
            client.config_set("masterauth", "")
