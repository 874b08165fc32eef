"""Checks a Redis server for settings that can lose requests, and names the setting to change. Reads INFO only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.errors import NotPermitted

log = structlog.get_logger(__name__)
OLDEST = (6, 2)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of the server.

    Attributes:
        event: short name, for logs.
        message: its meaning, for people.
        setting: the setting to change, and its right value.
        critical: it loses requests in normal operation, or nothing works at all.
    """

    event: str
    message: str
    setting: str
    critical: bool = False

    def say(self) -> None:
        """Log the finding."""
        (log.critical if self.critical else log.warning)(self.event, reason=self.message, setting=self.setting)


async def check_server(broker: BrokerBase) -> list[Finding]:
    """Check the server that holds the queue; returns nothing if INFO is not permitted.

    Raises:
        BrokerUnavailable: Redis could not be reached for the whole patience.
    """
    try:
        text = await broker.connection.command("INFO")
    except NotPermitted as error:
        log.debug("server_not_checked", reason=str(error))
        return []
    return findings(read_info(text), broker.limits.enqueue_replicas)


def read_info(text: bytes) -> dict[str, str]:
    """INFO's reply as a mapping."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in lines if colon}


def findings(info: Mapping[str, str], replicas: int = 0) -> list[Finding]:
    """Problems that INFO shows. A value that INFO lacks counts as right.

    Args:
        info: names and values of INFO.
        replicas: number of replicas that enqueueing waits for.
    """
    found = (_too_old(info), _replica(info), _evicting(info), _no_aof(info), _too_few_replicas(info, replicas))
    return [finding for finding in found if finding is not None]


def _too_old(info: Mapping[str, str]) -> Finding | None:
    version = info.get("redis_version", "")
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) >= OLDEST:
        return None
    return Finding(
        "redis_is_too_old",
        f"Redis {version} lacks commands that the scripts use",
        "Redis 6.2 or newer, or Valkey",
        critical=True,
    )


def _replica(info: Mapping[str, str]) -> Finding | None:
    if info.get("role") != "slave":
        return None
    master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
    return Finding(
        "redis_is_a_replica",
        f"a replica of {master} takes no requests and no results: everything waits until it is promoted",
        "REDIS_URL: the master's address, or redis+sentinel://<sentinel>:26379/<service>",
        critical=True,
    )


def _evicting(info: Mapping[str, str]) -> Finding | None:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return None
    limit = info.get("maxmemory", "0")
    when = "as soon as it is full" if limit != "0" else "as soon as it gets a maxmemory"
    return Finding(
        "redis_may_evict",
        f"with maxmemory-policy {policy}, Redis throws away requests and results {when}, without a word",
        "maxmemory-policy noeviction",
        critical=limit != "0",
    )


def _no_aof(info: Mapping[str, str]) -> Finding | None:
    if info.get("aof_enabled", "1") != "0" or info.get("loading") == "1":  # while Redis loads, it always reports 0
        return None
    return Finding(
        "redis_has_no_aof",
        "without an append-only file, a restart of Redis loses all that came since its last snapshot, if there is one",
        "appendonly yes, with appendfsync everysec (loses a second at most) or always",
    )


def _too_few_replicas(info: Mapping[str, str], wanted: int) -> Finding | None:
    connected = int(info.get("connected_slaves", wanted))
    if connected >= wanted or info.get("role") == "slave":
        return None
    return Finding(
        "redis_has_too_few_replicas",
        f"enqueueing waits for {wanted} replicas, and {connected} are connected: it will raise NotReplicated",
        f"STREAMFLEET_ENQUEUE_REPLICAS: {connected} at most, or more replicas",
    )
