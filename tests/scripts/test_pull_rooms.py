"""Pulls of workers that have room for the requests of some lanes only, and who hears of urgent work meanwhile."""

from __future__ import annotations

import pytest

from streamfleet.common.broker.types import Hint, Home, Role, Rooms
from streamfleet.common.protocol import Lane
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without
from tests.scripts.test_pull_roles import told

WATCHER_MS = 7_000
IDLE = (3, 3, 3, 3)
FULL_OF_LOW = (2, 2, 2, 0)
FULL_OF_NORMAL = (2, 2, 0, 0)
GIVES_WAY = (1, 1, 0, 0)


async def pull(queue: Queue, rooms: tuple[int, ...], worker: str = "w1", **more: object) -> tuple[list[str], Role]:
    """The lanes of what a worker got, and its role."""
    free = 0 if rooms == GIVES_WAY else max(rooms)
    owed = more.pop("owed", (free,) * 4)
    pulled = await queue.broker.pull(worker, Rooms(rooms, owed, free), more.pop("hints", ()), **more)  # type: ignore[arg-type]
    return [claim.lease.lane.value for claim in pulled.claims], pulled.role


async def fill(queue: Queue, *lanes: str) -> None:
    for number, lane in enumerate(lanes):
        await queue.add(lane, f"{1000 + number}-0")


async def test_a_lane_without_room_is_passed_over(queue: Queue) -> None:
    await fill(queue, "low", "low", "normal", "high", "critical")
    assert await pull(queue, GIVES_WAY) == (["critical"], Role.NONE)
    assert await pull(queue, FULL_OF_LOW) == (["high", "normal"], Role.NONE)
    assert (await pull(queue, FULL_OF_LOW))[0] == []
    assert await pull(queue, (5, 5, 5, 1)) == (["low"], Role.WATCHER)


@fails_without("choose: nothing of the only lane either", ", waiting[only], arg.rooms[only] - taken", ", waiting[only]")
async def test_the_only_lane_that_waits_has_its_room_too(queue: Queue) -> None:
    await fill(queue, "low", "low", "low")
    assert (await pull(queue, (3, 3, 3, 1)))[0] == ["low"]


@fails_without("choose: nothing of a lane that the worker has no room for", "= taken < arg.rooms[lane]", "= true")
async def test_what_others_got_counts_for_the_room_of_a_lane(queue: Queue) -> None:
    await fill(queue, "low", "low", "low", "high")
    assert (await pull(queue, (4, 4, 4, 2)))[0] == ["high", "low"]


async def test_a_lane_that_has_to_wait_is_owed_its_share(queue: Queue) -> None:
    """Of twenty urgent requests that were taken where `low` has no room, one was its turn."""
    await fill(queue, "low", *["high"] * 22)
    for _ in range(20):
        assert (await pull(queue, (1, 1, 1, 0)))[0] == ["high"]
    assert (await pull(queue, (1, 1, 1, 1)))[0] == ["low"]
    assert (await pull(queue, (1, 1, 1, 1)))[0] == ["high"]


@fails_without("choose: a lane that is owed a pick gets a free slot", "if not open and top and", "if false and")
async def test_a_lane_that_is_owed_gets_a_free_slot_while_others_want_more_than_there_is(queue: Queue) -> None:
    await fill(queue, "low", *["high"] * 24)
    for _ in range(10):
        assert (await pull(queue, FULL_OF_LOW))[0] == ["high", "high"]
    assert (await pull(queue, FULL_OF_LOW))[0] == ["high", "low"]


@fails_without("choose: only while others want more than there is", " = before > arg.rooms[top] - taken and ", " = ")
async def test_a_lane_that_is_owed_leaves_room_for_all_that_wait_before_it(queue: Queue) -> None:
    await fill(queue, "low", *["high"] * 22)
    for _ in range(11):
        assert (await pull(queue, FULL_OF_LOW))[0] == ["high", "high"]


@fails_without("choose: a lane that is owed a pick gets no more than its own part", "< arg.owed[lane]", "< arg.owed[1]")
async def test_a_lane_that_is_owed_gets_no_more_than_its_own_part(queue: Queue) -> None:
    await fill(queue, "low", *["high"] * 30)
    for _ in range(15):
        assert (await pull(queue, FULL_OF_LOW, owed=(2, 2, 2, 0)))[0] == ["high", "high"]


