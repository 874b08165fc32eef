"""A master with two replicas and three Sentinels, all real processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from tests.ha.nodes import AT_ONCE, LOCAL, SentinelServer, asking, info, make_replica, running, synced, tell
from tests.support.redis_server import RedisServer
from tests.waiting import eventually_blocking

SERVICE = "streamfleet"
DOWN_AFTER_MS = 1_000


class SentinelDeployment:
    """Started by entering its context, ended with it.

    Args:
        binary: server program.
        down_after_ms: a master silent for so long is taken for dead.
    """

    def __init__(self, binary: Path | None, down_after_ms: int = DOWN_AFTER_MS) -> None:
        self._binary, self._down_after_ms = binary, down_after_ms
        self._open = contextlib.ExitStack()
        self.nodes: list[RedisServer] = []
        self.sentinels: list[SentinelServer] = []

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOCAL}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            self.nodes = [opened.enter_context(RedisServer(self._binary, options=AT_ONCE)) for _ in range(3)]
            for node in self.nodes[1:]:
                make_replica(node, self.nodes[0])
            directives = {"down-after-milliseconds": self._down_after_ms, "failover-timeout": 10_000}
            self.sentinels = [SentinelServer(self._binary, SERVICE, self.nodes[0].port, directives) for _ in range(3)]
            for sentinel in self.sentinels:
                opened.enter_context(sentinel)
            eventually_blocking(self.complete, 30, "the Sentinels know each other and the replicas")
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def master(self) -> RedisServer | None:
        """The node that the Sentinels name, where it is one that takes writes."""
        ports = {self._said(sentinel).get("port") for sentinel in self.sentinels}
        named = [node for node in self.nodes if ports == {node.port}]
        try:
            return named[0] if named and info(named[0].port)["role"] == "master" else None
        except redis.RedisError:
            return None

    def complete(self) -> bool:
        """True if there is a master with two replicas in step, and every Sentinel knows all others."""
        master = self.master()
        if master is None:
            return False
        said = [self._said(sentinel) for sentinel in self.sentinels]
        if info(master.port)["connected_slaves"] != 2:
            return False  # one may still follow the other, and is set right, with a pause, some seconds later
        known = all(state["num-slaves"] == 2 and state["num-other-sentinels"] == 2 for state in said)
        return known and all(synced(node.port) for node in self.nodes if node is not master)

    def revive(self, node: RedisServer) -> None:
        """Start a killed node again, and wait until the Sentinels have made it a replica in step."""
        node.restart()
        eventually_blocking(self.complete, 60, "the node that came back follows the new master")

    def replace_master(self) -> None:
        """Have the Sentinels promote a replica although the master is well, as before maintenance."""
        with asking(self.sentinels[0].port) as client:
            client.sentinel_failover(SERVICE)

    def take_for_dead_after(self, ms: int) -> None:
        """Have all Sentinels take a master that is silent for so long for dead."""
        for sentinel in self.sentinels:
            tell(sentinel.port, "SENTINEL", "SET", SERVICE, "down-after-milliseconds", ms)

    def failovers(self) -> int:
        """Number of times that another node became the master; on a busy machine, also without an order."""
        return max(int(self._said(sentinel).get("config-epoch", 0)) for sentinel in self.sentinels)

    def replicas(self) -> list[RedisServer]:
        """The nodes that run and are no masters."""
        return [node for node in self.nodes if running(node) and info(node.port)["role"] == "slave"]

    def _said(self, sentinel: SentinelServer) -> dict[str, Any]:
        try:
            with asking(sentinel.port) as client:
                state = client.sentinel_master(SERVICE)
                return state if isinstance(state, dict) else {}
        except redis.RedisError:
            return {}
