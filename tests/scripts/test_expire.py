"""expire.lua: what is too late ends when it is too late, however full the engines are."""

from __future__ import annotations

import json

from tests.scripts.harness import NOW, PATIENCE, Queue, entry
from tests.scripts.keyspace import changed


async def staged(queue: Queue, **fields: object) -> None:
    await queue.add("high", "1000-0", **fields)
    await queue.pull(wanted=0)


async def test_a_queued_request_ends_when_its_deadline_passes(queue: Queue) -> None:
    await staged(queue, id="r1", deadline=NOW + 10, reply="me", tenant="t1")
    before = await queue.dump()
    assert (await queue.at(NOW + 9).broker.expire())[0] == 0
    assert await queue.dump() == before
    assert (await queue.at(NOW + 10).broker.expire())[0] == 1
    after = await queue.dump()
    error = after["result:r1"].pop("error")
    assert json.loads(error)["error"]["code"] == "deadline_exceeded"
    assert after == changed(
        before,
        {
            "lane:high": None,
            "ready:high": None,
            "result:r1": {
                "status": "expired",
                "http_status": "504",
                "lane": "high",
                "entry": "high:1000-0",
                "attempt": "0",
                "enqueued_ms": "1000",
                "finished_ms": str(NOW + 10),
                "tenant": "t1",
                "notified:me": "1",
            },
            "reply:me": [{"id": "r1", "status": "expired"}],
            "dead": [
                {"_id": "r1", "_status": "expired", "_error": error, "_entry": "high:1000-0", "_attempts": "0"}
                | entry(id="r1", deadline=NOW + 10, reply="me", tenant="t1")
            ],
            "counts": {"staged": "1", "expired": "1"},
        },
    )


async def test_one_without_a_deadline_waits_on_past_its_rank(queue: Queue) -> None:
    await staged(queue)
    before = await queue.dump()
    assert (await queue.at(NOW + 10 * PATIENCE).broker.expire())[0] == 0
    assert await queue.dump() == before


async def test_a_running_one_is_its_workers_to_end(queue: Queue) -> None:
    await queue.running(deadline=NOW + 10)
    before = await queue.dump()
    assert (await queue.at(NOW + 10).broker.expire())[0] == 0
    assert await queue.dump() == before


async def test_attempts_so_far_are_told_and_forgotten(queue: Queue) -> None:
    await queue.retry("w1", await queue.running("high", "1000-0", deadline=NOW + 10))
    assert (await queue.at(NOW + 10).broker.expire())[0] == 1
    after = await queue.dump()
    assert (after["dead"][0]["_attempts"], "tries" in after) == ("1", False)


async def test_a_cancelled_one_stays_cancelled(queue: Queue) -> None:
    await staged(queue, id="r1", deadline=NOW + 10)
    await queue.broker.cancel("r1")
    assert (await queue.at(NOW + 10).broker.expire())[0] == 1
    after = await queue.dump()
    assert (after["result:r1"]["status"], after["counts"]) == ("cancelled", {"staged": "1", "cancelled": "1"})
    assert "dead" not in after


async def test_what_was_deleted_by_hand_is_left_to_the_pull(queue: Queue) -> None:
    await staged(queue, deadline=NOW + 10)
    await queue.command("XDEL", queue.keys.lane("high"), "1000-0")
    before = await queue.dump()
    assert (await queue.at(NOW + 10).broker.expire())[0] == 0
    assert await queue.dump() == before
    assert (await queue.pull()).dropped == 1


async def test_a_full_redis_still_expires(queue: Queue) -> None:
    await staged(queue, deadline=NOW + 10)
    async with queue.full_memory():
        assert (await queue.at(NOW + 10).broker.expire())[0] == 1
    assert (await queue.dump())["dead"][0]["_status"] == "expired"


async def test_every_lane_is_looked_through_and_what_is_in_time_stays(queue: Queue) -> None:
    await queue.add("high", "1000-0", deadline=NOW)
    await queue.add("high", "1000-1", deadline=NOW + 1)
    await queue.add("low", "1000-0", ttl=5)
    await queue.pull("w1", 0)
    assert (await queue.broker.expire())[0] == 2
    after = await queue.dump()
    assert [letter["_entry"] for letter in after["dead"]] == ["high:1000-0", "low:1000-0"]
    assert (after["ready:high"], "ready:low" in after) == ([("1000-1", NOW + 1)], False)


async def test_a_deadline_of_just_the_patience_is_left_to_the_pull(queue: Queue) -> None:
    await queue.add("high", "1000-0", ttl=PATIENCE)
    await queue.pull("w1", 0)
    later = queue.at(1000 + PATIENCE)
    assert (await later.broker.expire())[0] == 0
    assert (await later.pull()).dropped == 1


async def test_a_delayed_one_is_left_until_it_is_due(queue: Queue) -> None:
    assert await queue.retry("w1", await queue.running("high", "1000-0", deadline=NOW + 50), 40) == 1
    before = await queue.dump()
    assert (await queue.at(NOW + 60).broker.expire())[0] == 0
    assert await queue.dump() == before


async def test_one_call_is_bounded_in_entries_and_bytes(queue: Queue) -> None:
    for number in range(5):
        await queue.add("high", f"1000-{number}", deadline=NOW)
        await queue.add("low", f"1000-{number}", deadline=NOW, body="b" * 600_000)
    while (await queue.pull("w1", 0)).staged:
        pass
    assert (await queue.broker.expire(limit=3))[0] == 3 + 2
    assert (await queue.broker.expire(limit=3))[0] == 2 + 2


async def test_another_patience_makes_no_deadline(queue: Queue) -> None:
    await staged(queue)
    before = await queue.dump()
    assert (await queue.with_limits(patience_ms=5).broker.expire())[0] == 0
    assert await queue.dump() == before


async def test_a_deadline_behind_a_backlog_without_any_is_found(queue: Queue) -> None:
    for number in range(160):
        await queue.add("low", f"{1000 + number}-0")
    await queue.add("low", f"{PATIENCE}-0", ttl=1500)
    while (await queue.pull("w1", 0)).staged:
        pass
    later, ended, seen, calls = queue.at(PATIENCE + 2000), 0, None, 0
    while not ended and calls < 9:
        ended, seen = await later.broker.expire(seen, limit=50)
        calls += 1
    assert (ended, calls) == (1, 4)


async def test_what_was_looked_at_is_not_looked_at_again(queue: Queue) -> None:
    await staged(queue, deadline=NOW + 10)
    assert await queue.broker.expire() == (0, NOW)
    assert await queue.at(NOW + 10).broker.expire(NOW) == (1, NOW + 10)


async def test_what_was_late_on_arrival_is_found_as_well(queue: Queue) -> None:
    _, seen = await queue.broker.expire()
    await staged(queue, deadline=5)
    assert await queue.broker.expire(seen) == (1, NOW)
