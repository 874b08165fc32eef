"""Pulls of workers that have room for the requests of some lanes only, and who hears of urgent work meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from streamfleet.common.broker.types import WOKEN, Hint, Role, Rooms
from streamfleet.common.protocol import Lane
from tests.scripts.harness import NOW, Queue

LISTENING_MS = 7_000
FULL_OF_LOW = (2, 2, 2, 0)
FULL_OF_NORMAL = (2, 2, 0, 0)
GIVES_WAY = (1, 1, 0, 0)


async def pull(
    queue: Queue, rooms: tuple[int, ...], worker: str = "w1", patient: int = 4, **more: object
) -> tuple[list[str], Role]:
    """The lanes of what a worker got, and its role."""
    free = 0 if rooms == GIVES_WAY else max(rooms)
    owed = more.pop("owed", (free,) * 4)
    pulled = await queue.broker.pull(worker, Rooms(rooms, owed, free, patient), more.pop("hints", ()), **more)  # type: ignore[arg-type]
    return [claim.lease.lane.value for claim in pulled.claims], pulled.role


async def fill(queue: Queue, *lanes: str) -> None:
    for number, lane in enumerate(lanes):
        await queue.add(lane, f"{1000 + number}-0")


async def test_a_lane_without_room_is_passed_over(queue: Queue) -> None:
    await fill(queue, "low", "low", "normal", "high", "critical")
    assert await pull(queue, GIVES_WAY) == (["critical"], Role.NONE)
    assert await pull(queue, FULL_OF_LOW) == (["high", "normal"], Role.NONE)
    assert (await pull(queue, FULL_OF_LOW))[0] == []
    assert await pull(queue, (5, 5, 5, 1)) == (["low"], Role.LISTENER)


async def test_the_only_lane_that_waits_has_its_room_too(queue: Queue) -> None:
    await fill(queue, "low", "low", "low")
    assert (await pull(queue, (3, 3, 3, 1)))[0] == ["low"]


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


async def test_a_lane_that_is_owed_gets_a_free_slot_while_others_want_more_than_there_is(queue: Queue) -> None:
    await fill(queue, "low", *["high"] * 24)
    for _ in range(10):
        assert (await pull(queue, FULL_OF_LOW))[0] == ["high", "high"]
    assert (await pull(queue, FULL_OF_LOW))[0] == ["high", "low"]


async def test_a_lane_that_is_owed_leaves_room_for_all_that_wait_before_it(queue: Queue) -> None:
    await fill(queue, "low", *["high"] * 22)
    for _ in range(11):
        assert (await pull(queue, FULL_OF_LOW))[0] == ["high", "high"]


async def test_a_lane_that_is_owed_gets_no_more_than_its_own_part(queue: Queue) -> None:
    await fill(queue, "low", *["high"] * 30)
    for _ in range(15):
        assert (await pull(queue, FULL_OF_LOW, owed=(2, 2, 2, 0)))[0] == ["high", "high"]


async def test_a_full_worker_listens_while_nobody_watches(queue: Queue) -> None:
    await fill(queue, "low")
    assert [(await pull(queue, FULL_OF_LOW, f"w{number}"))[1] for number in range(3)] == [
        Role.LISTENER,
        Role.LISTENER,
        Role.STANDBY,
    ]
    assert (await pull(queue, FULL_OF_LOW, "w1"))[1] is Role.LISTENER  # it keeps its seat


async def test_nobody_listens_where_an_idle_worker_watches(queue: Queue) -> None:
    assert (await pull(queue, (3, 3, 3, 3), "idle"))[1] is Role.WATCHER
    await queue.broker.ensure_groups()
    assert (await pull(queue, FULL_OF_LOW))[1] is Role.STANDBY


async def test_who_would_have_to_interrupt_listens_only_where_nobody_has_a_free_slot(queue: Queue) -> None:
    await fill(queue, "low")
    assert (await pull(queue, GIVES_WAY, "full"))[1] is Role.LISTENER
    assert (await pull(queue, GIVES_WAY, "also full"))[1] is Role.STANDBY
    listening = asyncio.ensure_future(queue.broker.wait(Role.LISTENER, 5_000, [Lane.CRITICAL, Lane.HIGH]))
    await asyncio.sleep(0)
    assert (await pull(queue, FULL_OF_LOW, "w1"))[1] is Role.LISTENER
    assert await listening != []  # it is woken, and pulls
    assert (await pull(queue, GIVES_WAY, "full", owing=True))[1] is Role.STANDBY
    assert (await pull(queue, FULL_OF_LOW, "w2"))[1] is Role.LISTENER
    assert (await pull(queue, FULL_OF_LOW, "w3"))[1] is Role.STANDBY


async def test_who_has_a_free_slot_takes_the_seat_of_one_that_has_none(queue: Queue) -> None:
    await fill(queue, "low")
    assert (await pull(queue, FULL_OF_LOW, "w1"))[1] is Role.LISTENER
    await queue.command("HSET", "{q}:listeners", "1", f"{NOW + LISTENING_MS} 0 full")
    assert (await pull(queue, FULL_OF_LOW, "w2"))[1] is Role.LISTENER
    assert (await pull(queue, FULL_OF_LOW, "w3"))[1] is Role.STANDBY


async def test_who_has_a_free_slot_for_more_lanes_listens(queue: Queue) -> None:
    """Else nobody would hear of `normal` work where a worker that is full of it listens, and another one has room."""
    await fill(queue, "low")
    for worker, rooms, role in [
        ("n1", FULL_OF_NORMAL, Role.LISTENER),
        ("n2", FULL_OF_NORMAL, Role.LISTENER),
        ("n3", FULL_OF_NORMAL, Role.STANDBY),
        ("l1", FULL_OF_LOW, Role.LISTENER),
        ("n1", FULL_OF_NORMAL, Role.STANDBY),
        ("n2", FULL_OF_NORMAL, Role.STANDBY),
        ("l2", FULL_OF_LOW, Role.LISTENER),
        ("l3", FULL_OF_LOW, Role.STANDBY),
    ]:
        assert (worker, (await pull(queue, rooms, worker, patient=3))[1]) == (worker, role)


async def test_who_listens_for_fewer_lanes_than_before_tells_a_stand_by(queue: Queue) -> None:
    await fill(queue, "low")
    for worker in ("w1", "w2", "w3"):
        await pull(queue, FULL_OF_LOW, worker, patient=3)
    await queue.command("DEL", "{q}:standby")
    await pull(queue, FULL_OF_LOW, "w1", patient=3, owing=True)
    assert await queue.command("LLEN", "{q}:standby") == 0
    assert (await pull(queue, FULL_OF_NORMAL, "w1", patient=3, owing=True))[1] is Role.STANDBY
    assert await queue.command("LLEN", "{q}:standby") == 1
    assert (await pull(queue, FULL_OF_LOW, "w3", patient=3, owing=True))[1] is Role.LISTENER


async def test_who_was_woken_tells_a_stand_by_of_what_it_has_no_room_for(queue: Queue) -> None:
    """Others may have room for it. A worker that comes for more of it at the end of a request wakes nobody."""
    await fill(queue, "low")
    await pull(queue, FULL_OF_NORMAL, patient=3)
    await fill(queue, "normal", "normal", "normal", "normal")
    heard = await queue.read([Lane.NORMAL])
    for hints, told in ((heard, 1), ([], 0), ([WOKEN], 1)):
        await queue.command("DEL", "{q}:standby")
        pulled = await pull(queue, (3, 3, 1, 0), patient=3, hints=hints, owing=True)
        assert pulled == (["normal"], Role.LISTENER)
        assert await queue.command("LLEN", "{q}:standby") == told
    await queue.command("DEL", "{q}:standby")
    assert (await pull(queue, FULL_OF_NORMAL, patient=3, hints=[WOKEN], owing=True))[0] == []
    assert await queue.command("LLEN", "{q}:standby") == 0


async def test_a_listener_without_a_free_slot_that_has_died_makes_way_once(queue: Queue) -> None:
    """Or the one that takes its place would wake itself again and again, until the dead one's time is over."""
    await fill(queue, "low")
    await queue.command("HSET", "{q}:listeners", "1", f"{NOW + LISTENING_MS} 0 dead")
    assert (await pull(queue, FULL_OF_LOW))[1] is Role.LISTENER
    woken = await queue.read([Lane.CRITICAL, Lane.HIGH, Lane.NORMAL])
    assert len(woken) == 1
    assert (await pull(queue, FULL_OF_LOW, hints=woken, owing=True))[1] is Role.LISTENER
    assert await queue.read([Lane.CRITICAL, Lane.HIGH, Lane.NORMAL]) == []


