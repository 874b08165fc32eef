"""A Redis server for one measurement, and its own counters of its work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.support.redis_server import RedisServer, find_servers


@contextmanager
def own_server(label: str = "", options: Mapping[str, str] | None = None) -> Iterator[RedisServer]:
    """Start a server, and end it afterwards; nothing is written to disk.

    Args:
        label: release such as ``redis-7.0``, as `find_servers` names it; the newest Redis if empty.
        options: further configuration, as in redis.conf.
    """
    found = find_servers()
    with RedisServer(found[label] if label else newest(found), options=options) as server:
        yield server


def newest(found: dict[str, Path]) -> Path:
    """The newest Redis, else the newest Valkey."""
    order = sorted(found, key=lambda label: (label.startswith("redis"), _release(label)))
    return found[order[-1]]


def _release(label: str) -> tuple[int, ...]:
    return tuple(int(part) for part in label.rpartition("-")[2].split("."))


def cpu_seconds(client: redis.Redis) -> float:
    """CPU time that the server has used so far, user and system."""
    info: Any = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


SCRIPTS = ("cmdstat_evalsha", "cmdstat_eval")
"""Rows of `INFO commandstats` with the time of script calls."""


def script_us(client: redis.Redis) -> float:
    """Server time of all script calls so far, with the commands inside them.

    Take differences: after `CONFIG RESETSTAT`, Redis sets up a histogram of 25 KB at the next call of each command.
    """
    stats: Any = client.info("commandstats")
    return float(sum(row["usec"] for name, row in stats.items() if name in SCRIPTS))


def memory_bytes(client: redis.Redis) -> int:
    """Bytes that the server has allocated for its data, by its own account."""
    info: Any = client.info("memory")
    return int(info["used_memory"])
