"""`workers`, `trace`, `doctor` and the reasons of `backlog`, as processes against a real Redis."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from streamfleet.common.keys import Keys
from streamfleet.operator.access_rules import Patterns, Role, rules
from streamfleet.operator.commands.common import connected, queue_settings
from streamfleet.operator.doctor import queue
from streamfleet.operator.doctor.check import Check
from tests.integration.cli_processes import WITHIN_S, started, streamfleet, worker
from tests.unit.deploy_page import refusal
from tests.waiting import eventually_blocking

PASSWORD = "let-me-in"


@pytest.fixture
def raw(any_redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(any_redis_url, decode_responses=True) as client:
        yield client


def doctor(url: str, *options: str) -> dict[str, dict[str, str]]:
    """Its findings by name."""
    found = json.loads(streamfleet(url, "doctor", "--json", *options).stdout)
    return {check["name"]: check for check in found}


def release(raw: redis.Redis) -> tuple[int, ...]:
    info: Any = raw.info("server")
    return tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])


def test_workers(redis_url: str) -> None:
    assert streamfleet(redis_url, "workers").stdout.startswith("no worker is alive")
    with worker(redis_url, settings={"STREAMFLEET_LEASE_MS": "1000"}, speed=0.1):
        slow = ("--prompt", "hi", "--max-tokens", "2000", "--lane", "high", "--id", "r-1")
        streamfleet(redis_url, "enqueue", *slow)

        def holds() -> bool:
            views = json.loads(streamfleet(redis_url, "workers", "--json").stdout)
            return [(view["held"], view["oldest_held_s"] is not None) for view in views] == [({"high": 1}, True)]

        eventually_blocking(holds, WITHIN_S, "it says for how long it has had its request")
        (view,) = json.loads(streamfleet(redis_url, "workers", "--json").stdout)
        assert (view["name"], view["takes_requests"], view["why_not"], view["running"]) == ("w1", True, None, 1)
        assert view["version"]
        assert 0 <= view["age_s"] < WITHIN_S
        assert "high 1" in streamfleet(redis_url, "workers").stdout
        running = json.loads(streamfleet(redis_url, "trace", "r-1", "--json").stdout)
        assert (running["state"], running["worker"]) == ("running", "w1")
        streamfleet(redis_url, "cancel", "r-1")


def test_workers_goes_on_until_ctrl_c(redis_url: str) -> None:
    with started(redis_url, "workers", "--watch", "--json", "--interval", "0.1") as watching:
        assert watching.stdout is not None
        assert [json.loads(watching.stdout.readline()) for _ in range(2)] == [[], []]
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=WITHIN_S)
        assert (watching.returncode, errors) == (130, "")


def test_trace(redis_url: str) -> None:
    streamfleet(redis_url, "enqueue", "--prompt", "hi", "--id", "r-1", "--lane", "high", "--ttl", "1h")
    found = streamfleet(redis_url, "trace", "r-1")
    assert found.returncode == 0
    assert "not delivered yet" in found.stdout
    missing = streamfleet(redis_url, "trace", "r-2")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("request r-2: no client enqueued it")


def test_backlog_says_why(redis_url: str) -> None:
    streamfleet(redis_url, "enqueue", "--prompt", "hi", "--lane", "high")
    assert "high: will be late: no worker is alive" in streamfleet(redis_url, "backlog").stdout
    seen = json.loads(streamfleet(redis_url, "backlog", "--json").stdout)
    assert {row["lane"]: row["cause"] for row in seen["lanes"]}["high"] == "no_worker"
    streamfleet(redis_url, "pause", "high")
    assert "it has been paused for" in streamfleet(redis_url, "backlog").stdout


def test_backlog_tells_the_pace_of_workers_that_are_at_work_on_what_waits(redis_url: str) -> None:
    with worker(redis_url, settings={"STREAMFLEET_LEASE_MS": "1000", "BATCH_SIZE": "1"}):
        for number in range(8):
            slow = ("--prompt", "hi", "--max-tokens", "3000", "--lane", "high", "--id", f"r-{number}")
            streamfleet(redis_url, "enqueue", *slow)

        def waits() -> bool:
            lanes = json.loads(streamfleet(redis_url, "backlog", "--json").stdout)["lanes"]
            return any(lane["running"] and lane["ready"] for lane in lanes)

        eventually_blocking(waits, WITHIN_S, "some run and some wait")
        eventually_blocking(
            lambda: "taken/s" in streamfleet(redis_url, "backlog").stdout, WITHIN_S, "the pace is known after a second"
        )
        for number in range(8):
            streamfleet(redis_url, "cancel", f"r-{number}")


def test_doctor_on_a_good_queue(any_redis_url: str, raw: redis.Redis) -> None:
    with worker(any_redis_url, settings={"STREAMFLEET_LEASE_MS": "1000"}):
        # The first sign of life may come a moment before the worker is ready.
        eventually_blocking(lambda: doctor(any_redis_url)["workers"]["level"] == "ok", WITHIN_S, "a worker is ready")
        ended = streamfleet(any_redis_url, "doctor")
        assert ended.returncode == 0, ended.stdout
        found = doctor(any_redis_url)
    assert not {name for name, check in found.items() if check["level"] == "fail"}
    names = {"version", "eviction", "memory", "persistence", "background", "replication", "access", "clock", "ping"}
    assert names | {
        "keys",
        "groups",
        "expiry",
        "mistyped",
        "other queues",
        "workers",
        "configuration",
        "lanes",
    } == set(found)
    good = ("keys", "groups", "expiry", "workers", "lanes", "eviction", "background", "replication")
    assert {found[name]["level"] for name in good} == {"ok"}, found
    assert found["access"]["level"] == ("unknown" if release(raw) < (7, 0) else "warn")
    assert found["version"]["level"] == ("warn" if release(raw) < (7, 0) else "ok")


def test_doctor_finds_what_is_broken(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.hset("{default}:result:endless", "status", "failed")
        client.xadd("{other}:lane:high", {"body": "{}"})
        client.xadd("{default}:lane:high", {"body": "{}"})
        client.xgroup_create("{default}:lane:high", "workers", "9999999999999-0")
        found = doctor(redis_url)
        assert found["groups"]["level"] == "fail"
        assert "beyond the end" in found["groups"]["seen"]
        assert (found["expiry"]["level"], "never expires" in found["expiry"]["seen"]) == ("warn", True)
        assert found["other queues"]["seen"].startswith("other:")
        assert (found["workers"]["level"], found["workers"]["change"]) == (
            "fail",
            "start one with `streamfleet worker`",
        )
        client.set("{default}:counts", "of another type")
    ended = streamfleet(redis_url, "doctor")
    assert ended.returncode == 1
    assert "fail     keys" in ended.stdout
    assert "audit --repair" in ended.stdout


def test_commands_that_doctor_names_are_for_the_queue_that_it_looked_at(redis_url: str) -> None:
    def told(url: str, *options: str, **settings: str) -> list[list[str]]:
        found = json.loads(streamfleet(url, "doctor", "--json", *options, **settings).stdout)
        texts = [text for check in found for text in check.values()]
        return [shlex.split(words) for text in texts for words in re.findall(r"`streamfleet ([^`]+)`", text)]

    with redis.Redis.from_url(redis_url) as client:
        client.xgroup_create("{it's}:lane:high", "workers", "9999999999999-0", mkstream=True)
        client.hset("{it's}:meta", mapping={"lease_ms": "20000", "max_deliveries": "4"})
        client.xadd("{new's}:lane:high", {"body": "{}"})
        try:
            client.execute_command("ACL", "SETUSER", "most", "on", f">{PASSWORD}", "~*", "+@all", "-scan")
            url = redis_url.replace("redis://", f"redis://most:{PASSWORD}@")
            commands = told(url, "--queue", "it's") + told(
                url, STREAMFLEET_QUEUE="it's", STREAMFLEET_LEASE_MS="30000", STREAMFLEET_MAX_DELIVERIES="9"
            )
        finally:
            client.execute_command("ACL", "DELUSER", "most")
        others = told(redis_url, "--queue", "default", STREAMFLEET_QUEUE="it's")
    assert ["queue", "set", "lease_ms=30000", "max_deliveries=9", "--queue", "it's"] in commands
    assert {"acl", "audit", "queue", "worker"} == {words[0] for words in commands}
    assert {tuple(words[-2:]) for words in commands} == {("--queue", "it's")}
    assert {tuple(words[-2:]) for words in others} == {("--queue", "default"), ("--queue", "new's")}
    assert [why for words in commands + others for why in refusal(words)] == []


CHATS = ("chat-1", "chat-2", "images", "imgaes")
MISTYPED = {
    "{default}:lane:urgent": "{default}:lane: and one of critical, high, normal, low",
    "{default}:lane:High": "{default}:lane:high",
    "default:lane:high": "{default}:lane:high",
    "{default}lane:high": "{default}:lane:high",
    "{default}:low": "{default}:lane:low",
    "{Default}:lane:high": "{default}:lane:high, as no worker has ever served {Default}:",
    "lane:normal": "{default}:lane:normal",
}


def test_doctor_and_audit_find_what_a_mistyped_xadd_made(any_redis_url: str, raw: redis.Redis) -> None:
    """Other programs' streams, and those of other queues that have workers, are none of their business."""
    with worker(any_redis_url, settings={"STREAMFLEET_QUEUE": "images"}, workers="{images}:workers"):
        asked = ("--prompt", "hi", "--max-tokens", "2", "--queue", "images", "--stream")
        assert streamfleet(any_redis_url, "enqueue", *asked).returncode == 0
    assert raw.xadd("{images}:lane:high", {"body": "{}"}), "it waits for the next worker"
    for name in ("orders", "{traffic}:lane:left", "notifications:high", "default:low", "lane:low"):
        raw.xadd(name, {"to": "somebody"})
    raw.xdel("{default}:lane:emptied", raw.xadd("{default}:lane:emptied", {"body": "{}"}))
    good = doctor(any_redis_url)["mistyped"]
    assert (good["level"], good["seen"]) == ("ok", "all streams looked at: none has nearly the name of a lane")
    assert streamfleet(any_redis_url, "audit").returncode == 0
    for number, name in enumerate(MISTYPED, 1):
        for _ in range(number):
            raw.xadd(name, {"id": "r-42", "body": '{"prompt": "hi"}'})
    ended, found = streamfleet(any_redis_url, "doctor"), doctor(any_redis_url)["mistyped"]
    assert (ended.returncode, found["level"]) == (1, "fail")
    for words in (("audit",), ("audit", "--repair", "--yes")):
        audited = streamfleet(any_redis_url, *words)
        assert audited.returncode == 1
        for number, (name, meant) in enumerate(MISTYPED.items(), 1):
            held = f"{number} {'entry' if number == 1 else 'entries'}"
            line = f"'{name}' holds {held} that no worker sees; meant was {meant}"
            assert line in found["seen"]
            assert line in ended.stdout
            assert line in audited.stderr
    assert all(raw.xlen(name) == number for number, name in enumerate(MISTYPED, 1)), "nothing is repaired by a guess"