async def test_a_listener_that_is_gone_loses_its_seat(queue: Queue) -> None:
    await fill(queue, "low")
    for worker in ("w1", "w2"):
        await pull(queue, FULL_OF_LOW, worker)
    assert (await pull(queue.at(NOW + LISTENING_MS - 1), FULL_OF_LOW, "w3"))[1] is Role.STANDBY
    assert (await pull(queue.at(NOW + LISTENING_MS), FULL_OF_LOW, "w3"))[1] is Role.LISTENER


async def test_who_has_no_room_left_gives_its_seat_to_a_stand_by(queue: Queue) -> None:
    await fill(queue, "low")
    for worker in ("w1", "w2", "w3"):
        await pull(queue, FULL_OF_LOW, worker)
    waiting = asyncio.ensure_future(queue.broker.wait(Role.STANDBY, 5_000))
    await pull(queue, (0, 0, 0, 0), "w1", owing=True)
    await pull(queue, (0, 0, 0, 0), "w2", owing=True)
    assert await waiting == [WOKEN]
    assert (await pull(queue, FULL_OF_LOW, "w3"))[1] is Role.LISTENER


async def test_what_is_left_behind_wakes_a_stand_by(queue: Queue) -> None:
    await fill(queue, "low", "critical", "critical")
    assert (await pull(queue, GIVES_WAY))[0] == ["critical"]
    assert await queue.command("LLEN", "{q}:standby") == 1
    assert await queue.broker.wait(Role.STANDBY, 5_000) == [WOKEN]
    assert await queue.command("LLEN", "{q}:standby") == 0
    assert (await pull(queue, GIVES_WAY, "w2"))[0] == ["critical"]


