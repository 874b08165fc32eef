"""Odd values in a queue's keys, written by anybody: those who only look find them on each release, without a crash."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from streamfleet.common.connection import Connection
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import Lane
from streamfleet.operator.exporter.view import read_view
from streamfleet.operator.snapshot import take_snapshot
from tests.broker import Broker

KEYS = Keys("default")
SHARED = (KEYS.workers, KEYS.delayed, KEYS.counts, KEYS.dead, KEYS.lane(Lane.HIGH), KEYS.ready(Lane.HIGH))


@pytest.fixture
async def broker(any_redis_url: str) -> AsyncIterator[Broker]:
    opened = Broker(Connection(any_redis_url, patience_s=0), KEYS, QueueLimits())
    await opened.ensure_groups()
    yield opened
    await opened.close()


@pytest.mark.parametrize("key", SHARED)
async def test_a_key_of_another_type_is_told_as_such(broker: Broker, key: str) -> None:
    await broker.connection.command("DEL", key)
    await broker.connection.command("SET", key, "of another type")
    with pytest.raises(StreamfleetError, match="audit --repair"):
        await take_snapshot(broker)
    with pytest.raises(StreamfleetError, match="audit --repair"):
        await read_view(broker)


@pytest.mark.parametrize("key", SHARED)
async def test_a_worker_is_told_so_too_or_reads_on(broker: Broker, key: str) -> None:
    """Any other error would end it."""
    await broker.connection.command("DEL", key)
    await broker.connection.command("SET", key, "of another type")
    looks: list[Callable[[], Awaitable[object]]] = [
        lambda: broker.disown("w1", []),
        lambda: broker.keep({"a1": b"1 x"}),
        broker.head,
        broker.last_notice,
        broker.workers,
        lambda: broker.cancel_requests(1),
    ]
    for look in looks:
        with contextlib.suppress(StreamfleetError):
            await look()


async def test_lanes_are_paused_by_a_key_of_the_right_type_or_not_at_all(broker: Broker) -> None:
    await broker.connection.command("SET", KEYS.lane_states, "of another type")
    with pytest.raises(StreamfleetError, match="audit --repair"):
        await take_snapshot(broker)


async def test_odd_counts_and_ranks_are_passed_over(broker: Broker) -> None:
    await broker.connection.command("HSET", KEYS.counts, b"\xff", "1", "failed", "9" * 5_000, "succeeded", "2")
    await broker.connection.command("HSET", KEYS.lane_states, "paused:high", b"\xff" * 5_000)
    await broker.connection.command("ZADD", KEYS.ready(Lane.HIGH), "-inf", "junk", "inf", "more")
    snapshot, view = await take_snapshot(broker), await read_view(broker)
    assert (snapshot.ended["succeeded"], snapshot.ended["failed"]) == (2, 0)
    assert (view.ended["succeeded"], view.ended["failed"]) == (2, 0)
    (high,) = [lane for lane in snapshot.lanes if lane.lane is Lane.HIGH]
    assert high.nearest_s is not None
    assert high.nearest_s < 0
    assert high.paused_s is not None
