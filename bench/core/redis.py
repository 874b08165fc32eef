"""A Redis server for one measurement, and its own counters of its work."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.support.redis_server import RedisServer, find_servers

SCRIPTS = ("cmdstat_evalsha", "cmdstat_eval")
"""Rows of `INFO commandstats` with the time of script calls, and of the commands inside them."""
OF_SCRIPTS = ("used_memory_scripts", "used_memory_vm_total")
"""Memory of scripts and their interpreters: megabytes that no request has, and in Redis 8 a part of `used_memory`."""


@contextmanager
def own_server() -> Iterator[RedisServer]:
    """Start the newest server, and end it afterwards; nothing is written to disk.

    It, and all processes that are started next, may open as many files as the system permits: a worker has about five
    connections.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with RedisServer(newest(find_servers())) as server:
        yield server


def newest(found: dict[str, Path]) -> Path:
    """The newest Redis, else the newest Valkey."""
    order = sorted(found, key=lambda label: (label.startswith("redis"), _release(label)))
    return found[order[-1]]


def _release(label: str) -> tuple[int, ...]:
    return tuple(int(part) for part in label.rpartition("-")[2].split("."))


@dataclass(frozen=True)
class Look:
    """Counters at one time. Take differences.

    Attributes:
        cpu_us: CPU time of the thread that executes commands, user and system; of all threads if it is not known alone.
        script_calls, script_us: number of script calls, and the server's time of them.
        in_bytes, out_bytes: bytes over the network.
        memory_bytes: allocated bytes, without those of scripts.
        clients, clients_bytes: connections, and their memory.
    """

    cpu_us: float
    script_calls: int
    script_us: float
    in_bytes: int
    out_bytes: int
    memory_bytes: int
    clients: int
    clients_bytes: int


def look(client: redis.Redis) -> Look:
    """Read the counters now; this costs the server about 0.2 ms."""
    found: Any = client.info("all")
    return read(found)


def read(info: Mapping[str, Any]) -> Look:
    """Returns the counters in a reply to INFO.

    Args:
        info: names and values, as redis-py parses them.
    """
    user = info.get("used_cpu_user_main_thread", info["used_cpu_user"])
    system = info.get("used_cpu_sys_main_thread", info["used_cpu_sys"])
    scripts = [info[name] for name in SCRIPTS if name in info]
    return Look(
        cpu_us=(float(user) + float(system)) * 1e6,
        script_calls=sum(int(row["calls"]) for row in scripts),
        script_us=sum(float(row["usec"]) for row in scripts),
        in_bytes=int(info["total_net_input_bytes"]),
        out_bytes=int(info["total_net_output_bytes"]),
        memory_bytes=int(info["used_memory"]) - sum(int(info.get(name, 0)) for name in OF_SCRIPTS),
        clients=int(info["connected_clients"]),
        clients_bytes=int(info.get("mem_clients_normal", 0)),
    )
