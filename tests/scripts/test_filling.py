"""Even filling: the emptiest of those that wait is woken first, and takes what others have less room for."""

from __future__ import annotations

from typing import Any

from streamfleet.common.broker.types import Home, Lease, Pulled, Role
from streamfleet.common.protocol import Lane
from tests.scripts.harness import NOW, Queue, ids
from tests.scripts.mutants import fails_without


async def pull(queue: Queue, worker: str, wanted: int = 30, held: int = 0, **more: Any) -> Pulled:
    return await queue.pull(worker, wanted, home=Home("a", held), **more)


async def waiting(queue: Queue, **held: int) -> None:
    """Two workers watch that hold many requests, and these wait with so many."""
    await pull(queue, "x1", held=100)
    await pull(queue, "x2", held=100)
    for worker, number in held.items():
        assert (await pull(queue, worker, held=number)).role is Role.WAITER


async def add(queue: Queue, number: int) -> None:
    for each in range(number):
        await queue.add("high", f"{NOW}-{each}")


async def woken(queue: Queue, *workers: str) -> list[str]:
    """Workers that have a token. Takes the tokens."""
    return [name for name in workers if await queue.command("LPOP", queue.keys.wake_up(name))]


async def test_of_those_that_wait_the_emptiest_is_woken_first(queue: Queue) -> None:
    await waiting(queue, w1=7, w2=3, w3=5)
    await add(queue, 5)
    for worker in ("w2", "w3", "w1"):
        await queue.pull("x9", 1)
        assert await woken(queue, "w1", "w2", "w3") == [worker]
        await queue.command("ZREM", queue.keys.waiting, worker)  # it comes


@fails_without("wake: who was woken counts as having taken its part")
async def test_who_was_woken_counts_as_having_taken_its_part(queue: Queue) -> None:
    await waiting(queue, w1=2, w2=3)
    await add(queue, 9)
    for name in ("w1", "w2", "w1", "w2"):
        await queue.pull("x9", 1)
        assert await woken(queue, "w1", "w2") == [name]


@fails_without("wake: where a worker's list is of another type, no wake-up is lost", ", list) ~= 0", ", list) == 1")
async def test_a_worker_whose_list_is_of_another_type_is_passed_over(queue: Queue) -> None:
    await waiting(queue, w1=0, w2=0)
    await queue.command("HSET", queue.keys.wake_up("w1"), "of", "another type")
    await add(queue, 2)
    await queue.pull("x9", 1)
    assert await queue.command("LLEN", queue.keys.wake_up("w2")) == 1


@fails_without("roles: the emptiest watches", " and not emptier_waits(own, watching)", "")
async def test_a_watcher_that_took_work_makes_way_for_an_emptier_worker(queue: Queue) -> None:
    small = queue.with_limits(watchers=1)
    assert (await pull(small, "w1")).role is Role.WATCHER
    assert (await pull(small, "w2")).role is Role.WAITER
    await add(queue, 1)
    first = await pull(small, "w1")
    assert (len(first.claims), first.role) == (1, Role.WATCHER)  # one more is not worth it
    await queue.add("high", f"{NOW}-9")
    second = await pull(small, "w1", held=1)
    assert (len(second.claims), second.role) == (1, Role.WAITER)
    assert await woken(queue, "w1", "w2") == ["w2"]
    assert (await pull(small, "w2", owing=True)).role is Role.WATCHER


async def handed_over(queue: Queue) -> Queue:
    """The only watch goes from w1 to w2, because w1 took two more requests. Returns the queue with one watch."""
    small = queue.with_limits(watchers=1)
    await pull(small, "w1")
    await pull(small, "w2", held=1)
    await add(queue, 2)
    assert (await pull(small, "w1", held=1)).role is Role.WAITER
    return small


