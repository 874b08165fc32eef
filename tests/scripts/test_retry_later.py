"""retry_later.lua, return_delayed.lua and tend_waiting.lua: later, but never past the deadline nor for ever."""

from __future__ import annotations

import json

from streamfleet.common.broker.types import Retry, RetryCode, Rooms
from tests.scripts.harness import BODY_DIGEST, ERROR, NOW, PATIENCE, Queue, entry, ids
from tests.scripts.keyspace import changed
from tests.scripts.mutants import fails_without


@fails_without("retry_later: somebody is woken")
async def test_a_retry_without_delay_is_ready_at_once_and_somebody_is_woken(queue: Queue) -> None:
    lease = await queue.running()
    await queue.pull("idle")
    before = await queue.dump()
    assert await queue.retry("w1", lease) == RetryCode.DELAYED
    assert await queue.dump() == changed(
        before,
        {
            "lane:high": {"entries": {"1000-0": entry()}},
            "ready:high": [("1000-0", 1000 + PATIENCE)],
            "tries": {"2|1000-0": "1"},
            "wake": {"undelivered": 1},
            "waiting": [("idle", 2)],
        },
    )


async def test_the_last_attempt_ends_the_request_as_dead(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1", reply="me")
    before = await queue.dump()
    assert await queue.retry("w1", lease, 100, most=1) == RetryCode.DEAD
    letter = {"_id": "r1", "_status": "dead", "_error": ERROR, "_entry": "high:1000-0", "_attempts": "1"}
    assert await queue.dump() == changed(
        before,
        {
            "lane:high": None,
            "result:r1": {
                "status": "dead",
                "http_status": "500",
                "error": ERROR,
                "enqueued_ms": "1000",
                "lane": "high",
                "entry": "high:1000-0",
                "attempt": "1",
                "finished_ms": str(NOW),
                "notified:me": "1",
            },
            "request:r1": f"{BODY_DIGEST} high:1000-0 me",
            "reply:me": [{"id": "r1", "status": "dead"}],
            "dead": [letter | entry(id="r1", reply="me")],
            "counts": {"staged": "1", "dead": "1"},
        },
    )


async def test_workers_that_ended_with_it_are_named_and_those_that_live_on_are_not(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1")
    for worker, lost in (("w1", True), ("w2", False), ("w3", True)):
        await queue.broker.retry_later(worker, [Retry(await queue.claim(worker), 0, ERROR, worker_lost=lost)], 3)
    assert (await queue.dump())["dead"][0]["_workers"] == "w1 w3"


async def test_a_retry_that_would_come_after_the_deadline_expires_now(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1", deadline=NOW + 100)
    assert await queue.retry("w1", lease, 100) == RetryCode.EXPIRED
    after = await queue.dump()
    assert (after["result:r1"]["status"], after["counts"]) == ("expired", {"staged": "1", "expired": "1"})
    error = json.loads(after["dead"][0]["_error"])["error"]
    assert error["code"] == "deadline_exceeded"
    assert error["message"].endswith("the last fault: it did not work")
    assert not {"delayed", "tries", "lane:high"} & set(after)


async def test_several_retries_in_one_call_stand_each_for_itself(queue: Queue) -> None:
    leases = [await queue.running("low", f"1000-{number}") for number in range(3)]
    retries = [Retry(leases[0], 10, ERROR), Retry(leases[1]._replace(attempt=9), 10, ERROR), Retry(leases[2], 0, ERROR)]
    assert await queue.broker.retry_later("w1", retries, 3) == [1, 0, 1]
    after = await queue.dump()
    assert after["lane:low"]["pending"] == {"1000-1": ("w1", 1)}
    assert after["delayed"] == [("4|1000-0", NOW + 10)]
    assert after["ready:low"] == [("1000-2", 1000 + PATIENCE)]


async def test_delayed_work_is_not_given_out_before_it_is_due(queue: Queue) -> None:
    await queue.retry("w1", await queue.running(), 100)
    assert (await queue.at(NOW + 99).pull()).claims == []
    assert await queue.at(NOW + 99).broker.return_delayed() == (0, 1)
    assert await queue.at(NOW + 100).broker.return_delayed() == (1, None)
    assert ids((await queue.at(NOW + 100).pull()).claims) == ["1000-0"]


@fails_without("return_delayed: somebody is woken")
async def test_returned_work_has_its_old_rank_and_somebody_is_woken(queue: Queue) -> None:
    await queue.retry("w1", await queue.running("high", "1000-0", deadline=NOW + 500), 100)
    await queue.retry("w1", await queue.running("low", "1000-0"), 200)
    await queue.pull("idle")
    before = await queue.dump()
    assert await queue.at(NOW + 150).broker.return_delayed() == (1, 50)
    assert await queue.dump() == changed(
        before,
        {
            "delayed": [("4|1000-0", NOW + 200)],
            "ready:high": [("1000-0", NOW + 500)],
            "wake": {"undelivered": 1},
            "waiting": [("idle", 2)],
        },
    )


async def test_returning_is_bounded(queue: Queue) -> None:
    for number in range(5):
        await queue.retry("w1", await queue.running("high", f"1000-{number}"), 10 + number)
    later = queue.at(NOW + 1000)
    assert await later.broker.return_delayed(limit=2) == (2, 0)
    assert await later.broker.return_delayed(limit=9) == (3, None)


async def test_a_cancelled_delayed_request_ends_when_it_is_due(queue: Queue) -> None:
    await queue.retry("w1", await queue.running("high", "1000-0", id="r1"), 10)
    await queue.command("SET", queue.keys.dead, "by hand")  # so its entry stays
    await queue.broker.cancel("r1")
    await queue.command("DEL", queue.keys.dead)
    later = queue.at(NOW + 10)
    await later.broker.return_delayed()
    assert (await later.pull()).dropped == 1
    after = await queue.dump()
    assert after["counts"] == {"staged": "1", "cancelled": "1"}
    assert not {"delayed", "tries", "lane:high", "ready:high"} & set(after)


async def test_a_tick_mends_a_watcher_that_died(queue: Queue) -> None:
    small = queue.with_limits(watchers=1)
    await small.pull("w1")
    await small.pull("w2")
    before = {"waiting": [("w1", 0), ("w2", 0)], "watch": [("w1", NOW + 7000)]}
    await small.broker.tend_waiting()
    assert await queue.dump() == before
    await queue.command("RPUSH", queue.keys.wake_up("w1"), "1")  # it does not come for that
    await queue.command("EXPIRE", queue.keys.wake_up("w1"), 60)
    await small.at(NOW + 7001).broker.tend_waiting()
    assert await queue.dump() == {"waiting": [("w2", 0)], "wake:w1": ["1"], "wake:w2": ["1"]}


@fails_without("tend_waiting: those that watch are dead if nobody has heard a wake-up")
@fails_without("tend_waiting: who comes for a wake-up keeps its watch", "> UNHEARD_MS", ">= 0")
async def test_those_that_watch_and_do_not_come_are_replaced_within_a_second(queue: Queue) -> None:
    for worker in ("w1", "w2", "w3"):
        await queue.pull(worker)
    await queue.add("high", "1000-0")
    await queue.pull("w9", 0)  # the housekeeping finds it
    await queue.broker.tend_waiting()
    assert await queue.command("LLEN", queue.keys.wake_up("w3")) == 1  # it does so at once, because they may be dead
    assert len((await queue.dump())["watch"]) == 2
    await queue.at(NOW + 1_000).broker.tend_waiting()
    assert "watch" not in await queue.dump()


@fails_without("tend_waiting: others live where one has died that heard a wake-up", "if not heard then", "if true then")
async def test_one_that_dies_with_a_wake_up_ends_no_other_watch(queue: Queue) -> None:
    for worker in ("dead", "w2"):
        await queue.pull(worker)
    await queue.add("high", "1000-0")
    await queue.pull("w9", 0)
    assert len(await queue.read([])) == 1
    await queue.at(NOW + 1_000).broker.tend_waiting()
    assert len((await queue.dump())["watch"]) == 2
    assert len(await queue.read([])) == 1  # it is said again


@fails_without("tend_waiting: who waits and is not known says so")
async def test_workers_that_are_in_no_directory_are_woken_within_ten_seconds(queue: Queue) -> None:
    """It was deleted, or is from an older snapshot. Others that have no room pull, and say so."""
    names = [f"w{number:02}" for number in range(25)]
    for name in names:
        await queue.broker.heartbeat(name, {})
        await queue.pull(name)
    await queue.command("DEL", queue.keys.waiting, queue.keys.watch)
    await queue.command("ZADD", queue.keys.waiting, 0, "w00")
    woken = []
    for second in range(10):
        await queue.at(NOW + 1_000 * second).broker.tend_waiting()
        woken.append([name for name in names if await queue.command("LPOP", queue.keys.wake_up(name))])
    assert sorted(name for some in woken for name in some if name != "w00") == names[1:]
    assert max(map(len, woken)) <= 4


@fails_without("tend_waiting: who asks is woken, however many have died")
async def test_who_does_the_housekeeping_is_woken_behind_many_that_have_died(queue: Queue) -> None:
    await queue.command("ZADD", queue.keys.waiting, *[part for number in range(50) for part in (0, f"dead{number}")])
    await queue.command("ZADD", queue.keys.waiting, 5, "w1")
    await queue.broker.tend_waiting("w2")  # which does not wait
    assert await queue.command("EXISTS", queue.keys.wake_up("w1"), queue.keys.wake_up("w2")) == 0
    await queue.broker.tend_waiting("w1")
    assert await queue.command("LLEN", queue.keys.wake_up("w1")) == 1


@fails_without("tend_waiting: nobody is told beside one with more room, who may be on its way")
async def test_a_tick_tells_no_full_worker_while_an_idle_one_is_on_its_way(queue: Queue) -> None:
    lease = await queue.running()
    await queue.pull("idle", 8)
    full = Rooms((4, 4, 0, 0), (4, 4, 0, 0), 0)
    for worker in ("w2", "w3"):
        await queue.pull(worker, full)
    await queue.broker.release("w1", [lease])
    await queue.broker.tend_waiting("w2")
    assert [key for key in await queue.dump() if key.startswith("wake:")] == []
    assert len((await queue.pull("idle", 8, await queue.read([]))).claims) == 1


@fails_without("tend_waiting: work is said again to those that watch")
@fails_without("tend_waiting: somebody else is woken")
async def test_a_tick_says_again_that_work_waits(queue: Queue) -> None:
    """The worker that took the token may have died with it."""
    for worker in ("w1", "w2", "w3"):
        await queue.pull(worker)
    await queue.add("high", "1000-0")
    await queue.pull("w9", 0)
    assert len(await queue.read([])) == 1
    await queue.broker.tend_waiting()
    assert len(await queue.read([])) == 1
    assert await queue.command("LLEN", queue.keys.wake_up("w3")) == 1


@fails_without(
    "return_delayed: bytes are bounded",
    "then break end   -- bodies are copied: the next call continues\n  local lane, id",
    "then end\n  local lane, id",
)
async def test_returning_is_bounded_in_bytes(queue: Queue) -> None:
    large = queue.with_limits(max_entry_bytes=900_000)
    for number in range(3):
        await large.retry("w1", await large.running("high", f"1000-{number}", body="b" * 150_000), 10)
    later = large.at(NOW + 10)
    assert await later.broker.return_delayed() == (2, 0)
    assert await later.broker.return_delayed() == (1, None)


@fails_without("entry: ids ahead of the clock do not count", "or math.min(id_ms(id), now_ms()) end", "or id_ms(id) end")
async def test_an_id_that_is_ahead_of_a_clock_that_was_set_back_does_not_count(queue: Queue) -> None:
    ahead = queue.at(NOW + 3_600_000)
    lease = await ahead.running("high", f"{NOW + 3_600_000}-0", ttl=500)
    assert await queue.retry("w1", lease, 600) == RetryCode.EXPIRED


@fails_without("tend_waiting: watches of a clock that was set back end")
async def test_watches_of_a_clock_that_was_set_back_end(queue: Queue) -> None:
    await queue.at(NOW + 3_600_000).pull("dead")
    await queue.pull("w1")
    await queue.broker.tend_waiting()
    assert (await queue.dump())["watch"] == [("w1", NOW + 7_000)]


@fails_without(
    "retry_later: one call is bounded in bytes", "> cfg.at_once or bytes >= cfg.copied_bytes then", "> cfg.at_once then"
)
async def test_one_call_is_bounded_in_bytes(queue: Queue) -> None:
    large = queue.with_limits(max_entry_bytes=900_000)
    leases = [await large.running("high", f"1000-{number}", body="b" * 150_000) for number in range(5)]
    calls = large.note_calls()
    retries = [Retry(lease, 10, ERROR) for lease in leases]
    assert await large.broker.retry_later("w1", retries, 3) == [RetryCode.DELAYED] * 5
    assert calls == ["retry_later"] * 3


async def test_a_missing_group_is_noticed_before_the_first_write(queue: Queue) -> None:
    high = await queue.running("high", "1000-0", id="r1")
    low = await queue.running("low", "1000-0", id="r2")
    await queue.command("DEL", queue.keys.lane("low"))
    retries = [Retry(lease, 10, ERROR) for lease in (high, low)]
    assert await queue.broker.retry_later("w1", retries, 1) == [RetryCode.DEAD, RetryCode.LOST]
    assert (await queue.dump())["counts"] == {"staged": "2", "dead": "1"}
