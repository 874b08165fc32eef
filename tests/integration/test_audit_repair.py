"""`streamfleet audit --repair` on real servers, beside real workers, and for those who wait."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis
import redis.asyncio
from structlog.testing import capture_logs

from streamfleet.common.errors import BrokerUnavailable
from streamfleet.common.keys import GROUP, Keys
from streamfleet.operator.repair import Inspection
from streamfleet.producer import Client
from tests.broker import Broker
from tests.integration.cli_processes import streamfleet
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.waiting import eventually

KEYS = Keys("default")
LANE = KEYS.lane("normal")
BODY = {"prompt": "hi", "max_tokens": 3}


def test_a_broken_queue_is_mended_line_by_line(any_redis_url: str) -> None:
    with redis.Redis.from_url(any_redis_url) as raw:
        for number in range(5):
            streamfleet(any_redis_url, "enqueue", "--prompt", "hi", "--id", f"r{number}")
        first = raw.xrange(LANE)[0][0]
        raw.xgroup_create(LANE, GROUP, "$")
        raw.set(KEYS.ready("high"), "by hand")
        raw.xdel(LANE, first)
        looked = streamfleet(any_redis_url, "audit")
        assert (looked.returncode, looked.stdout) == (1, "")
        assert "1 of another type than streamfleet's (string) ({default}:ready:high)" in looked.stderr
        assert "`streamfleet audit --repair` mends" in looked.stderr

        mended = streamfleet(any_redis_url, "audit", "--repair")
        assert mended.returncode == 0, mended.stderr
        lines = mended.stdout.splitlines()
        assert lines[0].endswith("({default}:ready:high): renamed")
        assert any(line.startswith("lane normal: 4 delivered, but neither") for line in lines)
        assert any(line.endswith("without a result (r0): ended as dead") for line in lines)
        assert lines[-1].endswith("outstanding=4")
        again = streamfleet(any_redis_url, "audit", "--repair", "--json")
        assert json.loads(again.stdout)["found"] == []
        assert streamfleet(any_redis_url, "audit", "--repair").stdout.startswith("nothing to mend\n")
        result = streamfleet(any_redis_url, "result", "r0", "--json")
        assert "vanished" in result.stdout + result.stderr


def test_a_repair_on_a_terminal_asks_first(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    streamfleet(redis_url, "enqueue", "--prompt", "hi")
    with redis.Redis.from_url(redis_url) as raw:
        raw.set(KEYS.wake, "by hand")
        terminal = Mock(isatty=Mock(return_value=True), readline=Mock(return_value="n\n"))
        monkeypatch.setattr("sys.stdin", terminal)
        monkeypatch.setattr("typer.confirm", Mock(side_effect=SystemExit(1)))
        assert streamfleet(redis_url, "audit", "--repair").returncode == 1
        assert raw.get(KEYS.wake) == b"by hand"
        assert streamfleet(redis_url, "audit", "--repair", "--yes").returncode == 0
        assert raw.type(KEYS.wake) == b"stream"


def test_a_quick_audit_only_counts(redis_url: str) -> None:
    streamfleet(redis_url, "enqueue", "--prompt", "hi")
    with redis.Redis.from_url(redis_url) as raw:
        raw.hset(KEYS.tries, "nonsense", 1)
    assert streamfleet(redis_url, "audit", "--quick").returncode == 0
    assert streamfleet(redis_url, "audit").returncode == 1
    assert streamfleet(redis_url, "audit", "--quick", "--repair").returncode == 2


async def damage(raw: redis.asyncio.Redis, chance: random.Random) -> str:
    """Something that loses no body, done by hand while workers run."""
    ready, delayed = KEYS.ready("normal"), KEYS.delayed
    kind = chance.choice(["ready", "delayed", "$", "0", "destroy", "ack", "shared"])
    if kind in ("ready", "delayed"):
        await raw.delete(ready if kind == "ready" else delayed)
    elif kind in ("$", "0"):
        await raw.xgroup_setid(LANE, GROUP, kind)
    elif kind == "destroy":
        await raw.xgroup_destroy(LANE, GROUP)
    elif kind == "ack":
        rows = cast("list[Any]", await raw.xpending_range(LANE, GROUP, "-", "+", 1))
        await raw.xack(LANE, GROUP, *(row["message_id"] for row in rows), "0-0")
    else:
        lost = [
            KEYS.wake,
            KEYS.waiting,
            KEYS.watch,
            KEYS.lane_states,
            KEYS.entries,
            KEYS.clock,
            KEYS.workers,
            KEYS.tries,
        ]
        await raw.delete(chance.choice(lost))
    return kind


async def test_live_workers_are_no_obstacle_to_a_repair(any_redis_url: str, any_raw_redis: redis.asyncio.Redis) -> None:
    """Broken again and again while two workers run and a client enqueues: every request has one result in the end."""
    chance = random.Random(7)
    async with (
        worker_inside(any_redis_url, small_engine(8), "w1"),
        worker_inside(any_redis_url, small_engine(8), "w2"),
        Client(any_redis_url) as fleet,
    ):
        fleet.mailbox._untrimmed = -(10**9)  # who was told is counted at the end
        handles = []
        for _ in range(8):
            handles += await fleet.enqueue_many([{"body": BODY} for _ in range(25)])
            await damage(any_raw_redis, chance)
            report = await Inspection(Broker.of(fleet.broker), mend=True).run()
            assert report.problems == []
        results = await asyncio.wait_for(asyncio.gather(*(handle.result() for handle in handles)), 40)
        assert {result.status for result in results} == {"succeeded"}
        await eventually(lambda: _settled(fleet), 10, "nothing is left")
        report = await Inspection(Broker.of(fleet.broker), mend=True).run()
        assert report.problems == []
        told = cast("list[Any]", await any_raw_redis.xrange(KEYS.reply(fleet.mailbox.name)))
        assert len({fields["id"] for _, fields in told}) == len(told) == len(handles)
        assert (await Broker.of(fleet.broker).audit()).ended["succeeded"] == len(handles)


@pytest.mark.parametrize(
    "name",
    ["ready:normal", "tries", "counts", "delayed", "wake", "waiting", "watch", "lanes", "clock", "dead"],
)
async def test_workers_wait_out_a_key_of_another_type(
    redis_url: str, raw_redis: redis.asyncio.Redis, name: str
) -> None:
    """Nothing is half done meanwhile: once the key is out of the way they go on, and nothing is missing."""
    key = f"{KEYS.base}{name}"
    async with worker_inside(redis_url, small_engine(4), "w1") as inside, Client(redis_url) as fleet:
        before = await fleet.enqueue_many([{"body": BODY} for _ in range(6)])
        await raw_redis.delete(key)
        await raw_redis.set(key, "by hand")
        after = await fleet.enqueue_many([{"body": BODY} for _ in range(6)])
        if name in ("tries", "dead"):  # the truth: it is not deleted by itself
            await eventually(lambda: _refused(fleet), 5, "Redis refused a script")
            await Inspection(Broker.of(fleet.broker), mend=True).run()
        results = await asyncio.wait_for(asyncio.gather(*(handle.result() for handle in before + after)), 20)
        assert {result.status for result in results} == {"succeeded"}
        assert not inside.life.done()
        await eventually(lambda: _settled(fleet), 10, "nothing is left")
        audit = await Broker.of(fleet.broker).audit()
        assert (audit.problems(), audit.counts.get("vanished", 0)) == ([], 0)


async def _refused(fleet: Client) -> bool:
    try:
        await Broker.of(fleet.broker).reclaim(60_000, 5)  # nothing is as old; sent once
    except BrokerUnavailable as error:
        assert "streamfleet audit --repair" in str(error)  # noqa: PT017 - it is what a person reads
        return True
    return False


async def _settled(fleet: Client) -> bool:
    return (await Broker.of(fleet.broker).audit()).outstanding == 0


async def test_who_waits_for_a_deleted_request_is_told(
    redis_url: str, raw_redis: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfleet.producer.slots.RECHECK_S", 0.2)
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.1)
    async with Client(redis_url) as fleet:
        gone, stays = await fleet.enqueue_many([{"body": BODY}, {"body": BODY}])
        waiting = asyncio.create_task(gone.result())
        assert not (await asyncio.wait({waiting}, timeout=0.5))[0]
        await raw_redis.xdel(LANE, gone.entry.partition(":")[2])
        result = await asyncio.wait_for(waiting, 10)
        assert result.error is not None
        assert (result.status, result.error["code"]) == ("dead", "vanished")
        assert await fleet.broker.result(stays.id) is None


async def test_who_waits_for_a_deleted_result_is_told(
    redis_url: str, raw_redis: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfleet.producer.slots.RECHECK_S", 0.1)
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.05)
    async with Client(redis_url) as fleet:
        handle = await fleet.enqueue(BODY)
        await handle.cancel()
        await raw_redis.delete(fleet.broker.keys.result(handle.id))
        result = await asyncio.wait_for(handle.result(), 10)
        assert result.error is not None
        assert (result.status, result.error["code"]) == ("dead", "vanished")


@pytest.mark.parametrize("broken", ["request:{}", "lane:low"])
async def test_a_broken_key_does_not_keep_others_from_their_results(
    redis_url: str, raw_redis: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """With a broken key, a client cannot ask if results may still come; a result that exists is found all the same."""
    monkeypatch.setattr("streamfleet.producer.slots.RECHECK_S", 0.05)
    async with Client(redis_url, notify=False, patience_s=0) as fleet:
        one, other = await fleet.enqueue_many([{"body": BODY, "lane": "low"}, {"body": BODY}])
        key = f"{fleet.broker.keys.base}{broken.format(one.id)}"
        await raw_redis.delete(key)
        await raw_redis.hset(key, "made", "by hand")
        waiting = [asyncio.create_task(handle.result()) for handle in (one, other)]
        with capture_logs() as logged:
            await eventually(
                lambda: "vanished_check_failed" in [entry["event"] for entry in logged], what="it was asked"
            )
        await raw_redis.hset(fleet.broker.keys.result(other.id), "status", "succeeded")
        assert (await asyncio.wait_for(waiting[1], 5)).ok
        assert not waiting[0].done()
        waiting[0].cancel()
        await asyncio.wait(waiting)


async def test_who_may_not_end_requests_waits_on(
    redis_url: str, raw_redis: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer's role may not write results: an operator's repair ends what was deleted."""
    monkeypatch.setattr("streamfleet.producer.slots.RECHECK_S", 0.1)
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.05)
    await raw_redis.acl_setuser(
        "asker", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-hsetnx", "-xrange"]
    )
    try:
        async with Client(redis_url.replace("://", "://asker:x@")) as fleet:
            handle = await fleet.enqueue(BODY)
            await raw_redis.xdel(LANE, handle.entry.partition(":")[2])
            waiting = asyncio.create_task(handle.result())
            await eventually(lambda: not fleet.mailbox._may_end, what="it was refused")
            assert not waiting.done()
            async with Client(redis_url) as operator:
                await Inspection(Broker.of(operator.broker), mend=True).run()
            assert (await asyncio.wait_for(waiting, 10)).status == "dead"
    finally:
        await raw_redis.acl_deluser("asker")