@fails_without("watch: one that is handed over is counted")
async def test_a_watch_is_handed_over_without_a_pull(queue: Queue) -> None:
    small = await handed_over(queue)
    assert (await queue.dump())["watch"] == [("w2", NOW + 1_500)]
    assert await small.broker.wait(5_000, "w2") is True
    await queue.add("high", f"{NOW}-9")
    assert await small.broker.watch(5_000)


@fails_without("watch: a dead worker does not watch for long", "now_ms() + 1500", "now_ms() + 7000")
async def test_a_watch_that_was_handed_over_to_a_dead_worker_ends(queue: Queue) -> None:
    small = await handed_over(queue)
    await small.at(NOW + 1_501).broker.tend_waiting()
    assert "watch" not in await queue.dump()
    assert await woken(queue, "w1", "w2") == ["w1", "w2"]


@fails_without("watch: none is handed over while something waits", "hand_watch(bound, calm)", "hand_watch(bound, true)")
async def test_who_is_to_watch_while_something_waits_pulls_first(queue: Queue) -> None:
    """A request of a session waits for another worker here, and may be anybody's before long."""
    small = queue.with_limits(watchers=1)
    await queue.add("low", f"{NOW}-0", session="s")
    (claim,) = (await pull(small, "w9", 1)).claims
    await pull(small, "w1")
    await pull(small, "w2")
    await queue.complete("w9", claim.lease)
    await queue.add("low", f"{NOW}-1", session="s")
    await queue.add("high", f"{NOW}-2")
    await queue.add("high", f"{NOW}-3")
    pulled = await pull(small, "w1")
    assert (len(pulled.claims), pulled.ready, pulled.role) == (2, 1, Role.WAITER)
    assert await small.broker.wait(5_000, "w2") is False
    assert (await pull(small, "w2", owing=True)).soonest_ms is not None


async def test_steps_are_small_while_an_idle_waiter_has_more_room(queue: Queue) -> None:
    await waiting(queue, w2=1)
    await add(queue, 10)
    pulled = await pull(queue, "w1")
    assert (len(pulled.claims), pulled.role) == (3, Role.NONE)  # it pulls again, and w2 is on its way
    assert await woken(queue, "w2") == ["w2"]
    assert len((await pull(queue, "w2", held=1, owing=True)).claims) == 9 - 2


@fails_without("filling: small steps while others have more room")
@fails_without("filling: one at least is taken", ".max(1, math.min(arg.n, first", ".max(0, math.min(arg.n, first")
async def test_steps_are_small_while_a_watcher_has_more_room(queue: Queue) -> None:
    assert (await pull(queue, "w2", held=1)).role is Role.WATCHER
    await add(queue, 10)
    assert len((await pull(queue, "w1")).claims) == 3
    assert len((await pull(queue, "w1", held=3)).claims) == 2  # w2 was woken, and counts as having taken its part
    assert len((await pull(queue, "w1", held=9)).claims) == 1  # one at least: w2 may be dead
    assert len((await pull(queue, "w2", held=1, owing=True)).claims) == 4


async def test_a_worker_alone_takes_what_it_has_room_for(queue: Queue) -> None:
    await add(queue, 10)
    assert len((await pull(queue, "w1", held=20)).claims) == 10


@fails_without(
    "filling: what waits for a worker alone is taken at once",
    "wanted = math.max(wanted, math.min(arg.n, TURNS.own()))",
    "wanted = wanted",
)
async def test_what_waits_for_a_worker_alone_is_taken_at_once(queue: Queue) -> None:
    await queue.add("low", f"{NOW}-0", session="s")
    (claim,) = (await pull(queue, "w1", 1)).claims
    await queue.complete("w1", claim.lease)
    for each in range(1, 9):
        await queue.add("high", f"{NOW}-{each}", session="s")
    assert (await pull(queue, "w2")).role is Role.WATCHER
    assert len((await pull(queue, "w1", 5)).claims) == 5


