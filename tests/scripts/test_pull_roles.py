"""pull.lua: what a worker does that got less than it asked for; wake.lua: no work without somebody who comes for it."""

from __future__ import annotations

import asyncio

from streamfleet.common.broker.types import Hint, Role
from streamfleet.common.protocol import Lane
from tests.scripts.harness import NOW, Queue
from tests.waiting import eventually

WATCHER_MS = 7_000


async def roles(queue: Queue, *workers: str) -> list[Role]:
    return [(await queue.pull(worker)).role for worker in workers]


async def test_at_most_so_many_watch_and_the_others_sit_on_the_bench(queue: Queue) -> None:
    assert await roles(queue, "w1", "w2", "w3", "w4") == [
        Role.WATCHER,
        Role.WATCHER,
        Role.IDLE_WAITER,
        Role.IDLE_WAITER,
    ]
    assert await queue.dump() == {"watch": [("w1", NOW + WATCHER_MS), ("w2", NOW + WATCHER_MS)], "bench": ["1"]}


async def test_the_number_of_watchers_is_the_queues(queue: Queue) -> None:
    assert await roles(queue.with_limits(watchers=1), "w1", "w2") == [Role.WATCHER, Role.IDLE_WAITER]


async def test_who_got_all_it_asked_for_has_no_role(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    assert await roles(queue, "w1", "w2") == [Role.NONE, Role.WATCHER]


async def test_staging_alone_gives_no_role_and_takes_none(queue: Queue) -> None:
    await roles(queue, "w1")
    assert (await queue.pull("w1", 0)).role is Role.NONE
    assert (await queue.dump())["watch"] == [("w1", NOW + WATCHER_MS)]


async def test_a_watcher_that_leaves_frees_its_place_and_calls_another(queue: Queue) -> None:
    small = queue.with_limits(watchers=1)
    assert await roles(small, "w1", "w2") == [Role.WATCHER, Role.IDLE_WAITER]
    await queue.command("DEL", queue.keys.bench)
    await small.pull("w1", 0, watching=True)
    assert await queue.dump() == {"bench": ["1"]}
    assert await roles(small, "w2") == [Role.WATCHER]


async def test_a_watcher_that_takes_work_calls_another_to_watch(queue: Queue) -> None:
    small = queue.with_limits(watchers=1)
    assert await roles(small, "w1", "w2") == [Role.WATCHER, Role.IDLE_WAITER]
    await queue.command("DEL", queue.keys.bench)
    await queue.add("high", "1000-0")
    assert (await small.pull("w1", 1, await queue.hand_out(), watching=True)).claims
    after = await queue.dump()
    assert (after["bench"], "watch" in after) == (["1"], False)


async def test_a_watcher_that_does_not_know_its_role_gets_it_again(queue: Queue) -> None:
    """The answer that gave it the watch was lost: it must be no idle waiter while it counts as the watcher."""
    small = queue.with_limits(watchers=1)
    assert await roles(small, "w1", "w1") == [Role.WATCHER, Role.WATCHER]


async def test_a_watch_that_was_not_renewed_counts_no_more(queue: Queue) -> None:
    small = queue.with_limits(watchers=1)
    assert await roles(small, "w1") == [Role.WATCHER]
    assert await roles(small.at(NOW + WATCHER_MS), "w2") == [Role.IDLE_WAITER]
    assert await roles(small.at(NOW + WATCHER_MS + 1), "w2") == [Role.WATCHER]


async def test_work_left_behind_wakes_a_watcher_and_an_idle_waiter(queue: Queue) -> None:
    await roles(queue, "w1", "w2")
    await queue.command("DEL", queue.keys.bench)
    for number in range(3):
        await queue.add("high", f"1000-{number}")
    assert (await queue.pull("w3", 1)).ready == 2
    after = await queue.dump()
    assert (after["wake"], after["bench"]) == ({"undelivered": 1}, ["1"])


async def test_nothing_is_said_when_nothing_is_left(queue: Queue) -> None:
    await roles(queue, "w1", "w2")
    await queue.command("DEL", queue.keys.bench)
    await queue.add("high", "1000-0")
    assert (await queue.pull("w3", 1)).ready == 0
    after = await queue.dump()
    assert ("wake" in after, "bench" in after) == (False, False)


async def test_nobody_is_woken_twice_for_the_same_work(queue: Queue) -> None:
    """A worker that only looks, and moves nothing, must not set off a round of wake-ups."""
    await queue.add("high", "1000-0")
    await queue.pull("w3", 0)
    await queue.command("ZADD", queue.keys.watch, NOW + 1, "w1", NOW + 1, "w2")
    await queue.command("DEL", queue.keys.bench)
    await queue.pull("w3", 0)
    after = await queue.dump()
    assert ("wake" in after, "bench" in after) == (False, False)


async def test_a_hint_put_back_by_one_without_room_wakes_others(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    hints = await queue.hand_out()
    await queue.command("ZADD", queue.keys.watch, NOW + 1, "w1", NOW + 1, "w2")
    await queue.pull("w3", 0, hints)
    after = await queue.dump()
    assert (after["wake"], after["bench"]) == ({"undelivered": 1}, ["1"])


async def test_a_wake_up_that_found_no_room_is_handed_on(queue: Queue) -> None:
    assert await roles(queue, "w1", "w2") == [Role.WATCHER, Role.WATCHER]
    await queue.add("high", "1000-0")
    await queue.pull("w3", 0)
    await queue.command("DEL", queue.keys.bench, queue.keys.wake)  # w3 took the wake-up, and has no room any more
    await queue.broker.ensure_groups()
    await queue.pull("w3", 0)
    assert not {"bench", "wake"} & set(await queue.dump())  # housekeeping alone calls nobody again
    await queue.pull("w3", 0, owing=True)
    after = await queue.dump()
    assert (after["wake"], after["bench"]) == ({"undelivered": 1}, ["1"])


async def test_there_is_at_most_one_token_and_one_wake_up(queue: Queue) -> None:
    await roles(queue, "w1")
    for number in range(20):
        await queue.add("high", f"1000-{number}")
        await queue.pull("w3", 0)
    after = await queue.dump()
    assert (after["wake"], after["bench"]) == ({"undelivered": 1}, ["1"])


async def test_a_watcher_blocks_until_an_entry_comes(queue: Queue) -> None:
    waiting = asyncio.ensure_future(queue.broker.wait(Role.WATCHER, 5_000))
    await _blocked(queue)
    await queue.add("low", "1000-0")
    assert await waiting == [Hint(Lane.LOW, "1000-0")]
    assert (await queue.dump())["lane:low"]["pending"] == {"1000-0": ("~", 1)}


async def test_an_idle_waiter_blocks_until_a_token_comes(queue: Queue) -> None:
    await roles(queue, "w1", "w2")
    await queue.command("DEL", queue.keys.bench)
    waiting = asyncio.ensure_future(queue.broker.wait_idle(5_000, "w3", 0))
    await _blocked(queue)
    for number in range(2):
        await queue.add("low", f"1000-{number}")
    await queue.pull("w3", 1)
    assert await waiting is False
    assert "bench" not in await queue.dump()


async def test_a_wait_ends_with_its_time(queue: Queue) -> None:
    assert await queue.broker.wait(Role.WATCHER, 1) == []
    assert await queue.broker.wait_idle(1, "w1", 0) is False


async def _blocked(queue: Queue) -> None:
    async def is_blocked() -> bool:
        return b"blocked_clients:0" not in await queue.command("INFO", "clients")

    await eventually(is_blocked, what="the wait has reached the server")
