"""expire.lua: what is too late ends when it is too late, however full the engines are."""

from __future__ import annotations

import json

from streamfleet.common.broker.housekeeping import ExpiryScan
from streamfleet.common.broker.types import Role
from tests.scripts.harness import BODY_DIGEST, NOW, PATIENCE, Queue, entry
from tests.scripts.keyspace import beside_tenants, changed


async def staged(queue: Queue, **fields: object) -> None:
    await queue.add("high", "1000-0", **fields)
    await queue.pull(wanted=0)


async def test_a_queued_request_ends_when_its_deadline_passes(queue: Queue) -> None:
    await staged(queue, id="r1", deadline=NOW + 10, reply="me", tenant="t1")
    before = await queue.dump()
    assert (await queue.at(NOW + 9).broker.expire())[0] == 0
    assert await queue.dump() == before
    assert (await queue.at(NOW + 10).broker.expire())[0] == 1
    after = beside_tenants(await queue.dump())
    error = after["result:r1"].pop("error")
    assert json.loads(error)["error"]["code"] == "deadline_exceeded"
    assert after == changed(
        beside_tenants(before),
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
            "request:r1": f"{BODY_DIGEST} high:1000-0 me",
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
    await queue.broker.cancel("r1", before_ms=60_000)
    await staged(queue, id="r1", deadline=NOW + 10)
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
    await queue.at(1_000).pull("w1", 0)
    assert (await queue.broker.expire())[0] == 2
    after = await queue.dump()
    assert [letter["_entry"] for letter in after["dead"]] == ["high:1000-0", "low:1000-0"]
    assert (after["ready:high"], "ready:low" in after) == ([("1000-1", NOW + 1)], False)


async def test_a_deadline_of_just_the_patience_is_left_to_the_pull(queue: Queue) -> None:
    await queue.add("high", "1000-0", ttl=PATIENCE)
    await queue.at(1_000).pull("w1", 0)
    later = queue.at(1000 + PATIENCE)
    assert (await later.broker.expire())[0] == 0
    assert (await later.pull()).dropped == 1


async def test_a_delayed_one_is_left_until_it_is_due(queue: Queue) -> None:
    assert await queue.retry("w1", await queue.running("high", "1000-0", deadline=NOW + 50), 40) == 1
    before = await queue.dump()
    assert (await queue.at(NOW + 60).broker.expire())[0] == 0
    assert await queue.dump() == before


async def test_one_call_is_bounded_in_entries_and_bytes(queue: Queue) -> None:
    queue = queue.with_limits(max_entry_bytes=200_000)
    for number in range(5):
        await queue.add("high", f"1000-{number}", deadline=NOW)
        await queue.add("low", f"1000-{number}", deadline=NOW, body="b" * 150_000)
    while (await queue.at(NOW - 1).pull("w1", 0)).staged:
        pass
    ended, seen = await queue.broker.expire(most=3)
    assert (ended, seen.more) == (3 + 2, True)
    ended, seen = await queue.broker.expire(seen, most=3)
    assert (ended, seen.more) == (2 + 2, True)
    ended, seen = await queue.broker.expire(seen, most=3)
    assert (ended, seen.more) == (1, False)


async def test_another_patience_makes_no_deadline(queue: Queue) -> None:
    await staged(queue)
    before = await queue.dump()
    assert (await queue.with_limits(patience_ms=5).broker.expire())[0] == 0
    assert await queue.dump() == before


async def test_a_deadline_behind_a_backlog_without_any_is_found(queue: Queue) -> None:
    for number in range(160):
        await queue.add("low", f"{1000 + number}-0")
    await queue.add("low", f"{PATIENCE}-0", ttl=1500)
    while (await queue.at(PATIENCE).pull("w1", 0)).staged:
        pass
    later, ended, calls = queue.at(PATIENCE + 2000), 0, 0
    seen: ExpiryScan | None = None
    while not ended and calls < 9:
        ended, seen = await later.broker.expire(seen, limit=50)
        calls += 1
    assert (ended, calls) == (1, 4)


async def test_what_was_looked_at_is_not_looked_at_again(queue: Queue) -> None:
    for number in range(120):
        await queue.add("high", f"1000-{number}")
    while (await queue.at(NOW).pull("w1", 0)).staged:
        pass
    overdue = queue.at(NOW + PATIENCE).with_limits(patience_ms=5)  # so that no rank tells that there is no deadline
    _, seen = await overdue.broker.expire()
    await queue.command("CONFIG", "RESETSTAT")
    ended, seen = await overdue.broker.expire(seen)
    assert (ended, seen.more) == (0, False)
    assert b"cmdstat_xrange" not in await queue.command("INFO", "commandstats")


async def test_a_request_that_is_late_on_arrival_ends_as_it_is_staged(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", deadline=NOW)
    assert (await queue.pull("w1", 0)).dropped == 1
    after = await queue.dump()
    assert (after["result:r1"]["status"], after["counts"]) == ("expired", {"staged": "1", "expired": "1"})
    assert not {"lane:high", "ready:high"} & set(after)


async def test_endings_of_one_staging_are_bounded_and_the_next_pull_goes_on(queue: Queue) -> None:
    for number in range(400):
        await queue.add("high", f"1000-{number}", deadline=5)
    pulled = await queue.pull("w1", 1)
    assert 100 <= pulled.dropped < 200
    assert (pulled.ready, pulled.role) == (0, Role.NONE)
    while (await queue.pull("w1", 1)).dropped:
        pass
    assert (await queue.dump())["counts"] == {"staged": "400", "expired": "400"}


async def test_a_lane_of_large_entries_hides_no_other_lane(queue: Queue) -> None:
    """After a change of patience no rank tells that an entry has no deadline: all of them are read."""
    queue = queue.with_limits(max_entry_bytes=200_000)
    for number in range(8):
        await queue.add("critical", f"1000-{number}", body="b" * 150_000)
    await queue.add("normal", "1000-0", deadline=NOW + 10)
    while (await queue.pull("w1", 0)).staged:
        pass
    later = queue.at(NOW + PATIENCE).with_limits(patience_ms=5)
    assert (await later.broker.expire())[0] == 1


async def test_large_entries_without_a_deadline_are_passed_by(queue: Queue) -> None:
    queue = queue.with_limits(max_entry_bytes=200_000)
    for number in range(8):
        await queue.add("high", f"1000-{number}", body="b" * 150_000)
    await queue.add("high", "1001-0", ttl=PATIENCE + 10)
    while (await queue.at(1_001).pull("w1", 0)).staged:
        pass
    later, ended, calls = queue.at(NOW + PATIENCE).with_limits(patience_ms=5), 0, 0
    seen: ExpiryScan | None = None
    while not ended and calls < 9:
        ended, seen = await later.broker.expire(seen)
        calls += 1
    assert (ended, calls) == (1, 5)


async def test_a_clock_that_was_set_back_hides_no_deadline(queue: Queue) -> None:
    _, seen = await queue.at(NOW + 3_600_000).broker.expire()
    await staged(queue, deadline=NOW + 10)
    _, seen = await queue.broker.expire(seen)
    assert (await queue.at(NOW + 10).broker.expire(seen))[0] == 1


async def test_ttl_counts_from_staging_where_the_id_lies_ahead_of_the_clock(queue: Queue) -> None:
    """By hand, once: every later id of the lane lies ahead as well."""
    await queue.add("high", "4102444800000-0", id="r1", ttl=500)
    await queue.add("high", "4102444800000-1")
    await queue.add("high", "4102444800000-2", id="r3", deadline=NOW + PATIENCE - 1)
    await queue.pull("w1", 0)
    assert (await queue.dump())["ready:high"] == [
        ("4102444800000-0", NOW + 500),
        ("4102444800000-2", NOW + PATIENCE - 1),
        ("4102444800000-1", NOW + PATIENCE),
    ]
    assert (await queue.at(NOW + 499).broker.expire())[0] == 0
    assert (await queue.at(NOW + 500).broker.expire())[0] == 1
    assert (await queue.dump())["result:r1"]["enqueued_ms"] == str(NOW)


async def test_such_a_time_does_not_slide_with_each_return_and_goes_with_its_entry(queue: Queue) -> None:
    lease = await queue.running("high", "4102444800000-0", ttl=500)
    later = queue.at(NOW + 100)
    await later.broker.release("w1", [lease])
    (claim,) = (await later.pull()).claims
    assert claim.enqueued_ms == NOW
    assert await later.retry("w1", claim.lease) == 1
    assert (await queue.dump())["ready:high"] == [("4102444800000-0", NOW + 500)]
    (claim,) = (await queue.at(NOW + 200).pull()).claims
    await queue.complete("w1", claim.lease)
    kept = await queue.command("HKEYS", queue.keys.entries)
    assert not [name for name in kept if name.startswith(b"enqueued:")]


async def test_what_was_staged_before_the_clock_was_set_back_counts_from_then(queue: Queue) -> None:
    ahead = NOW + 3_600_000
    await queue.add("high", f"{ahead}-0", ttl=500)
    await queue.add("high", f"{ahead}-1")
    await queue.at(ahead).pull("w1", 0)
    await queue.broker.rank_anew()
    assert (await queue.dump())["ready:high"] == [(f"{ahead}-0", NOW + 500), (f"{ahead}-1", NOW + PATIENCE)]