async def roles(queue: Queue, *workers: tuple[str, tuple[int, ...]]) -> list[Role]:
    """Roles of workers that pull one after the other, where something waits that none of them may take."""
    return [(await pull(queue, rooms, worker, owing=True))[1] for worker, rooms in workers]


async def test_full_workers_watch_while_no_idle_one_does(queue: Queue) -> None:
    await fill(queue, "low")
    full = [(f"w{number}", FULL_OF_LOW) for number in range(3)]
    assert await roles(queue, *full) == [Role.WATCHER, Role.WATCHER, Role.WAITER]
    assert await roles(queue, full[1]) == [Role.WATCHER]  # it keeps its watch


@fails_without("roles: nobody watches beside one with more room", "waits and own < bound and", "waits and")
async def test_nobody_that_is_full_watches_where_an_idle_worker_does(queue: Queue) -> None:
    assert await roles(queue, ("idle", IDLE), ("full", FULL_OF_LOW)) == [Role.WATCHER, Role.WAITER]
    assert await told(queue) == (0, [])


@fails_without("watch: none is handed to a full worker beside an idle one", "(bound, calm)", "(math.huge, calm)")
async def test_an_idle_worker_hands_no_watch_to_a_full_one(queue: Queue) -> None:
    await roles(queue, ("i1", IDLE), ("i2", IDLE), ("full", FULL_OF_LOW))
    await roles(queue, ("i1", (0, 0, 0, 0)))
    assert [name for name, _ in (await queue.dump())["watch"]] == ["i2"]
    assert await told(queue) == (0, [])


@fails_without("roles: who has less room makes way at once, so that a full worker never wins against an idle one")
@fails_without("roles: each of those that make way is told", "'MAXLEN', cfg.watchers,", "'MAXLEN', 1,")
async def test_full_workers_make_way_for_an_idle_one_at_once(queue: Queue) -> None:
    """An arrival would go to the one that blocks for longest."""
    await roles(queue, ("f1", FULL_OF_LOW), ("f2", GIVES_WAY), ("f3", FULL_OF_LOW))
    assert await roles(queue, ("idle", IDLE)) == [Role.WATCHER]
    assert [name for name, _ in (await queue.dump())["watch"]] == ["idle"]
    assert (await queue.dump())["wake"] == {"undelivered": 2}
    assert await roles(queue, ("f1", FULL_OF_LOW), ("f3", FULL_OF_LOW)) == [Role.WAITER, Role.WAITER]


@fails_without("roles: who would have to interrupt makes way", "(got < arg.free and 0 or NO_SLOT)", "0")
async def test_who_would_have_to_interrupt_watches_only_where_nobody_has_a_free_slot(queue: Queue) -> None:
    await fill(queue, "low")
    assert await roles(queue, ("full", GIVES_WAY)) == [Role.WATCHER]
    await told(queue)
    assert await roles(queue, ("w1", FULL_OF_NORMAL)) == [Role.WATCHER]
    assert await told(queue) == (1, [])  # it makes way
    assert await roles(queue, ("full", GIVES_WAY)) == [Role.WAITER]
    assert await roles(queue, ("w2", FULL_OF_NORMAL), ("w3", FULL_OF_NORMAL)) == [Role.WATCHER, Role.WAITER]


@fails_without(
    "roles: who has room for more lanes comes first", "LANE_COUNT - lanes_open", "lanes_open == LANE_COUNT and 0 or 3"
)
async def test_who_has_a_free_slot_for_more_lanes_watches(queue: Queue) -> None:
    """Else nobody would hear of `normal` work where a worker that is full of it watches, and another one has room."""
    await fill(queue, "low")
    for worker, rooms, role in [
        ("n1", FULL_OF_NORMAL, Role.WATCHER),
        ("n2", FULL_OF_NORMAL, Role.WATCHER),
        ("n3", FULL_OF_NORMAL, Role.WAITER),
        ("l1", FULL_OF_LOW, Role.WATCHER),
        ("n1", FULL_OF_NORMAL, Role.WAITER),
        ("n2", FULL_OF_NORMAL, Role.WAITER),
        ("l2", FULL_OF_LOW, Role.WATCHER),
        ("l3", FULL_OF_LOW, Role.WAITER),
    ]:
        assert (worker, *await roles(queue, (worker, rooms))) == (worker, role)