@fails_without("filling: no worker holds less than nothing", "math.min(score % NO_SLOT, number)", "number")
async def test_no_worker_holds_less_than_nothing(queue: Queue) -> None:
    """A worker may say that one has ended which it did not count: another has it by now."""
    await waiting(queue, w1=0)
    await queue.complete("w1", Lease(Lane.HIGH, "1000-0", 1, "r"))
    assert ("w1", 0) in (await queue.dump())["waiting"]


@fails_without("filling: what has ended is not held any more")
async def test_what_ended_while_its_worker_waits_is_not_held(queue: Queue) -> None:
    await add(queue, 5)
    claims = (await pull(queue, "w1", 5)).claims
    await waiting(queue, w1=5, w2=2)
    await queue.complete("w1", *[claim.lease for claim in claims[:4]])
    await queue.add("high", f"{NOW}-8")
    await queue.add("high", f"{NOW}-9")
    await queue.pull("x9", 1)
    assert await woken(queue, "w1", "w2") == ["w1"]


async def test_what_ended_while_its_worker_watches_is_not_held(queue: Queue) -> None:
    await add(queue, 5)
    claims = (await pull(queue, "w1", 5)).claims
    assert (await pull(queue, "w1", held=5)).role is Role.WATCHER
    await queue.complete("w1", *[claim.lease for claim in claims])
    for each in range(6, 20):
        await queue.add("high", f"{NOW}-{each}")
    assert len((await pull(queue, "w2")).claims) == 2
    ((_, score),) = (await queue.dump())["watch"]
    assert score == NOW + 7_000


@fails_without("tend_waiting: dead watchers are replaced", ", watching < cfg.watchers and bound or 0)", ", 0)")
@fails_without("tend_waiting: dead watchers are struck off")
@fails_without("tend_waiting: who is dead is not woken")
async def test_the_housekeeping_replaces_watches_that_have_ended(queue: Queue) -> None:
    await waiting(queue, w1=4, w2=4)
    async with queue.unchanged():
        await queue.broker.tend_waiting()
    late = queue.at(NOW + 7_001)
    await late.broker.tend_waiting()
    assert "watch" not in await queue.dump()
    assert await woken(queue, "x1", "x2", "w1", "w2") == ["w1", "w2"]


@fails_without("pull: who was woken and has no room waits no more", "if arg.owing or arg.n > 0", "if arg.n > 0")
async def test_who_asks_again_waits_no_more(queue: Queue) -> None:
    await waiting(queue, w1=4)
    await pull(queue, "w1", 0, owing=True)  # it was woken, and has no room
    assert "w1" not in [name for name, _ in (await queue.dump())["waiting"]]


@fails_without("deregister: no wake-up for the gone")
async def test_a_worker_that_leaves_is_not_woken(queue: Queue) -> None:
    await waiting(queue, w1=0)
    await queue.broker.deregister("w1")
    await add(queue, 2)
    await queue.pull("x9", 1)
    assert await woken(queue, "w1") == []


async def test_all_is_taken_in_order(queue: Queue) -> None:
    await waiting(queue, w2=0)
    await add(queue, 6)
    pulls = [await pull(queue, worker, held=held) for worker, held in (("w1", 0), ("w1", 2), ("w2", 0))]
    assert [len(each.claims) for each in pulls] == [2, 2, 2]
    assert [name for each in pulls for name in ids(each.claims)] == [f"{NOW}-{each}" for each in range(6)]


@fails_without(
    "filling: what has ended is counted where the directory has another type",
    "tonumber(call_if_typed('ZSCORE', WAITING, worker) or nil)",
    "tonumber(call('ZSCORE', WAITING, worker) or nil)",
)
async def test_what_has_ended_is_counted_where_the_directory_has_another_type(queue: Queue) -> None:
    lease = await queue.running()
    await queue.command("DEL", queue.keys.waiting)
    await queue.command("SET", queue.keys.waiting, "by hand")
    assert await queue.complete("w1", lease) == [1]
    assert (await queue.dump())["counts"] == {"staged": "1", "succeeded": "1"}
