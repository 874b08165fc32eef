"""Cancels that are asked for: kept within bounds, met once, and no worker stops because of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from streamfleet.common.errors import BrokerUnavailable, NotPermitted, UnknownRequest
from streamfleet.common.keys import Keys
from streamfleet.operator.access_rules import Grant, Patterns, Role, grants
from streamfleet.worker.housekeeping import AT_ONCE, CancelRequestProcessor
from tests.broker import Broker
from tests.security.guarded import QUEUE, Guarded, rendered


class Asked(Broker):
    """A queue with asks of the test's own; remembers how many were read at once, and what was done."""

    def __init__(self, asks: list[str]) -> None:
        self.asks = [(f"{number}-0", request_id, "") for number, request_id in enumerate(asks, 1)]
        self.read: list[int] = []
        self.done: list[str] = []

    async def cancel_requests(self, most: int) -> list[tuple[str, str, str]]:
        self.read.append(most)
        return self.asks[:most]

    async def cancel(self, request_id: str, reason: str = "", before_ms: int | None = None) -> bool:  # noqa: ARG002 - as the broker has it
        self.done.append(f"cancel {request_id}")
        if request_id.startswith("unknown"):
            raise UnknownRequest(request_id)
        return True

    async def drop_cancel_request(self, stream_id: str) -> None:
        self.asks = [ask for ask in self.asks if ask[0] != stream_id]
        self.done.append(f"drop {stream_id}")


async def test_an_ask_is_dropped_after_its_cancel() -> None:
    """A worker that dies between the two leaves it to the next one."""
    queue = Asked(["r-1", "no name", "r-2"])
    with capture_logs() as logged:
        assert await CancelRequestProcessor(queue).process(10) == 3
    assert queue.done == ["cancel r-1", "drop 1-0", "drop 2-0", "cancel r-2", "drop 3-0"]
    assert [entry["event"] for entry in logged] == ["cancel_request_unusable"]
    assert "no name" not in str(logged)


async def test_more_are_read_together_as_long_as_they_are_small() -> None:
    queue = Asked([f"r-{number}" for number in range(100)])
    assert await CancelRequestProcessor(queue).process(100) == 100
    assert max(queue.read) == AT_ONCE
    queue = Asked(["r-1", "r-2", "r-3", "x" * 100_000, "x" * 100_000, "x" * 100_000, "r-4"])
    assert await CancelRequestProcessor(queue).process(100) == 7
    assert queue.read[:4] == [1, 2, 4, 1], "megabytes come one by one"


async def test_asks_for_ids_that_nobody_has_seen_hold_up_no_other_housekeeping() -> None:
    """All of the queue is looked through for each of them."""
    queue = Asked([f"unknown-{number}" for number in range(10)])
    with capture_logs() as logged:
        assert [await CancelRequestProcessor(queue).process(500) for _ in range(3)] == [4, 4, 2]
    assert {entry["reason"] for entry in logged} == {"the queue has never seen its id"}
    queue.asks = [(f"{number}-0", f"r-{number}", "60000") for number in range(10)]
    assert await CancelRequestProcessor(queue).process(500) == 4


@pytest.mark.parametrize("before", ["0", "-1", "1h", "1.5", "1" * 17])
async def test_an_ask_with_a_wrong_time_before_it_comes_is_refused_by_name(before: str) -> None:
    queue = Asked([])
    queue.asks = [("1-0", "r-1", before)]
    with capture_logs() as logged:
        await CancelRequestProcessor(queue).process(10)
    assert queue.done == ["drop 1-0"]
    assert "before_it_comes must be milliseconds" in logged[0]["reason"]


async def test_a_worker_that_may_not_read_what_is_asked_says_so(guarded: Guarded) -> None:
    patterns = Patterns(Keys(QUEUE))
    unknown = patterns.keys.cancel_requests
    less = [grant for grant in grants(Role.WORKER, patterns) if not any(unknown in key for key in grant.keys)]
    assert len(less) < len(grants(Role.WORKER, patterns))
    url = guarded.enlist_with(Role.WORKER, rendered([*less, Grant(("xlen",), patterns.of("%R~", unknown))]))
    async with guarded.broker() as admin, guarded.broker(url) as broker:
        await admin.ask_to_cancel("r-1")
        with pytest.raises(NotPermitted, match="streamfleet acl"):
            await CancelRequestProcessor(broker).process(10)


async def test_asks_that_nobody_sees_to_do_not_pile_up(guarded: Guarded) -> None:
    async with guarded.broker() as broker:
        broker.limits = replace(broker.limits, notices_cap=100)
        for number in range(500):
            await broker.ask_to_cancel(f"r-{number}")
        assert 100 <= await broker.connection.command("XLEN", broker.keys.cancel_requests) <= 300


@pytest.mark.parametrize("record", [b"x", b"a b", b"\xff \xff \xff"])
async def test_a_producer_that_writes_odd_records_stops_no_worker(guarded: Guarded, record: bytes) -> None:
    producer, worker = guarded.enlist(Role.PRODUCER), guarded.enlist(Role.WORKER)
    async with guarded.broker(producer) as asking, guarded.broker(worker) as broker:
        await asking.connection.command("SET", asking.keys.request("r-1"), record)
        await asking.ask_to_cancel("r-1")
        assert await CancelRequestProcessor(broker).process(10) == 1
        assert await broker.cancel_requests(10) == []
        result = await broker.result("r-1")
        assert result is not None
        assert result.status == "cancelled"
        assert await asking.record("r-1") is None


async def test_an_ask_that_cannot_be_met_is_dropped_and_the_next_one_is_met(guarded: Guarded) -> None:
    async with guarded.broker() as broker:
        await broker.connection.command("RPUSH", broker.keys.request("r-1"), "by hand")
        await broker.connection.command("XADD", broker.keys.lane("high"), "*", "id", "r-2", "body", "{}")
        for request_id in ("r-1", "r-2"):
            await broker.ask_to_cancel(request_id)
        with capture_logs() as logged:
            assert await CancelRequestProcessor(broker).process(10) == 2
        assert [entry["event"] for entry in logged] == ["cancel_request_unusable"]
        assert await broker.cancel_requests(10) == []
        assert await broker.result("r-2") is not None


async def test_streams_of_cancels_that_somebody_overwrote_are_waited_for(guarded: Guarded) -> None:
    """No worker dies of it: its housekeeping and its lease thread go on after any StreamfleetError."""
    async with guarded.broker() as broker:
        for key in (broker.keys.cancels, broker.keys.cancel_requests):
            await broker.connection.command("SET", key, "by hand")
        with pytest.raises(BrokerUnavailable, match="audit --repair"):
            await broker.cancel_requests(10)
        with pytest.raises(BrokerUnavailable, match="audit --repair"):
            await broker.last_notice()
