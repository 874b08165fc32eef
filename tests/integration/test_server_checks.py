"""Real servers with settings that cost requests, and who says so: the worker's log, and `streamfleet audit`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import structlog

from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.server_checks import check_server
from tests.broker import Broker
from tests.ha.nodes import make_replica, tell
from tests.integration.cli_processes import streamfleet
from tests.integration.worker_process import fleet_on
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers

EVICTING = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}


async def events(url: str, limits: QueueLimits | None = None) -> list[str]:
    """Returns the findings on a server."""
    broker = Broker(Connection(url), Keys("q"), limits)
    try:
        return [finding.event for finding in await check_server(broker)]
    finally:
        await broker.close()


async def test_a_durable_server_of_any_release_has_no_findings(any_redis_server: RedisServer) -> None:
    with RedisServer(any_redis_server.binary, appendonly=True) as server:
        assert await events(server.url) == []


@pytest.mark.parametrize(
    ("appendonly", "options", "found"),
    [
        (False, {}, ["redis_has_no_aof"]),
        (True, EVICTING, ["redis_may_evict"]),
        (True, {"maxmemory-policy": "volatile-lru"}, ["redis_may_evict"]),
        (False, EVICTING, ["redis_may_evict", "redis_has_no_aof"]),
    ],
)
async def test_each_setting_is_found(appendonly: bool, options: Mapping[str, str], found: list[str]) -> None:
    with RedisServer(newest(find_servers()), appendonly=appendonly, options=options) as server:
        assert await events(server.url) == found


async def test_a_replica_and_missing_replicas_are_found() -> None:
    with RedisServer(appendonly=True) as master, RedisServer(appendonly=True) as replica:
        assert await events(master.url, QueueLimits(enqueue_replicas=1)) == ["redis_has_too_few_replicas"]
        make_replica(replica, master)
        assert await events(master.url, QueueLimits(enqueue_replicas=1)) == []
        assert await events(replica.url) == ["redis_is_a_replica"]


async def test_without_permission_nothing_is_found_and_nothing_fails() -> None:
    with RedisServer() as server, structlog.testing.capture_logs() as logged:
        tell(server.port, "ACL", "SETUSER", "default", "-info")
        assert await events(server.url) == []
    assert [(line["event"], line["log_level"]) for line in logged] == [("server_not_checked", "debug")]


async def test_a_worker_says_it_at_its_start(tmp_path: Path) -> None:
    with RedisServer(options=EVICTING) as server:
        async with fleet_on(server.url, tmp_path) as fleet:
            worker = await fleet.worker("w1")
            (evicting,), (volatile,) = worker.events("redis_may_evict"), worker.events("redis_has_no_aof")
    assert (evicting["level"], evicting["setting"]) == ("critical", "maxmemory-policy noeviction")
    assert volatile["level"] == "warning"
    assert volatile["setting"].startswith("appendonly yes")


async def test_a_worker_of_a_durable_server_says_nothing(tmp_path: Path) -> None:
    with RedisServer(appendonly=True) as server:
        async with fleet_on(server.url, tmp_path) as fleet:
            worker = await fleet.worker("w1")
    assert [event for event in ("redis_may_evict", "redis_has_no_aof") if worker.events(event)] == []


def test_an_audit_says_it_and_its_status_is_about_the_queue() -> None:
    with RedisServer(options=EVICTING) as server:
        done = streamfleet(server.url, "audit", "--quick")
        listed = streamfleet(server.url, "audit", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.endswith("Set maxmemory-policy noeviction")]
    assert [finding["event"] for finding in json.loads(listed.stdout)["server"]] == [
        "redis_may_evict",
        "redis_has_no_aof",
    ]