async def test_full_workers_do_not_wake_each_other_for_what_none_can_take(queue: Queue) -> None:
    await fill(queue, "low", "normal")
    await pull(queue, GIVES_WAY)
    await queue.command("DEL", "{q}:standby")
    wakes = await queue.command("XLEN", "{q}:wake")
    for _ in range(3):
        assert (await pull(queue, GIVES_WAY, owing=True))[1] is Role.LISTENER
    assert await queue.command("LLEN", "{q}:standby") == 0
    assert await queue.command("XLEN", "{q}:wake") == wakes


@pytest.mark.parametrize("lane", ["critical", "high"])
async def test_a_listener_hears_a_plain_xadd_in_its_lanes_alone(queue: Queue, lane: str) -> None:
    await fill(queue, "low")
    await pull(queue, GIVES_WAY)
    hearing = asyncio.ensure_future(queue.broker.wait(Role.LISTENER, 5_000, [Lane.CRITICAL, Lane.HIGH]))
    await queue.add("low", "2000-0")
    await queue.add(lane, "2001-0")
    hints = await hearing
    assert hints == [Hint(Lane(lane), "2001-0")]
    assert await pull(queue, GIVES_WAY, hints=hints) == ([lane], Role.NONE)


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


async def test_what_is_known_of_entries_and_listeners_is_left_alone_where_it_has_another_type(queue: Queue) -> None:
    """An error halfway would lose what a pull took."""
    for key in (queue.keys.entries, queue.keys.listeners):
        await queue.command("SET", key, "by hand")
    await queue.add("low", f"{NOW + 5_000}-0", ttl=60_000)
    claims, role = await pull(queue, FULL_OF_LOW)
    assert (claims, role) == ([], Role.LISTENER)
    lease = await queue.claim()
    assert await queue.broker.release("w1", [lease], gave_way=True) == 1
    (again,) = (await queue.pull("w1")).claims
    assert again.interrupted == 0
    assert await queue.complete("w1", again.lease) == [1]
    assert await queue.command("HGET", queue.keys.lane_states, "interrupted") is None
