"""reclaim.lua: what silent workers hold comes back, and what has been delivered too often ends."""

from __future__ import annotations

import json

import pytest

from streamfleet.common.broker.housekeeping import Turn
from streamfleet.common.broker.types import Reclaimed
from streamfleet.common.keys import NOBODY
from streamfleet.common.protocol import LANES, Lane
from tests.scripts.conftest import open_queue
from tests.scripts.harness import NOW, PATIENCE, Queue, entry
from tests.scripts.mutants import fails_without
from tests.shifted_clock import ShiftedServer

LEASE_MS = 60_000


async def test_a_request_that_took_its_workers_down_is_given_up(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", reply="me")
    for worker in ("w1", "w2"):
        await queue.claim(worker)
        assert await queue.broker.reclaim(0, 3) == Reclaimed(1, 0, 0)
    await queue.claim("w3")
    assert await queue.broker.reclaim(0, 3) == Reclaimed(0, 1, 0)
    after = await queue.dump()
    error = json.loads(after["result:r1"]["error"])["error"]
    assert error == {
        "message": "given up after 3 deliveries; the workers lost with it: w1, w2, w3",
        "type": "server_error",
        "param": None,
        "code": "max_deliveries",
    }
    assert (after["result:r1"]["status"], after["result:r1"]["attempt"]) == ("dead", "3")
    assert (after["dead"][0]["_status"], after["dead"][0]["_attempts"]) == ("dead", "3")
    assert after["dead"][0]["_workers"] == "w1 w2 w3"
    assert after["reply:me"] == [{"id": "r1", "status": "dead"}]
    assert after["counts"] == {"staged": "1", "dead": "1"}
    assert not {"tries", "lane:high", "ready:high"} & set(after)


@fails_without("attempts: so many names and no more")
async def test_a_dead_letter_names_the_last_workers_that_were_lost(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    for number in range(18):
        await queue.claim(f"w{number}")
        await queue.broker.reclaim(0, 18)
    assert (await queue.dump())["dead"][0]["_workers"].split() == [f"w{number}" for number in range(2, 18)]


@fails_without("reclaim: somebody is woken")
async def test_a_watcher_that_died_before_its_pull_counts_no_attempt(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    await queue.hand_out()
    await queue.command("ZADD", queue.keys.waiting, 0, "w2")
    assert await queue.broker.reclaim(0, 1) == Reclaimed(1, 0, 0)
    assert await queue.dump() == {
        "lane:high": {"entries": {"1000-0": entry()}},
        "ready:high": [("1000-0", 1000 + PATIENCE)],
        "counts": {"staged": "1"},
        "waiting": [("w2", 2)],
        "wake:w2": ["1"],
    }
    assert (await queue.claim()).attempt == 1


@fails_without("reclaim: lost wake-ups are cleared", "do call('XACK', WAKE, GROUP, row[1]) end", "do end")
async def test_a_wake_up_that_a_dead_watcher_took_is_cleared(queue: Queue) -> None:
    await queue.command("XADD", queue.keys.wake, "*", "t", 1)
    await queue.command("XREADGROUP", "GROUP", "workers", "~", "STREAMS", queue.keys.wake, ">")
    await queue.broker.reclaim(0, 3)
    assert await queue.dump() == {}


async def test_reclaiming_is_bounded_in_each_lane(queue: Queue) -> None:
    for lane in ("high", "low"):
        for number in range(3):
            await queue.running(lane, f"1000-{number}")
    assert (await queue.broker.reclaim(0, 3, limit=2)).ready == 4
    assert (await queue.broker.reclaim(0, 3, limit=2)).ready == 2


@fails_without("groups: missing ones are noticed before a write")
async def test_a_missing_group_is_noticed_before_anything_is_written(queue: Queue) -> None:
    await queue.running("critical", "1000-0")
    await queue.command("DEL", queue.keys.lane("low"))
    assert await queue.broker.reclaim(0, 1) == Reclaimed(0, 1, 0)
    assert (await queue.dump())["counts"] == {"staged": "1", "dead": "1"}


@fails_without("acquire_housekeeping_lock: one worker at a time", "'NX', 'PX', ARGV[2]", "'PX', ARGV[2]")
async def test_one_worker_at_a_time_does_the_housekeeping(queue: Queue) -> None:
    assert (await queue.broker.acquire_housekeeping_lock("w1", 60_000, 5_000)).mine
    assert not (await queue.broker.acquire_housekeeping_lock("w2", 60_000, 5_000)).mine
    assert await queue.dump() == {"maintain": "w1"}


async def turn_after(queue: Queue, since_ms: int) -> Turn:
    """The turn that is taken so long after the one before, where turns had come for a minute."""
    seconds, _ = await queue.command("TIME")
    now = int(seconds) * 1000
    await queue.command("HSET", queue.keys.clock, "turn", now - since_ms, "turns_from", now - 60_000)
    return await queue.broker.acquire_housekeeping_lock("w1", 60_000, 5_000)


async def test_a_turn_tells_for_how_long_turns_have_come(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.workers, "w1", "{}", "w2", "{}")
    turn = await turn_after(queue, 3_000)
    assert (turn.mine, turn.workers) == (True, 2)
    assert 60_000 <= turn.unbroken_ms < 63_000
    assert (await queue.broker.acquire_housekeeping_lock("w2", 60_000, 5_000))[:3] == (False, 0, 2)


async def test_turns_are_numbered_and_tell_how_many_entries_there_are(queue: Queue) -> None:
    assert (await turn_after(queue, 1_000))[4:] == (1, 0)
    await queue.running("high", "1000-0")
    await queue.add("low", "1000-0")
    await queue.command("DEL", queue.keys.maintain)
    assert (await turn_after(queue, 1_000))[4:] == (2, 2)


@fails_without(
    "acquire_housekeeping_lock: a number written by hand stops no turn",
    "tonumber(known[3] or 0)",
    "known[3] or 0",
    argument="high",
)
@fails_without(
    "acquire_housekeeping_lock: a lane of another type stops no turn", ".pcall('XLEN'", ".call('XLEN'", argument="high"
)
@fails_without(
    "acquire_housekeeping_lock: a lane of another type is not empty", ") or 1) end", ") or 0) end", argument="high"
)
@pytest.mark.parametrize("lane", LANES)
async def test_what_hands_wrote_does_not_stop_the_turns(queue: Queue, lane: Lane) -> None:
    await queue.command("HSET", queue.keys.clock, "turns", "by hand")
    await queue.command("SET", queue.keys.lane(lane), "by hand")
    for number in (0, 1):
        await queue.command("DEL", queue.keys.maintain)
        assert (await turn_after(queue, 1_000))[4:] == (number, 1)


@fails_without("acquire_housekeeping_lock: a gap breaks the chain of turns", " or since > tonumber(ARGV[3])", "")
async def test_a_gap_between_turns_is_where_they_begin(queue: Queue) -> None:
    assert (await turn_after(queue, 5_001))[:3] == (True, 0, 0)


@fails_without("acquire_housekeeping_lock: a clock that was set back breaks it", "from or since < 0 or", "from or")
async def test_turns_begin_anew_where_the_clock_was_set_back(queue: Queue) -> None:
    assert (await turn_after(queue, -60_000))[:3] == (True, 0, 0)


@fails_without("reclaim: not by a clock that has stepped forward")
async def test_nothing_is_taken_back_by_a_clock_that_has_stepped_forward(queue: Queue) -> None:
    await queue.running()
    await queue.age("high", "1000-0", "w1")
    async with queue.unchanged():
        assert await queue.broker.reclaim(LEASE_MS, 3, latest_ms=NOW - 1) == Reclaimed(0, 0, 0)
    assert await queue.broker.reclaim(LEASE_MS, 3, latest_ms=NOW) == Reclaimed(1, 0, 0)


@fails_without("reclaim: not a lease that a clock set back for a moment made old", "if row[3] > longest_ms", "if false")
async def test_a_lease_claimed_while_the_clock_was_set_back_for_a_moment_counts_anew(
    shifted_clock: ShiftedServer,
) -> None:
    async with open_queue(shifted_clock.url) as queue:
        await queue.add("high", "1000-0")
        assert await queue.broker.reclaim(LEASE_MS, 3) == Reclaimed(0, 0, 0)
        shifted_clock.shift(-3_600_000)
        assert len((await queue.pull("w1")).claims) == 1
        shifted_clock.shift(0)
        assert await queue.broker.reclaim(LEASE_MS, 3) == Reclaimed(0, 0, 0)
        shifted_clock.shift(LEASE_MS + 1)
        assert await queue.broker.reclaim(LEASE_MS, 3) == Reclaimed(1, 0, 0)


@fails_without("set back: staged where it was not yet")
async def test_one_that_nobody_held_and_that_was_deleted_by_hand_is_counted_as_staged_too(queue: Queue) -> None:
    """Its read seems to be from before the clock was set back for a moment."""
    await queue.broker.reclaim(LEASE_MS, 3)
    await queue.add("high", "1000-0")
    await queue.hand_out()
    await queue.age("high", "1000-0", NOBODY, 10 * LEASE_MS)
    await queue.command("XDEL", queue.keys.lane("high"), "1000-0")
    assert await queue.broker.reclaim(LEASE_MS, 3) == Reclaimed(0, 0, 0)
    if b"redis_version:6." in await queue.command("INFO", "server"):
        return  # there a lease can be claimed of what was deleted: the next look finds it
    assert (await queue.dump())["counts"] == {"staged": "1", "vanished": "1"}
    assert (await queue.broker.audit()).problems() == []


@fails_without(
    "reclaim: a look that was cut short says nothing of the rest",
    "if back + dead + ended == 0 then keep_look() end",
    "keep_look()",
)
async def test_a_look_that_was_cut_short_is_no_measure(queue: Queue) -> None:
    for number in range(3):
        await queue.running("high", f"1000-{number}")
        await queue.age("high", f"1000-{number}", "w1", 10 * LEASE_MS)
    taken = [(await queue.broker.reclaim(LEASE_MS, 3, limit=1)).ready for _ in range(4)]
    assert taken == [1, 1, 1, 0]


async def test_a_lease_from_before_the_clock_was_set_back_counts_anew(shifted_clock: ShiftedServer) -> None:
    async with open_queue(shifted_clock.url) as queue:
        shifted_clock.shift(3_600_000)
        for number in range(205):
            await queue.add("high", f"1000-{number}")
        assert len((await queue.pull("dead", 205)).claims) == 205
        await queue.add("low", "1000-0")
        await queue.hand_out("low")
        shifted_clock.shift(0)
        for _ in range(3):  # a hundred of each lane at a time
            assert await queue.broker.reclaim(LEASE_MS, 3) == Reclaimed(0, 0, 0)
        shifted_clock.shift(LEASE_MS + 1)
        ready = [(await queue.broker.reclaim(LEASE_MS, 3)).ready for _ in range(4)]
        assert ready == [101, 100, 5, 0]
        after = await queue.dump()
        assert set(after["tries"].values()) == {"1 dead"}
        assert set(after["tries"]) == {f"2|1000-{number}" for number in range(205)}


@fails_without("acquire_housekeeping_lock: a full server too")
async def test_on_a_full_redis_too_one_worker_at_a_time_does_the_housekeeping(queue: Queue) -> None:
    await queue.broker.heartbeat("w1", {})
    async with queue.full_memory():
        assert (await queue.broker.acquire_housekeeping_lock("w1", 60_000, 5_000))[:3] == (True, 0, 1)
        assert (await queue.broker.acquire_housekeeping_lock("w2", 60_000, 5_000))[:3] == (False, 0, 1)
    assert (await queue.dump())["maintain"] == "w1"


@fails_without(
    "acquire_housekeeping_lock: a lock written by hand holds up nobody",
    "  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])\n",
    "  return {0, 0, alive, now}\n",
    argument="RPUSH",
)
@pytest.mark.parametrize("write", ["RPUSH", "SADD", "SET"])
async def test_a_lock_that_somebody_wrote_by_hand_does_not_stop_the_housekeeping(queue: Queue, write: str) -> None:
    for since in ((), ("turn", 1)):
        if since:
            await queue.command("HSET", queue.keys.clock, *since)
        await queue.command("DEL", queue.keys.maintain)
        await queue.command(write, queue.keys.maintain, "by hand")
        assert (await queue.broker.acquire_housekeeping_lock("w1", 1_000, 5_000)).mine
        assert not (await queue.broker.acquire_housekeeping_lock("w2", 1_000, 5_000)).mine
        assert (await queue.dump())["maintain"] == "w1"


@fails_without(
    "acquire_housekeeping_lock: nor one from before the clock was set back",
    "if since >= 0 and since <= 10 *",
    "if last and since <= 10 *",
)
async def test_a_lock_from_before_the_clock_was_set_back_does_not_stop_the_housekeeping(queue: Queue) -> None:
    assert (await queue.broker.acquire_housekeeping_lock("w1", 3_600_000, 5_000)).mine
    assert (await turn_after(queue, -1_800_000))[:3] == (True, 0, 0)


@fails_without("reclaim: bytes are bounded")
async def test_taking_back_is_bounded_in_bytes(queue: Queue) -> None:
    large = queue.with_limits(max_entry_bytes=900_000)
    for number in range(4):
        await large.add("high", f"1000-{number}", body="b" * 150_000)
        await large.claim()
    assert await large.broker.reclaim(0, 3) == Reclaimed(2, 0, 0)
    assert await large.broker.reclaim(0, 3) == Reclaimed(2, 0, 0)


@fails_without("reclaim: a missing wake stream is noticed before a write")
async def test_a_missing_wake_stream_is_made_again_before_anything_is_taken_back(queue: Queue) -> None:
    """Missed only at the end, what was taken back until then would never have been counted."""
    await queue.add("high", "1000-0")
    await queue.hand_out()
    await queue.command("DEL", queue.keys.wake)
    assert (await queue.broker.reclaim(0, 3)).ready == 1
    assert (await queue.dump())["counts"] == {"staged": "1"}