def test_doctor_names_no_worker_for_a_queue_with_another_prefix(any_redis_url: str, raw: redis.Redis) -> None:
    raw.xadd("prod:{chat}:lane:high", {"body": "{}"})
    change = doctor(any_redis_url, "--queue", "other")["mistyped"]["change"]
    assert change.startswith("a worker with STREAMFLEET_KEY_PREFIX set to what is before `{`; XADD")


def test_doctor_warns_of_queues_that_wait_for_their_first_worker(any_redis_url: str, raw: redis.Redis) -> None:
    def level(queue: str, name: str) -> tuple[str, str, int]:
        ended = streamfleet(any_redis_url, "doctor", "--queue", queue, "--json")
        found = {check["name"]: check for check in json.loads(ended.stdout)}
        return found[name]["level"], found[name]["seen"], ended.returncode

    for each in CHATS:
        raw.xadd(f"{{{each}}}:lane:high", {"body": "{}"})
    seen = "; ".join(f"'{{{q}}}:lane:high' holds 1 entry, and no worker has ever served {{{q}}}:" for q in CHATS)
    assert level("other", "mistyped") == ("warn", seen, 0)
    start = ", ".join(f"`streamfleet worker --queue {q}`" for q in CHATS[:3])
    assert doctor(any_redis_url, "--queue", "other")["mistyped"]["change"].startswith(f"{start} and 1 more; XADD")
    never = "0 alive, 0 ready; 1 requests wait, and none has ever served this queue"
    assert level("chat-1", "workers") == ("warn", never, 0)
    assert streamfleet(any_redis_url, "audit", "--queue", "chat-1").returncode == 0
    with worker(any_redis_url, settings={"STREAMFLEET_QUEUE": "chat-1"}, workers="{chat-1}:workers"):
        assert raw.xinfo_groups("{chat-1}:lane:high")
    raw.xadd("{chat-1}:lane:high", {"body": "{}"})
    assert level("chat-1", "workers")[::2] == ("fail", 1), "its worker has gone"
    assert level("chat-2", "mistyped")[::2] == ("warn", 0), "another digit is another queue"
    raw.xgroup_create("{images}:lane:high", "workers", "0")
    assert level("chat-2", "mistyped")[::2] == ("fail", 1)
    for each in ("chat-2", "imgaes"):
        meant = (
            "holds 1 entry that no worker sees; meant was {images}:lane:high, as no worker has ever served {imgaes}:"
        )
        assert meant in level(each, "mistyped")[1]