async def test_who_has_less_room_than_before_gives_its_watch_to_another(queue: Queue) -> None:
    await fill(queue, "low")
    await roles(queue, ("w1", FULL_OF_LOW), ("w2", FULL_OF_LOW), ("w3", FULL_OF_LOW))
    await told(queue)
    assert await roles(queue, ("w1", FULL_OF_LOW)) == [Role.WATCHER]
    assert await told(queue) == (0, [])
    assert await roles(queue, ("w1", FULL_OF_NORMAL)) == [Role.WAITER]
    assert await told(queue) == (0, ["w3"])
    assert await roles(queue, ("w3", FULL_OF_LOW)) == [Role.WATCHER]


async def test_who_has_no_room_left_gives_its_watch_to_another(queue: Queue) -> None:
    await fill(queue, "low")
    await roles(queue, ("w1", FULL_OF_LOW), ("w2", FULL_OF_LOW), ("w3", FULL_OF_LOW))
    await told(queue)
    await roles(queue, ("w1", (0, 0, 0, 0)))
    assert await told(queue) == (0, ["w3"])
    assert await roles(queue, ("w3", FULL_OF_LOW)) == [Role.WATCHER]


async def test_a_watcher_without_a_free_slot_that_has_died_makes_way_once(queue: Queue) -> None:
    """Or the one that takes its place would wake itself again and again, until the dead one's time is over."""
    await fill(queue, "low")
    await roles(queue, ("dead", GIVES_WAY), ("w1", FULL_OF_LOW))
    assert await told(queue) == (1, [])
    assert await roles(queue, ("w1", FULL_OF_LOW)) == [Role.WATCHER]
    assert await told(queue) == (0, [])


async def test_the_watch_of_a_full_worker_that_is_gone_is_free(queue: Queue) -> None:
    await fill(queue, "low")
    await roles(queue, ("w1", FULL_OF_LOW), ("w2", FULL_OF_LOW))
    assert await roles(queue.at(NOW + WATCHER_MS), ("w3", FULL_OF_LOW)) == [Role.WAITER]
    assert await roles(queue.at(NOW + WATCHER_MS + 1), ("w3", FULL_OF_LOW)) == [Role.WATCHER]


@pytest.mark.parametrize(
    ("lane", "woken"), [("critical", ["idle", "l1", "n1", "full"]), ("normal", ["idle", "l1"]), ("low", ["idle"])]
)
async def test_who_has_most_room_is_woken_first_and_nobody_without_room(
    queue: Queue, lane: str, woken: list[str]
) -> None:
    """Of those with the same room, the one that holds the fewest requests."""
    one = queue.with_limits(watchers=0)
    for worker, rooms, held in [("full", GIVES_WAY, 1), ("n1", FULL_OF_NORMAL, 1), ("l1", FULL_OF_LOW, 9)]:
        await pull(one, rooms, worker, home=Home("a", held))
    await pull(one, IDLE, "idle", home=Home("a", 99))
    for number in range(4):
        await queue.add(lane, f"1000-{number}")
        await one.pull("w9", 0)
        assert await told(queue) == (0, woken[number : number + 1])
        await queue.command("ZREM", queue.keys.waiting, *woken[: number + 1])  # it comes


@fails_without("wake: a full worker hears of urgent requests", "(LANE_COUNT - lane + 1) * NO_ROOM", "NO_ROOM")
async def test_a_worker_full_of_patient_requests_is_woken_for_an_urgent_one(queue: Queue) -> None:
    """Two others watch, and do not hear of what a worker left behind."""
    await roles(queue, ("w1", GIVES_WAY), ("w2", GIVES_WAY), ("w3", GIVES_WAY))
    await queue.command("ZREM", queue.keys.waiting, "w1", "w2")
    await fill(queue, "critical", "critical")
    assert (await pull(queue, GIVES_WAY, "w4"))[0] == ["critical"]
    assert await told(queue) == (0, ["w3"])
    assert (await pull(queue, GIVES_WAY, "w3", owing=True))[0] == ["critical"]


