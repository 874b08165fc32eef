"""Requests that ask to be refused, or to go into another lane, if they will likely be late; and what they are told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest, LikelyLate
from streamfleet.common.protocol import LANES, Lane
from streamfleet.producer import Client
from streamfleet.producer.sender import MOST_AT_ONCE
from tests.broker import Broker
from tests.integration.cli_processes import streamfleet
from tests.waiting import eventually

BODY = {"prompt": "hi"}
RUN_MS = 500


@pytest.fixture
async def fleet(redis_url: str) -> AsyncIterator[Client]:
    """A client of a queue with 50 requests in lane `high`, of which ten are taken a second."""
    async with Client(redis_url) as client:
        broker = Broker.of(client.broker)
        await broker.ensure_groups()
        await client.enqueue_many([{"body": BODY, "lane": "high", "ttl_ms": 4_000 + number} for number in range(50)])
        await broker.pull("w1", 0)
        await set_pace(broker)
        yield client


async def set_pace(broker: Broker, **changes: Any) -> None:
    lanes = [{"came": 0, "gone": 0, "who": {}, "spans": {}} for _ in LANES]
    pace = {"at": await broker.now_ms(), "took": 10_000, "left": 100, "span": 10_000, "run": RUN_MS, "lanes": lanes}
    await broker.connection.command("SET", broker.keys.pace, json.dumps(pace | changes))


async def in_lanes(client: Client) -> dict[str, int]:
    audit = await Broker.of(client.broker).audit(0)
    return {row.lane.value: row.length for row in audit.lanes if row.length}


async def test_what_would_be_late_is_refused_and_not_enqueued(fleet: Client) -> None:
    with pytest.raises(LikelyLate) as raised:
        await fleet.enqueue(BODY, lane="high", ttl_ms=5_000, if_late="refuse")
    error = raised.value
    assert error.lane == "high"
    assert [error.wait_s, error.run_s, error.late_s] == pytest.approx([5.1, 0.5, 0.6])
    assert await in_lanes(fleet) == {"high": 50}


async def test_what_will_be_in_time_is_enqueued_and_not_judged_again(fleet: Client) -> None:
    handle = await fleet.enqueue(BODY, lane="high", ttl_ms=6_000, if_late="refuse")
    await fleet.enqueue(BODY, lane="high", ttl_ms=1_000, if_late="refuse")
    assert await in_lanes(fleet) == {"high": 52}
    await set_pace(Broker.of(fleet.broker), left=1)
    assert (await Broker.of(fleet.broker).pull("w1", 0)).dropped == 0
    assert (await handle.status()).state == "queued"


async def test_a_deadline_by_the_clock_is_judged_too(fleet: Client) -> None:
    now = await fleet.broker.now_ms()
    await fleet.enqueue(BODY, lane="high", deadline=now + 8_000, if_late="refuse")
    with pytest.raises(LikelyLate):
        await fleet.enqueue(BODY, lane="high", deadline=now + 5_000, if_late="refuse")


async def test_what_would_be_late_goes_into_the_least_urgent_lane(fleet: Client) -> None:
    late = await fleet.enqueue(BODY, lane="high", ttl_ms=5_000, if_late="downgrade")
    in_time = await fleet.enqueue(BODY, lane="high", ttl_ms=9_000, if_late="downgrade")
    assert (late.entry.split(":")[0], in_time.entry.split(":")[0]) == ("low", "high")


async def test_requests_of_one_call_are_judged_behind_each_other(fleet: Client) -> None:
    ask = {"body": BODY, "lane": "high", "ttl_ms": 8_000, "if_late": "downgrade"}
    many = MOST_AT_ONCE + 20
    handles = await fleet.enqueue_many([ask | {"ttl_ms": 11_000}] * many)
    assert [handle.entry.split(":")[0] for handle in handles].count("low") == pytest.approx(many - 55, abs=1)
    with pytest.raises(LikelyLate):
        await fleet.enqueue_many([{"body": BODY}, ask | {"ttl_ms": 1, "if_late": "refuse"}])
    assert sum((await in_lanes(fleet)).values()) == 50 + many


async def test_a_request_that_is_in_the_queue_is_not_refused(fleet: Client) -> None:
    first = await fleet.enqueue(BODY, id="r1", lane="high", ttl_ms=6_000, if_late="refuse")
    await set_pace(Broker.of(fleet.broker), left=1)
    again = await fleet.enqueue(BODY, id="r1", lane="high", ttl_ms=6_000, if_late="refuse")
    assert (again.existing, again.entry) == (True, first.entry)


@pytest.mark.parametrize(("changes", "paused"), [({"at": 0}, False), ({"took": 0}, False), ({}, True)])
async def test_where_nobody_can_tell_it_is_enqueued(fleet: Client, changes: dict[str, int], paused: bool) -> None:
    broker = Broker.of(fleet.broker)
    await set_pace(broker, **changes)
    if paused:
        await broker.pause([Lane.HIGH])
    await fleet.enqueue(BODY, lane="high", ttl_ms=1, if_late="refuse")
    assert await in_lanes(fleet) == {"high": 51}


async def test_who_waits_sees_place_and_time(fleet: Client) -> None:
    handle = await fleet.enqueue(BODY, lane="high", ttl_ms=4_020)
    await Broker.of(fleet.broker).pull("w1", 0)
    await set_pace(Broker.of(fleet.broker))
    status = await handle.status()
    assert (status.state, status.expected_s) == ("queued", ((status.place or 0) + 1) / 10)
    assert 20 <= (status.place or 0) <= 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"if_late": "refuse"}, "if_late: needs a deadline or ttl_ms"),
        ({"if_late": "wait", "ttl_ms": 1}, "if_late: must be refuse or downgrade, not 'wait'"),
    ],
)
async def test_what_cannot_be_judged_is_an_error(fleet: Client, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await fleet.enqueue(BODY, **options)


async def test_many_are_refused_when_they_are_staged(fleet: Client) -> None:
    broker = Broker.of(fleet.broker)
    asks = [{"body": BODY, "lane": "high", "ttl_ms": 5_000, "if_late": "refuse"}]
    results = fleet.run_many(asks)
    pending = asyncio.ensure_future(anext(results))

    async def refused() -> bool:
        return (await broker.pull("w1", 0)).dropped == 1

    await eventually(refused, 10, "it was refused")
    assert ((await pending).error or {})["code"] == "likely_late"
    with pytest.raises(InvalidRequest, match="if_late: must be refuse"):
        await anext(fleet.run_many([asks[0] | {"if_late": "downgrade"}]))


def full_lane(url: str, left: int = 100) -> None:
    """50 requests in lane `high`, of which ten are taken a second; or as many in ten seconds as `left` says."""

    async def fill() -> None:
        async with Client(url) as client:
            broker = Broker.of(client.broker)
            await broker.ensure_groups()
            asks = [{"body": BODY, "lane": "high", "ttl_ms": 60_000 + number} for number in range(50)]
            await client.enqueue_many(asks)
            await broker.pull("w1", 0)
            await set_pace(broker, left=left)

    asyncio.run(fill())


def test_the_command_line_refuses_with_the_expected_time(redis_url: str) -> None:
    full_lane(redis_url)
    words = ("enqueue", "--prompt", "hi", "--lane", "high", "--if-late", "refuse")
    refused = streamfleet(redis_url, *words, "--deadline", "70s", "--id", "late")
    assert (refused.returncode, refused.stdout) == (0, "late\n"), "5 s of waiting are in time"
    full_lane(redis_url, left=1)
    refused = streamfleet(redis_url, *words, "--ttl", "70s", "--id", "later")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "lane high: it would be taken in 1020.0 s, and would run for 0.5 s" in refused.stderr
    assert "s after its deadline. Give it more time, or try again later" in refused.stderr
    assert "has no result" in streamfleet(redis_url, "result", "later").stderr
    unbounded = streamfleet(redis_url, *words)
    assert (unbounded.returncode, "needs a deadline" in unbounded.stderr) == (2, True)


def test_the_command_line_says_which_lane_it_takes_instead(redis_url: str) -> None:
    full_lane(redis_url, left=1)
    words = ("enqueue", "--prompt", "hi", "--lane", "high", "--if-late", "downgrade")
    told = streamfleet(redis_url, *words, "--ttl", "70s", "--id", "late")
    assert (told.returncode, told.stdout) == (0, "late\n")
    assert told.stderr == "request late would likely be late in lane high: it is in lane low\n"
    in_time = streamfleet(redis_url, *words, "--deadline", "10h", "--id", "in-time")
    assert (in_time.returncode, in_time.stdout, in_time.stderr) == (0, "in-time\n", "")


def test_lines_of_a_file_are_refused_by_a_worker(redis_url: str, tmp_path: Path) -> None:
    """The first pull of the worker judges them: the queue's pace says one request in ten seconds."""
    full_lane(redis_url, left=1)
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    source.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}))
    words = ("batch", str(source), str(out), "--lane", "high", "--if-late")
    wrong = streamfleet(redis_url, *words, "downgrade", "--deadline", "1m")
    assert (wrong.returncode, "stay in one lane" in wrong.stderr) == (2, True)
    wrong = streamfleet(redis_url, *words, "refuse")
    assert (wrong.returncode, "needs --deadline" in wrong.stderr) == (2, True)
    stop = threading.Event()
    judge = threading.Thread(target=asyncio.run, args=(_stage_until(redis_url, stop),))
    judge.start()
    try:
        done = streamfleet(redis_url, *words, "refuse", "--deadline", "1m")
    finally:
        stop.set()
        judge.join()
    assert done.returncode == 1
    assert json.loads((tmp_path / "out.errors.jsonl").read_text())["error"]["code"] == "likely_late"


async def _stage_until(url: str, stop: threading.Event) -> None:
    """Do what an idle worker does without room: stage what comes."""
    async with Client(url) as client:
        broker = Broker.of(client.broker)
        while not stop.is_set():
            await set_pace(broker, left=1)
            await broker.pull("w1", 0)
            await asyncio.sleep(0.01)
