"""Requests that ask to be refused, or to go into another lane, if they will likely be late; and what they are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest, LikelyLate
from streamfleet.common.protocol import Lane
from streamfleet.producer import Client
from streamfleet.producer.lateness import MOST_AT_ONCE
from tests.broker import Broker
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
    pace = {"at": await broker.now_ms(), "took": 10_000, "left": 100, "span": 10_000, "came": [0] * 4, "run": RUN_MS}
    await broker.connection.command("HSET", broker.keys.sched, "pace", json.dumps(pace | changes))


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
