"""pause.lua: lanes that rest, and go on where they were."""

from __future__ import annotations

from streamfleet.common.broker.types import Role
from streamfleet.common.protocol import LANES, Lane, Status
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without


@fails_without("choose: nothing of a paused lane")
async def test_nothing_is_taken_from_a_paused_lane_and_the_others_go_on(queue: Queue) -> None:
    await queue.add("critical", "1000-0", id="c")
    await queue.add("low", "1000-0", id="l")
    assert await queue.broker.pause([Lane.CRITICAL]) == [Lane.CRITICAL]
    assert await queue.broker.paused() == {Lane.CRITICAL: NOW}
    assert [claim.lease.request_id for claim in (await queue.pull("w1", 5)).claims] == ["l"]
    assert (await queue.dump())["ready:critical"] == [("1000-0", 1000 + queue.broker.limits.patience_ms)]


@fails_without("pause: who finds only paused lanes waits", mark="choose: nothing of a paused lane")
async def test_who_finds_only_paused_lanes_waits_like_one_who_finds_nothing(queue: Queue) -> None:
    """A worker that was told to pull again would do so for ever."""
    await queue.add("low", "1000-0")
    await queue.broker.pause([Lane.LOW])
    pulled = await queue.pull("w1")
    assert (pulled.claims, pulled.ready, pulled.role) == ([], 0, Role.WATCHER)


@fails_without("pause: going on wakes somebody")
async def test_a_lane_that_goes_on_wakes_somebody(queue: Queue) -> None:
    await queue.add("low", "1000-0", id="l")
    await queue.broker.pause()
    assert (await queue.pull("w1")).role is Role.WATCHER
    assert await queue.broker.resume([Lane.LOW]) == [Lane.LOW]
    assert (await queue.dump())["wake"] == {"undelivered": 1}
    assert await queue.broker.paused() == dict.fromkeys([Lane.CRITICAL, Lane.HIGH, Lane.NORMAL], NOW)
    assert [claim.lease.request_id for claim in (await queue.pull("w1")).claims] == ["l"]


@fails_without("pause: since the first time", "if pause and not paused then", "if pause then")
async def test_asked_again_nothing_changes(queue: Queue) -> None:
    assert await queue.broker.pause() == list(LANES)
    assert await queue.at(NOW + 5).broker.pause() == []
    assert await queue.broker.paused() == dict.fromkeys(LANES, NOW)
    assert await queue.broker.resume() == list(LANES)
    assert await queue.broker.resume() == []
    assert await queue.broker.paused() == {}


async def test_one_that_somebody_paused_by_hand_counts_as_paused(queue: Queue) -> None:
    await queue.command(
        "HSET", queue.keys.lane_states, *("paused:critical", "yes", "paused:high", "9" * 5_000, "paused:normal", "-5")
    )
    await queue.add("critical", "1000-0")
    assert (await queue.pull("w1")).claims == []
    assert await queue.broker.paused() == dict.fromkeys([Lane.CRITICAL, Lane.HIGH, Lane.NORMAL], 0)


async def test_a_paused_lane_saves_up_no_turns(queue: Queue) -> None:
    """Else it would have a burst of turns ahead of urgent requests once it goes on."""
    for number in range(40):
        await queue.add("critical", f"1000-{number}")
        await queue.add("low", f"1000-{number}")
    await queue.broker.pause([Lane.LOW])
    assert {claim.lease.lane for claim in (await queue.pull("w1", 30)).claims} == {Lane.CRITICAL}
    await queue.broker.resume()
    assert {claim.lease.lane for claim in (await queue.pull("w1", 10)).claims} == {Lane.CRITICAL}


async def test_deadlines_pass_in_a_paused_lane(queue: Queue) -> None:
    await queue.add("low", "1000-0", id="l", deadline=NOW + 5)
    await queue.broker.pause()
    await queue.pull("w1")
    later = queue.at(NOW + 10)
    assert (await later.broker.expire())[0] == 1
    assert (await queue.dump())["result:l"]["status"] == Status.EXPIRED


async def test_what_runs_in_a_paused_lane_ends_there(queue: Queue) -> None:
    lease = await queue.running("low", "1000-0", id="l")
    await queue.broker.pause()
    assert await queue.complete("w1", lease) == [1]


async def test_a_full_redis_can_be_paused(queue: Queue) -> None:
    async with queue.full_memory():
        assert await queue.broker.pause([Lane.LOW]) == [Lane.LOW]


@fails_without("take: what rests and is not in order yet holds up nobody", "lanes[PAUSED + cut]", "false")
async def test_what_rests_and_is_not_in_order_yet_holds_up_nobody(queue: Queue) -> None:
    for number in range(40):
        await queue.add("critical", f"1000-{number}")
    await queue.add("low", "1000-0", id="l")
    await queue.broker.pause([Lane.CRITICAL])
    pulled = await queue.pull("w1", 4, stage_entries=5)
    assert [claim.lease.request_id for claim in pulled.claims] == ["l"]