def test_doctor_says_when_it_has_not_looked_at_all_streams(
    any_redis_url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.mset({f"other:{number}": "" for number in range(5_000)})
    monkeypatch.setattr(queue, "MISTYPED_ROUNDS", 1)
    with asyncio.Runner() as runner:
        seen = runner.run(_mistyped(any_redis_url)).seen
    assert seen == "the streams among 2000 keys of each server looked at: none has nearly the name of a lane"


async def _mistyped(url: str) -> Check:
    async with connected(queue_settings(url, None)) as broker:
        return await queue.mistyped_check(broker)


def test_doctor_says_what_a_user_may_not_do(redis_url: str) -> None:
    keys = Patterns(Keys("default"))
    with redis.Redis.from_url(redis_url) as admin:
        try:
            asks = "+acl|whoami", "+acl|dryrun"
            for name, words in (
                ("asking", [*rules(Role.OPERATOR, keys), *asks]),
                ("worker", rules(Role.WORKER, keys)),
                ("operator", rules(Role.OPERATOR, keys)),
                ("nearly", [*(word for word in rules(Role.OPERATOR, keys) if "+rename" not in word), *asks]),
            ):
                admin.execute_command("ACL", "SETUSER", name, "reset", *words, f">{PASSWORD}")
            url = redis_url.replace("redis://", "redis://{}:" + PASSWORD + "@")
            asked = doctor(url.format("asking"))["access"]
            assert asked["level"] == "ok"
            assert asked["seen"].startswith("user asking can do the job of operator, autoscaler; producer lacks")
            assert "worker lacks client unblock 1" in asked["seen"]
            nearly = doctor(url.format("nearly"))["access"]["seen"]
            assert "can do the job of autoscaler; " in nearly
            assert "operator lacks rename {default}:doctor {default}:doctor" in nearly
            unasked = doctor(url.format("worker"))
            assert unasked["access"]["level"] == "unknown"
            assert "+acl|dryrun" in unasked["access"]["change"]
            assert unasked["expiry"]["level"] == "unknown"
            operator = doctor(url.format("operator"))
            assert {name for name, check in operator.items() if check["level"] == "unknown"} == {"access"}
        finally:
            admin.execute_command("ACL", "DELUSER", "asking", "worker", "operator", "nearly")


def test_doctor_without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMFLEET_LOG_LEVEL", "critical")
    ended = streamfleet("redis://me:s3cret@127.0.0.1:1/0", "doctor")
    assert ended.returncode == 1
    assert ended.stdout.startswith("fail     connection    no answer from Redis at redis://127.0.0.1:1/0")
    assert "s3cret" not in ended.stdout + ended.stderr
