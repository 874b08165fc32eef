"""pull.lua: what a worker does that got less than it asked for; wake.lua: no work without somebody who comes for it."""

from __future__ import annotations

import asyncio

from streamfleet.common.broker.types import Hint, Role
from streamfleet.common.protocol import Lane
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without
from tests.waiting import eventually

WATCHER_MS = 7_000


async def roles(queue: Queue, *workers: str) -> list[Role]:
    return [(await queue.pull(worker)).role for worker in workers]


async def told(queue: Queue) -> tuple[int, list[str]]:
    """Number of wake-ups for those that watch, and names of others that were woken; all is taken away."""
    names = [key.removeprefix("wake:") for key in await queue.dump() if key.startswith("wake:")]
    for name in names:
        await queue.command("DEL", queue.keys.wake_up(name))
    return len(await queue.read([])), names


@fails_without("roles: only so many watch", "own < bound and watching < cfg.watchers and", "own < bound and")
async def test_at_most_so_many_watch_and_the_others_wait(queue: Queue) -> None:
    assert await roles(queue, "w1", "w2", "w3", "w4") == [Role.WATCHER, Role.WATCHER, Role.WAITER, Role.WAITER]
    assert await queue.dump() == {
        "waiting": [("w1", 0), ("w2", 0), ("w3", 0), ("w4", 0)],
        "watch": [("w1", NOW + WATCHER_MS), ("w2", NOW + WATCHER_MS)],
    }


async def test_the_number_of_watchers_is_the_queues(queue: Queue) -> None:
    assert await roles(queue.with_limits(watchers=1), "w1", "w2") == [Role.WATCHER, Role.WAITER]


