"""A Redis Cluster of three masters and three replicas, all real processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.crc import key_slot

from tests.ha.nodes import AT_ONCE, LOCAL, info, running, synced, tell
from tests.support.redis_server import RedisServer, free_port
from tests.waiting import eventually_blocking

SLOTS = 16_384
NODE_TIMEOUT_MS = 1_000
KEYS_AT_ONCE = 100


class ClusterDeployment:
    """Started by entering its context, ended with it.

    Args:
        binary: server program, 7.0 or newer.
        node_timeout_ms: a node silent for so long is taken for dead.
    """

    def __init__(self, binary: Path | None, node_timeout_ms: int = NODE_TIMEOUT_MS) -> None:
        self._binary, self._timeout_ms = binary, node_timeout_ms
        self._open = contextlib.ExitStack()
        self.nodes: list[RedisServer] = []
        self._bus: dict[int, int] = {}

    @property
    def url(self) -> str:
        """Names two of the nodes: the others have to be found."""
        return "redis+cluster://" + ",".join(f"{LOCAL}:{node.port}" for node in self.nodes[:2])

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            for _ in range(6):
                bus = free_port()
                options = {**AT_ONCE, "cluster-enabled": "yes", "cluster-node-timeout": str(self._timeout_ms)}
                node = RedisServer(self._binary, options={**options, "cluster-port": str(bus)})
                self.nodes.append(opened.enter_context(node))
                self._bus[node.port] = bus
            self._join()
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def owner(self, slot: int) -> RedisServer | None:
        """The live master that holds a slot; None while the nodes that run do not agree on one."""
        ports = {self._owner_port(node, slot) for node in self._alive()}
        return next((node for node in self._alive() if ports == {node.port}), None)

    def other_master(self, slot: int) -> RedisServer:
        """A master that does not hold this slot."""
        owner = self.owner(slot)
        return next(node for node in self._alive() if node is not owner and info(node.port)["role"] == "master")

    def replica_of(self, master: RedisServer) -> RedisServer:
        """A replica of this master."""
        return next(
            node
            for node in self._alive()
            if info(node.port)["role"] == "slave" and int(info(node.port)["master_port"]) == master.port
        )

    def revive(self, node: RedisServer) -> None:
        """Start a killed node again, and wait until it is a replica in step."""
        node.restart()
        eventually_blocking(lambda: synced(node.port) and self.healthy(), 30, "the node that came back is a replica")

    def follow(self, node: RedisServer, master: RedisServer) -> None:
        """Have a replica follow another master, and wait until it has everything."""
        tell(node.port, "CLUSTER", "REPLICATE", self._id(master))
        eventually_blocking(lambda: self._follows(node, master), 20, f"{node.port} follows {master.port}")

    def begin_migration(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """The first half of moving a slot: new keys go to the target, those at the source stay."""
        tell(target.port, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(source))
        tell(source.port, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(target))

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer, most: int | None = None) -> int:
        """Move keys of a slot, all without `most`; how many went."""
        moved = 0
        while most is None or moved < most:
            count = KEYS_AT_ONCE if most is None else min(KEYS_AT_ONCE, most - moved)
            keys: list[str] = tell(source.port, "CLUSTER", "GETKEYSINSLOT", slot, count)
            if not keys:
                break
            tell(source.port, "MIGRATE", LOCAL, target.port, "", 0, 10_000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_migration(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """The second half, once no key is left at the source."""
        others = [node for node in self._alive() if node not in (source, target)]
        for node in (target, source, *others):
            with contextlib.suppress(redis.ResponseError):  # replicas are told by their masters
                tell(node.port, "CLUSTER", "SETSLOT", slot, "NODE", self._id(target))
        eventually_blocking(lambda: self.owner(slot) is target, 20, f"all know that {target.port} holds slot {slot}")

    def _join(self) -> None:
        share, first = SLOTS // 3, self.nodes[0].port
        for number, node in enumerate(self.nodes):
            tell(node.port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < 3:
                last = SLOTS - 1 if number == 2 else (number + 1) * share - 1
                tell(node.port, "CLUSTER", "ADDSLOTSRANGE", number * share, last)
            if number:
                tell(node.port, "CLUSTER", "MEET", LOCAL, first, self._bus[first])
        eventually_blocking(lambda: all(self._knows_all(node) for node in self.nodes), 30, "the nodes have met")
        for replica, master in zip(self.nodes[3:], self.nodes[:3], strict=True):
            self.follow(replica, master)
        eventually_blocking(self.healthy, 30, "the cluster is up")

    def healthy(self) -> bool:
        """True if every running node says that the cluster is up, and knows every node's role."""
        return all(self._ok(node) for node in self._alive())

    def _ok(self, node: RedisServer) -> bool:
        state = str(tell(node.port, "CLUSTER", "INFO"))
        return "cluster_state:ok" in state and sum("slave" in flags for flags in self._flags(node)) == 3

    def _alive(self) -> list[RedisServer]:
        return [node for node in self.nodes if running(node)]

    def _follows(self, node: RedisServer, master: RedisServer) -> bool:
        return synced(node.port) and int(info(node.port)["master_port"]) == master.port

    def _owner_port(self, node: RedisServer, slot: int) -> int | None:
        return next((_port(row) for row in tell(node.port, "CLUSTER", "SLOTS") if row[0] <= slot <= row[1]), None)

    def _knows_all(self, node: RedisServer) -> bool:
        return sum("handshake" not in flags for flags in self._flags(node)) == 6

    def _flags(self, node: RedisServer) -> list[str]:
        """Flags of every node, as this node sees them."""
        return [line.split()[2] for line in str(tell(node.port, "CLUSTER", "NODES")).splitlines() if line]

    def _id(self, node: RedisServer) -> str:
        return str(tell(node.port, "CLUSTER", "MYID"))


def slot_of(queue: str) -> int:
    """The slot where a queue's keys live."""
    return int(key_slot(f"{{{queue}}}:".encode()))


def _port(row: list[Any]) -> int:
    return int(row[2][1])
