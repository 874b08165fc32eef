"""Faults that INFO shows, and those that it does not."""

from __future__ import annotations

import pytest

from streamfleet.common.server_checks import findings, read_info

WELL = {
    "redis_version": "7.4.1",
    "role": "master",
    "maxmemory": "1073741824",
    "maxmemory_policy": "noeviction",
    "aof_enabled": "1",
    "connected_slaves": "2",
}


def test_a_server_as_it_should_be() -> None:
    assert findings(WELL, 2) == []


def test_what_info_does_not_say_is_no_finding() -> None:
    assert findings({}, 1) == []


@pytest.mark.parametrize(
    ("said", "event", "critical", "setting"),
    [
        ({"redis_version": "6.0.16"}, "redis_is_too_old", True, "Redis 6.2 or newer"),
        ({"redis_version": "5.0.3"}, "redis_is_too_old", True, "Redis 6.2 or newer"),
        ({"role": "slave", "master_host": "h", "master_port": "1"}, "redis_is_a_replica", True, "redis+sentinel://"),
        ({"maxmemory_policy": "allkeys-lru"}, "redis_may_evict", True, "maxmemory-policy noeviction"),
        ({"maxmemory_policy": "volatile-ttl", "maxmemory": "0"}, "redis_may_evict", False, "noeviction"),
        ({"aof_enabled": "0"}, "redis_has_no_aof", False, "appendonly yes"),
        ({"connected_slaves": "1"}, "redis_has_too_few_replicas", False, "STREAMFLEET_ENQUEUE_REPLICAS: 1"),
    ],
)
def test_each_finding_names_the_setting(said: dict[str, str], event: str, critical: bool, setting: str) -> None:
    (found,) = findings(WELL | said, 2)
    assert (found.event, found.critical) == (event, critical)
    assert setting in found.setting


@pytest.mark.parametrize("version", ["6.2.0", "6.2.9121", "7.0.15", "10.0.0", "unstable", ""])
def test_versions_that_will_do(version: str) -> None:
    assert findings(WELL | {"redis_version": version}) == []


def test_a_server_that_still_loads_its_file_is_not_taken_for_one_without() -> None:
    assert findings({**WELL, "aof_enabled": "0", "loading": "1"}, 2) == []


def test_info_is_read_as_it_comes() -> None:
    text = b"# Server\r\nredis_version:7.0.15\r\nos:Linux 6.1:x\r\n\r\n# Odd\r\nnothing\r\n"
    assert read_info(text) == {"redis_version": "7.0.15", "os": "Linux 6.1:x"}