async def test_who_got_all_it_asked_for_has_no_role(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    assert await roles(queue, "w1", "w2") == [Role.NONE, Role.WATCHER]
    assert [name for name, _ in (await queue.dump())["waiting"]] == ["w2"]


@fails_without("pull: who asks for work waits no more")
async def test_who_got_all_it_asked_for_waits_no_more(queue: Queue) -> None:
    await roles(queue, "w1")
    await queue.add("high", "1000-0")
    assert await roles(queue, "w1") == [Role.NONE]
    assert not {"waiting", "watch"} & set(await queue.dump())


@fails_without("pull: staging ends no wait", "if arg.owing or arg.n > 0 then", "if true then")
async def test_staging_alone_gives_no_role_and_takes_none(queue: Queue) -> None:
    await roles(queue, "w1")
    async with queue.unchanged():
        assert (await queue.pull("w1", 0)).role is Role.NONE


async def test_a_watcher_that_leaves_gives_its_watch_to_another(queue: Queue) -> None:
    small = queue.with_limits(watchers=1)
    assert await roles(small, "w1", "w2") == [Role.WATCHER, Role.WAITER]
    await small.pull("w1", 0, owing=True)
    assert [name for name, _ in (await queue.dump())["watch"]] == ["w2"]
    assert await small.broker.wait(5_000, "w2") is True
    assert await roles(small, "w2") == [Role.WATCHER]


@fails_without("pull: a free watch is handed on")
async def test_a_watcher_that_takes_work_gives_its_watch_to_another(queue: Queue) -> None:
    small = queue.with_limits(watchers=1)
    assert await roles(small, "w1", "w2") == [Role.WATCHER, Role.WAITER]
    await queue.add("high", "1000-0")
    assert (await small.pull("w1", 1, await queue.hand_out(), owing=True)).claims
    assert [name for name, _ in (await queue.dump())["watch"]] == ["w2"]
    assert await told(queue) == (0, ["w2"])


@fails_without("pull: also when the answer was lost", "if arg.owing or arg.n > 0 then", "if arg.owing then")
async def test_a_watcher_that_does_not_know_its_role_gets_it_again(queue: Queue) -> None:
    """The answer that gave it the watch was lost: it must not wait by name while it counts as the watcher."""
    small = queue.with_limits(watchers=1)
    assert await roles(small, "w1", "w1") == [Role.WATCHER, Role.WATCHER]


@fails_without(
    "roles: a watch that has ended counts no more", "'ZRANGEBYSCORE', WATCH, now_ms(), '+inf'", "'ZRANGE', WATCH, 0, -1"
)
async def test_a_watch_that_was_not_renewed_counts_no_more(queue: Queue) -> None:
    small = queue.with_limits(watchers=1)
    assert await roles(small, "w1") == [Role.WATCHER]
    assert await roles(small.at(NOW + WATCHER_MS), "w2") == [Role.WAITER]
    assert await roles(small.at(NOW + WATCHER_MS + 1), "w2") == [Role.WATCHER]


@fails_without("pull: somebody is woken for work left behind", "left and (moved or arg.owing) and wake(left)", "false")
async def test_work_left_behind_wakes_one_that_waits(queue: Queue) -> None:
    await roles(queue, "w1", "w2", "w3")
    for number, woken in enumerate([(1, []), (1, []), (0, ["w3"])]):
        await queue.add("high", f"1000-{2 * number}")
        await queue.add("high", f"1000-{2 * number + 1}")
        assert (await queue.pull("w9", 1)).ready == number + 1
        assert await told(queue) == woken


async def test_nothing_is_said_when_nothing_is_left(queue: Queue) -> None:
    await roles(queue, "w1", "w2")
    await queue.add("high", "1000-0")
    assert (await queue.pull("w3", 1)).ready == 0
    assert await told(queue) == (0, [])


@fails_without("pull: nobody woken when nothing moved", "moved = #claims + dropped + staged > 0", "moved = true")
async def test_nobody_is_woken_twice_for_the_same_work(queue: Queue) -> None:
    """A worker that only looks, and moves nothing, must not set off a round of wake-ups."""
    await roles(queue, "w1", "w2")
    await queue.add("high", "1000-0")
    for woken in (1, 0):
        await queue.pull("w3", 0)
        assert await told(queue) == (woken, [])


async def test_a_hint_put_back_by_one_without_room_wakes_another(queue: Queue) -> None:
    await roles(queue, "w1", "w2")
    await queue.add("high", "1000-0")
    await queue.pull("w3", 0, await queue.hand_out())
    assert await told(queue) == (1, [])


@fails_without("pull: a wake-up without room is handed on", "left and (moved or arg.owing) and", "left and moved and")
async def test_a_wake_up_that_found_no_room_is_handed_on(queue: Queue) -> None:
    await roles(queue, "w1", "w2")
    await queue.add("high", "1000-0")
    await queue.pull("w3", 0)
    await told(queue)  # w3 took the wake-up, and has no room any more
    await queue.pull("w3", 0)
    assert await told(queue) == (0, [])  # housekeeping alone calls nobody again
    await queue.pull("w3", 0, owing=True)
    assert await told(queue) == (1, [])


@fails_without("wake: no more wake-ups than may watch", "'MAXLEN', cfg.watchers, '*'", "'*'")
async def test_there_are_no_more_wake_ups_than_workers_that_may_watch(queue: Queue) -> None:
    await roles(queue, "w1")
    for number in range(20):
        await queue.add("high", f"1000-{number}")
        await queue.pull("w3", 0)
    assert (await queue.dump())["wake"] == {"undelivered": 2}


@fails_without("wake: who does not come is passed over")
@fails_without(
    "wake: one token is enough", "redis.pcall('LLEN', list) ~= 0", "type(redis.pcall('LLEN', list)) ~= 'number'"
)
async def test_a_worker_has_one_token_and_who_does_not_come_for_it_is_passed_over(queue: Queue) -> None:
    await roles(queue, "w1", "w2", "w3", "w4")
    await queue.command("DEL", queue.keys.watch)
    await queue.command("ZREM", queue.keys.waiting, "w1", "w2")
    for number, (tokens, waiting) in enumerate([
        ((1, 0), [("w4", 0), ("w3", 2)]),
        ((1, 1), [("w3", 2), ("w4", 2)]),
        ((1, 1), []),
    ]):  # fmt: skip
        await queue.add("high", f"1000-{number}")
        await queue.with_limits(watchers=0).pull("w9", 0)
        keys = [queue.keys.wake_up(name) for name in ("w3", "w4")]
        assert tuple([await queue.command("LLEN", key) for key in keys]) == tokens
        assert (await queue.dump()).get("waiting", []) == waiting


@fails_without("roles: what was said before this pull counts no more")
async def test_what_was_said_before_a_pull_counts_no_more(queue: Queue) -> None:
    await roles(queue, "w1", "w2", "w3")
    await queue.command("RPUSH", queue.keys.wake_up("w3"), "watch")
    assert await roles(queue, "w3") == [Role.WAITER]
    assert await told(queue) == (0, [])


async def test_a_watcher_blocks_until_an_entry_comes(queue: Queue) -> None:
    waiting = asyncio.ensure_future(queue.broker.watch(5_000))
    await _blocked(queue)
    await queue.add("low", "1000-0")
    assert await waiting == [Hint(Lane.LOW, "1000-0")]
    assert (await queue.dump())["lane:low"]["pending"] == {"1000-0": ("~", 1)}


async def test_a_worker_blocks_until_it_is_woken(queue: Queue) -> None:
    await roles(queue, "w1", "w2", "w3")
    await queue.command("ZREM", queue.keys.waiting, "w1", "w2")
    waiting = asyncio.ensure_future(queue.broker.wait(5_000, "w3"))
    await _blocked(queue)
    for number in range(2):
        await queue.add("low", f"1000-{number}")
    await queue.pull("w9", 1)
    assert await waiting is False
    assert await told(queue) == (0, [])


async def test_a_wait_ends_with_its_time(queue: Queue) -> None:
    assert await queue.broker.watch(1) == []
    assert await queue.broker.wait(1, "w1") is False


async def _blocked(queue: Queue) -> None:
    async def is_blocked() -> bool:
        return b"blocked_clients:0" not in await queue.command("INFO", "clients")

    await eventually(is_blocked, what="the wait has reached the server")
