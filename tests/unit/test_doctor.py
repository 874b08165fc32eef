"""Findings of `streamfleet doctor`: each way in which something can be wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Lane
from streamfleet.operator.access_rules import Patterns, Role, grants
from streamfleet.operator.doctor.check import Check, Level
from streamfleet.operator.doctor.examine import ARGUMENTS, CLUSTERED, access_check, attempts
from streamfleet.operator.doctor.queue import lateness_check, workers_check
from streamfleet.operator.doctor.server import clock_check, ping_check, server_checks
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.snapshot import LaneView, Snapshot
from tests.unit.deploy_page import refusal

WELL = {
    "redis_version": "8.2.3",
    "role": "master",
    "connected_slaves": "1",
    "slave0": "ip=10.0.0.2,port=6379,state=online,offset=1,lag=0",
    "maxmemory": str(4 * 2**30),
    "used_memory": str(2**30),
    "maxmemory_policy": "noeviction",
    "aof_enabled": "1",
    "aof_current_size": "5000",
}


def checks(changes: Mapping[str, str], replicas: int = 0) -> dict[str, Check]:
    return {check.name: check for check in server_checks({**WELL, **changes}, replicas)}


def test_a_good_server() -> None:
    assert {check.level for check in checks({}).values()} == {Level.OK}
    assert checks({"valkey_version": "9.1.0"})["version"].seen == "Valkey 9.1.0"
    assert checks({})["memory"].seen == "1.0 GB of 4.0 GB used (25%)"
    assert checks({})["replication"].seen == "a master with 1 replica"


@pytest.mark.parametrize(
    ("changes", "name", "level", "setting"),
    [
        ({"redis_version": "6.0.9"}, "version", "fail", "Redis 6.2 or newer"),
        ({"redis_version": "6.2.14"}, "version", "warn", "Redis 7.0 or newer"),
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", "fail", "maxmemory-policy noeviction"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "0"}, "eviction", "warn", "maxmemory-policy noeviction"),
        ({"maxmemory": "0"}, "memory", "warn", "maxmemory"),
        ({"used_memory": str(3.4 * 2**30).partition(".")[0]}, "memory", "warn", "result_ttl_ms"),
        ({"used_memory": str(4 * 2**30)}, "memory", "fail", "maxmemory"),
        ({"aof_enabled": "0"}, "persistence", "warn", "appendonly yes"),
        ({"aof_last_write_status": "err"}, "persistence", "fail", "disk"),
        ({"aof_last_bgrewrite_status": "err"}, "persistence", "warn", "overcommit"),
        ({"rdb_last_bgsave_status": "err"}, "persistence", "warn", "stop-writes-on-bgsave-error"),
        ({"loading": "1", "loading_eta_seconds": "7"}, "background", "fail", "wait"),
        ({"role": "slave", "master_host": "a"}, "replication", "fail", "REDIS_URL"),
        ({"slave0": "ip=a,port=1,state=wait_bgsave,lag=0"}, "replication", "warn", "client-output-buffer-limit"),
        ({"slave0": "ip=a,port=1,state=online,lag=60"}, "replication", "warn", "client-output-buffer-limit"),
    ],
)
def test_what_can_be_wrong_with_a_server(changes: dict[str, str], name: str, level: str, setting: str) -> None:
    found = checks(changes)
    assert found[name].level == level
    assert setting in found[name].change
    others = {check.name for check in found.values() if check.level != "ok"} - {name}
    assert others == ({"memory"} - {name} if changes.get("maxmemory") == "0" else set())


def test_fewer_replicas_than_are_waited_for() -> None:
    assert "STREAMFLEET_ENQUEUE_REPLICAS" in checks({}, replicas=2)["replication"].change


def test_a_rewrite_under_way_is_told() -> None:
    found = checks({"aof_rewrite_in_progress": "1"})["background"]
    assert (found.level, "rewriting" in found.seen) == (Level.OK, True)


def test_a_server_that_says_nothing_breaks_nothing() -> None:
    assert len(server_checks({}, 0)) == 6


@pytest.mark.parametrize(
    ("offset_s", "took_s", "level"),
    [(0.2, 0.01, "ok"), (-2.0, 0.01, "warn"), (-2.0, 5.0, "ok"), (45.0, 0.01, "fail"), (0.6, 0.4, "ok")],
)
def test_a_clock_is_off_only_beyond_what_the_way_may_have_taken(offset_s: float, took_s: float, level: str) -> None:
    found = clock_check(offset_s, took_s)
    assert found.level == level
    assert ("behind" if offset_s < 0 else "ahead of") in found.seen
    assert bool(found.change) is (level != "ok")


@pytest.mark.parametrize(
    ("pings", "level"), [([0.1, 0.2, 900.0], "ok"), ([30.0, 30.0, 1.0], "warn"), ([2_000.0] * 3, "fail")]
)
def test_a_ping_counts_by_its_median(pings: list[float], level: str) -> None:
    assert ping_check(pings).level == level


def test_every_command_of_every_role_has_arguments_to_try_it_with() -> None:
    patterns = Patterns(Keys("q"))
    commands = {command for role in Role for grant in grants(role, patterns) for command in grant.commands}
    assert commands == set(ARGUMENTS)
    assert commands >= CLUSTERED


def test_keys_to_try_are_keys_that_the_rules_are_about() -> None:
    keys = Keys("a*b", "x?:")
    tried = attempts(Role.PRODUCER, keys, clustered=False)
    assert ("xadd", keys.lane("high"), "*", "body", "v") in tried
    assert ("get", keys.request("doctor")) in tried
    assert ("eval", "x", "1", f"{keys.base}doctor") in tried
    assert not any(words[0] == "cluster" for words in tried)
    assert ("cluster", "slots") in attempts(Role.PRODUCER, keys, clustered=True)


def test_access() -> None:
    nothing: dict[Role, list[tuple[str, ...]]] = {role: [] for role in Role}
    assert access_check("default", nothing, open_door=True).level == "warn"
    assert access_check("default", nothing, open_door=False).level == "ok"
    some = dict(nothing)
    some[Role.WORKER] = [("xadd", "{q}:dead", "*")] * 5
    found = access_check("me", some, open_door=True)
    assert (found.level, "worker lacks xadd {q}:dead *, " in found.seen, "and 2 more" in found.seen) == (
        Level.OK,
        True,
        True,
    )
    none = access_check("me", {role: [("ping",)] for role in Role}, open_door=False)
    assert (none.level, "streamfleet acl" in none.change) == (Level.WARN, True)


def test_commands_of_its_advice_are_taken_with_the_option_for_a_queue(repository: Path) -> None:
    texts = [
        file.read_text(encoding="utf-8")
        for file in (repository / "operator/streamfleet/operator/doctor").iterdir()
        if file.is_file()
    ]
    told = {words for text in texts for words in re.findall(r"`streamfleet ([^`{]+)`", text)}
    assert {"audit --repair", "dead purge --reason expired", "queue show"} <= told
    assert [why for words in told for why in refusal([*shlex.split(words), "--queue", "q"])] == []


def worker(state: str = "ready", silent_s: float = 1.0, running: int = 0) -> WorkerView:
    return WorkerView("w", running, state, "simulated", ["m"], 8, silent_s)


@pytest.mark.parametrize(
    ("workers", "waits", "level"),
    [
        ([], 0, "warn"),
        ([], 3, "fail"),
        ([worker("starting")], 3, "fail"),
        ([worker("starting")], 0, "warn"),
        ([worker(), worker("unfit")], 3, "warn"),
        ([worker(), worker(silent_s=60.0, running=2)], 3, "warn"),
        ([worker(), worker(silent_s=60.0)], 3, "ok"),
    ],
)
def test_workers(workers: list[WorkerView], waits: int, level: str) -> None:
    lane = LaneView(Lane.HIGH, waits, waits, 0, 0, 9.0 if waits else None, None)
    found = workers_check(Snapshot("q", 0, [lane], workers, 0, 0, 0, {}))
    assert found.level == level
    assert bool(found.change) is (level != "ok")


def test_a_late_lane_is_told_with_its_reason() -> None:
    late = LaneView(Lane.HIGH, 3, 3, 0, 0, 90.0, -4.0)
    found = lateness_check(Snapshot("q", 0, [late], [worker()], 0, 0, 0, {}))
    assert found.level == "warn"
    assert "the oldest came 1 min 30 s ago; high: late: nothing wrong" in found.seen