@fails_without("wake: nobody without room", "(LANE_COUNT - lane + 1) * NO_ROOM", "math.huge")
async def test_full_workers_do_not_wake_each_other_for_what_none_can_take(queue: Queue) -> None:
    await fill(queue, "low", "normal")
    await roles(queue, ("w1", GIVES_WAY), ("w2", GIVES_WAY), ("w3", GIVES_WAY))
    await told(queue)
    for worker in ("w1", "w2", "w3"):
        await roles(queue, (worker, GIVES_WAY))
        assert await told(queue) == (0, [])


@fails_without("wake: a watch that has ended counts no more", "or 0) >= now_ms() end", "or 0) > 0 end")
async def test_full_workers_do_not_wake_each_other_for_what_a_dead_watcher_could_take(queue: Queue) -> None:
    await pull(queue.at(NOW - WATCHER_MS - 1), IDLE, "dead")
    await fill(queue, "normal")
    for _ in range(3):
        await roles(queue, ("w1", GIVES_WAY))
        assert (await told(queue))[0] == 0


@pytest.mark.parametrize("lane", ["critical", "high"])
async def test_a_full_worker_hears_a_plain_xadd_in_its_lanes_alone(queue: Queue, lane: str) -> None:
    await fill(queue, "low")
    await pull(queue, GIVES_WAY)
    await queue.add("low", "2000-0")
    await queue.add(lane, "2001-0")
    hints = await queue.broker.watch(5_000, [Lane.CRITICAL, Lane.HIGH])
    assert hints == [Hint(Lane(lane), "2001-0")]
    assert await pull(queue, GIVES_WAY, hints=hints) == ([lane], Role.NONE)


@fails_without("release: an interruption is counted")
async def test_what_gave_way_goes_back_to_its_rank_and_is_counted(queue: Queue) -> None:
    lease = await queue.running("low")
    await queue.add("low", "1001-0")
    assert await queue.broker.release("w1", [lease], gave_way=True) == 1
    claims = (await queue.pull("w2", 2)).claims
    assert [(claim.lease.stream_id, claim.lease.attempt, claim.interrupted) for claim in claims] == [
        ("1000-0", 1, 1),
        ("1001-0", 1, 0),
    ]
    await queue.broker.release("w2", [claims[0].lease], gave_way=True)
    (again,) = (await queue.pull("w3")).claims
    assert again.interrupted == 2


@fails_without("interrupted: forgotten with the entry")
@fails_without("interrupted: their number is kept")
async def test_nothing_is_left_of_its_interruptions_when_it_has_ended(queue: Queue) -> None:
    first, second = await queue.running("low"), await queue.running("low", "1001-0")
    await queue.broker.release("w1", [first, second], gave_way=True)
    assert await queue.command("HGET", "{q}:lanes", "interrupted") == b"2"
    one, two = (await queue.pull("w1", 2)).claims
    await queue.complete("w1", one.lease)
    assert await queue.command("HGET", "{q}:lanes", "interrupted") == b"1"
    await queue.complete("w1", two.lease)
    left = await queue.command("HKEYS", "{q}:entries") + await queue.command("HKEYS", "{q}:lanes")
    assert not [name for name in left if b"interrupted" in name]


async def test_a_request_that_is_no_longer_this_workers_is_not_counted(queue: Queue) -> None:
    lease = await queue.running("low")
    assert await queue.broker.release("w2", [lease], gave_way=True) == 0
    assert await queue.command("HGET", "{q}:lanes", "interrupted") is None


@fails_without(
    "interrupted: records of another type lose nothing",
    "call_if_typed('HSET', ENTRIES, interrupted_field",
    "call('HSET', ENTRIES, interrupted_field",
)
async def test_what_is_known_of_entries_is_left_alone_where_it_has_another_type(queue: Queue) -> None:
    """An error halfway would lose what a pull took."""
    await queue.command("SET", queue.keys.entries, "by hand")
    await queue.add("low", f"{NOW + 5_000}-0", ttl=60_000)
    claims, role = await pull(queue, FULL_OF_LOW)
    assert (claims, role) == ([], Role.WATCHER)
    lease = await queue.claim()
    assert await queue.broker.release("w1", [lease], gave_way=True) == 1
    (again,) = (await queue.pull("w1")).claims
    assert again.interrupted == 0
    assert await queue.complete("w1", again.lease) == [1]
    assert await queue.command("HGET", queue.keys.lane_states, "interrupted") is None
