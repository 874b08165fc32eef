"""heartbeat.lua and deregister.lua: who is there, and forgetting who is not; and the broker's reading operations."""

from __future__ import annotations

import json

from streamfleet.common.broker.types import Completion, EntryState, Retry
from streamfleet.common.keys import GROUP
from streamfleet.common.protocol import Lane, Status
from streamfleet.operator.snapshot import read_queue
from tests.scripts.harness import NOW, PATIENCE, Queue, submission
from tests.scripts.keyspace import text
from tests.scripts.mutants import fails_without


async def consumers(queue: Queue, lane: str = "high") -> set[str]:
    rows = await queue.command("XINFO", "CONSUMERS", queue.keys.lane(lane), GROUP)
    return {text(row[row.index(b"name") + 1]) for row in rows} - {"~"}


async def test_a_worker_is_known_by_its_sign_of_life(queue: Queue) -> None:
    assert await queue.broker.heartbeat("w1", {"engine": "simulated", "running": 3}) == {}
    written = (await queue.dump())["workers"]["w1"]
    assert json.loads(written) == {"engine": "simulated", "running": 3, "seen_ms": NOW}
    assert await queue.at(NOW + 5).broker.heartbeat("w1", {"running": 0}) == {}
    assert await queue.broker.workers() == {"w1": {"running": 0, "seen_ms": NOW + 5}}
    assert set(await queue.dump()) == {"workers"}


async def test_a_full_redis_still_takes_signs_of_life(queue: Queue) -> None:
    async with queue.full_memory():
        await queue.broker.heartbeat("w1", {})
    assert await queue.broker.workers() == {"w1": {"seen_ms": NOW}}


@fails_without("deregister: no watch of the gone")
async def test_a_worker_that_leaves_is_forgotten(queue: Queue) -> None:
    lease = await queue.running()
    await queue.broker.heartbeat("w1", {})
    await queue.complete("w1", lease)
    await queue.pull("w1")
    assert await consumers(queue) == {"w1"}
    assert await queue.broker.deregister("w1") == 1
    assert await consumers(queue) == set()
    assert not {"workers", "waiting", "watch"} & set(await queue.dump())


async def test_a_worker_that_holds_something_is_not_forgotten(queue: Queue) -> None:
    """Deleting a consumer would discard its pending rows, and so lose what it holds."""
    lease = await queue.running("low", "1000-0")
    await queue.broker.heartbeat("w1", {})
    async with queue.unchanged():
        assert await queue.broker.deregister("w1") == 0
    assert await consumers(queue, "low") == {"w1"}
    await queue.complete("w1", lease)
    assert await queue.broker.deregister("w1") == 1


@fails_without("deregister: not the living", "if seen < now - silent_ms then forget(flat[i]) end", "forget(flat[i])")
async def test_silent_workers_are_forgotten_and_living_ones_are_not(queue: Queue) -> None:
    await queue.broker.heartbeat("old", {})
    await queue.at(NOW + 60).broker.heartbeat("new", {})
    await queue.command("HSET", queue.keys.workers, "odd", "no JSON", "odder", "[1]", "oddest", '{"seen_ms":"x"}')
    assert await queue.at(NOW + 100).broker.deregister(silent_ms=50) == 4
    assert set(await queue.broker.workers()) == {"new"}
    assert await queue.at(NOW + 100).broker.deregister(silent_ms=50) == 0


async def test_a_worker_that_leaves_is_counted_once_when_it_was_silent_too(queue: Queue) -> None:
    await queue.broker.heartbeat("w1", {})
    assert await queue.at(NOW + 100).broker.deregister("w1", silent_ms=50) == 1


async def test_results_are_read_together_in_the_order_asked_for(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1")
    done = Completion(lease, Status.SUCCEEDED, {"response": '{"a":1}', "http_status": "200"})
    await queue.broker.complete("w1", [done])
    await queue.broker.cancel("r2", before_ms=60_000)
    unknown, first, second = await queue.broker.results(["r3", "r1", "r2"])
    assert unknown is None
    assert first is not None
    assert (first.status, first.response, first.worker, first.attempt) == ("succeeded", {"a": 1}, "w1", 1)
    assert second is not None
    assert (second.status, second.worker, second.attempt, second.http_status) == ("cancelled", None, 0, 499)


async def test_where_a_request_stands(queue: Queue) -> None:
    ((accepted),) = await queue.broker.enqueue([submission("r1")])
    assert await queue.broker.record("r1") == accepted.entry
    assert await queue.broker.record("r2") is None
    assert await queue.broker.entry_state(accepted.entry) == EntryState()
    await queue.hand_out()
    assert await queue.broker.entry_state(accepted.entry) == EntryState()
    await queue.broker.reclaim(0, 3)
    assert await queue.broker.entry_state(accepted.entry) == EntryState()
    lease = await queue.claim()
    assert await queue.broker.entry_state(accepted.entry) == EntryState("w1", 1)
    assert await queue.broker.running_by_worker(Lane.HIGH) == {"w1": 1}
    await queue.broker.retry_later("w1", [Retry(lease, 60_000, "{}")], 3)
    assert await queue.broker.entry_state(accepted.entry) == EntryState()
    ((second),) = await queue.broker.enqueue([submission("r2")])
    await queue.complete("w1", await queue.claim())
    assert await queue.broker.entry_state(second.entry) is None
    assert await queue.broker.entry_state(accepted.entry) == EntryState()
    await queue.command("FLUSHALL")
    assert await queue.broker.entry_state(accepted.entry) is None
    assert await queue.broker.running_by_worker(Lane.HIGH) == {}


async def test_the_oldest_entry_and_the_nearest_deadline(queue: Queue) -> None:
    async def nearest() -> tuple[int | None, int | None]:
        _, sample = await read_queue(queue.broker)
        return sample.oldest_ms.get(Lane.HIGH), sample.first_ms.get(Lane.HIGH)

    assert await nearest() == (None, None)
    await queue.add("high", "1000-0")
    await queue.add("high", "1001-0", deadline=NOW + 3)
    assert await nearest() == (1000, None)
    await queue.pull("w1", 0)
    # The first rank: without a deadline, enqueueing and patience.
    assert await nearest() == (1000, 1000 + PATIENCE)


async def test_notifications_are_read_from_where_one_stopped(queue: Queue) -> None:
    position, seen = await queue.broker.read_replies("me", "0-0", 1)
    assert (position, seen) == ("0-0", [])
    for number in range(3):
        lease = await queue.running("high", f"1000-{number}", id=f"r{number}", reply="me")
        await queue.broker.complete("w1", [Completion(lease, Status.SUCCEEDED, {}, "me")])
    position, seen = await queue.broker.read_replies("me", "0-0", 1)
    assert [request_id for request_id, _ in seen] == ["r0", "r1", "r2"]
    assert await queue.broker.read_replies("me", position, 1) == (position, [])
    await queue.broker.delete_replies("me")
    assert "reply:me" not in await queue.dump()


async def test_a_deleted_queue_leaves_no_key_and_no_other_queue_behind(queue: Queue) -> None:
    await queue.running()
    other = Queue(queue.connection, name="[qq]*")
    await other.add("high", "1000-0")
    assert await queue.broker.delete_queue() > 5
    assert await queue.command("DBSIZE") == 1
    assert await other.broker.delete_queue() == 1
