"""Turns of several queues at one engine: order by lane and rank, guaranteed shares, and what must not stop others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from streamfleet.common.protocol import SHARES, Lane
from streamfleet.worker import turns as module
from streamfleet.worker.turns import Turns
from tests.waiting import eventually

CRITICAL, NORMAL, LOW = Lane.CRITICAL, Lane.NORMAL, Lane.LOW


class Engine:
    """Room for so many requests, which two queues share."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.took: list[str] = []


class Queue:
    """A queue with waiting requests, most urgent first, and its puller."""

    shares: Sequence[int] = SHARES

    def __init__(self, engine: Engine, turns: Turns, name: str, *waiting: tuple[Lane, float]) -> None:
        self.engine, self.turns, self.name, self.waiting = engine, turns, name, list(waiting)
        self.looks = 0
        self.pull_most = 1_000

    @property
    def has_room(self) -> bool:
        return self.engine.room > 0

    async def head(self) -> tuple[Lane, float] | None:
        self.looks += 1
        await asyncio.sleep(0)
        return self.waiting[0] if self.waiting else None

    async def pull(self) -> int:
        async with self.turns.turn(self) as turn:
            part = turn.part(self.engine.room) if self.engine.room else 0
            await asyncio.sleep(0)
            turn.taken = min(part, len(self.waiting), self.pull_most)
            self.engine.room -= turn.taken
            self.engine.took += [self.name] * turn.taken
            del self.waiting[: turn.taken]
            return turn.taken

    async def run(self) -> None:
        """Pull until there is no room, or nothing waits."""
        while await self.pull():
            pass


class Vain(Queue):
    """A queue with waiting requests of which nothing may be taken; its puller comes again at once, so many times."""

    def __init__(self, engine: Engine, turns: Turns, name: str, *waiting: tuple[Lane, float], times: int = 200) -> None:
        super().__init__(engine, turns, name, *waiting)
        self.left = times

    async def pull(self) -> int:
        async with self.turns.turn(self):
            await asyncio.sleep(0)
            self.engine.took.append(self.name)
            self.left -= 1
        return self.left


class Unstaged(Queue):
    """A queue whose arrivals no pull has put in order yet: it shows no head."""

    async def head(self) -> tuple[Lane, float] | None:
        await asyncio.sleep(0)
        return None


async def filled(room: int, **queues: list[tuple[Lane, float]]) -> str:
    """Names of the queues that an engine with so much room takes from, in order."""
    engine, turns = Engine(room), Turns()
    await asyncio.gather(*(Queue(engine, turns, name, *waiting).run() for name, waiting in queues.items()))
    return "".join(engine.took)


async def test_a_queue_alone_takes_all_the_room_without_a_look() -> None:
    engine, turns = Engine(10), Turns()
    queue = Queue(engine, turns, "a", *[(NORMAL, 1.0)] * 20)
    assert await queue.pull() == 10
    assert queue.looks == 0


async def test_the_earliest_deadlines_of_all_queues_go_first() -> None:
    assert await filled(4, a=[(NORMAL, 50.0)] * 9, b=[(NORMAL, 10.0)] * 3) == "bbba"


async def test_the_more_urgent_lane_goes_before_the_earlier_deadline() -> None:
    assert await filled(3, a=[(NORMAL, 1.0)] * 9, b=[(CRITICAL, 99.0)] * 2) == "bba"


async def test_a_queue_that_waits_gets_the_share_of_its_lane() -> None:
    """As within one queue: low has 50 of 1,000 picks, so one in twenty."""
    engine, turns = Engine(0), Turns()
    queues = [Queue(engine, turns, "a", *[(CRITICAL, 1.0)] * 99), Queue(engine, turns, "b", *[(LOW, 9.0)] * 99)]
    for _ in range(63):
        engine.room = 1
        await asyncio.gather(*(queue.pull() for queue in queues))
    assert "".join(engine.took) == "a" * 20 + "b" + "a" * 19 + "b" + "a" * 19 + "b" + "aa"


async def test_a_guaranteed_turn_is_one_pick() -> None:
    engine, turns = Engine(0), Turns()
    queues = [Queue(engine, turns, "a", *[(CRITICAL, 1.0)] * 200), Queue(engine, turns, "b", *[(LOW, 9.0)] * 99)]
    engine.room = 64
    await asyncio.gather(*(queue.run() for queue in queues))
    assert engine.took.count("b") in (2, 3)


async def test_a_queue_whose_head_cannot_be_read_goes_last_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)

    class Broken(Queue):
        async def head(self) -> tuple[Lane, float] | None:
            raise RuntimeError("another type")

    class Silent(Queue):
        async def head(self) -> tuple[Lane, float] | None:
            await asyncio.sleep(60)
            return None

    engine, turns = Engine(4), Turns()
    queues = [
        Broken(engine, turns, "x", (CRITICAL, 0.0)),
        Silent(engine, turns, "y", (CRITICAL, 0.0)),
        Queue(engine, turns, "a", (LOW, 9.0)),
    ]
    await asyncio.gather(*(queue.run() for queue in queues))
    assert engine.took[0] == "a"
    assert sorted(engine.took) == ["a", "x", "y"]


@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize("kind", [Queue, Unstaged])
@pytest.mark.parametrize("others", [1, 2, 3])
async def test_a_queue_whose_turn_took_nothing_lets_the_others_go_first(
    lane: Lane, kind: type[Queue], others: int
) -> None:
    """Its head, and theirs, do not matter: all that is to be had is taken, and each had a turn before it came again."""
    engine, turns = Engine(60), Turns()
    vain = Vain(engine, turns, "x", *[(lane, 0.0)] * 9)
    names = "abc"[:others]
    queues = [kind(engine, turns, name, *[(NORMAL, 5.0 + at)] * 3) for at, name in enumerate(names)]
    await asyncio.wait_for(asyncio.gather(vain.run(), *(queue.run() for queue in queues)), 5)
    assert [engine.took.count(name) for name in names] == [3] * others
    first = engine.took.index("x")
    until = max(map(engine.took.index, names))
    assert "x" not in engine.took[first + 1 : until], engine.took


@pytest.mark.parametrize("others", [1, 2])
async def test_nor_does_a_queue_that_is_owed_a_turn_keep_it(others: int) -> None:
    engine, turns = Engine(1_000), Turns()
    vain = Vain(engine, turns, "x", (LOW, 9.0), times=10_000)
    turns._credit[vain] = 2 * module.FULL_CREDIT
    queues = [Queue(engine, turns, name, *[(CRITICAL, 1.0)] * 90) for name in "ab"[:others]]
    running = asyncio.create_task(vain.run())
    await asyncio.wait_for(asyncio.gather(*(queue.run() for queue in queues)), 5)
    running.cancel()
    assert "xx" not in "".join(engine.took[: engine.took.index("a") + 1])
    assert "xx" not in "".join(engine.took).strip("x")


async def test_several_queues_that_take_nothing_hold_up_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at its limit, one that hangs, one that fails, and one with requests."""
    monkeypatch.setattr(module, "HOLD_S", 0.01)
    engine, turns = Engine(4), Turns()
    stuck = Queue(engine, turns, "y", (CRITICAL, 1.0))

    async def hang() -> None:
        async with turns.turn(stuck):
            await asyncio.sleep(60)

    async def fail() -> None:
        broken = Queue(engine, turns, "z", (CRITICAL, 2.0))
        while True:
            with contextlib.suppress(ConnectionError):
                async with turns.turn(broken):
                    await asyncio.sleep(0)
                    raise ConnectionError

    vain = Vain(engine, turns, "x", (CRITICAL, 0.0), times=1_000_000)
    noise = [asyncio.create_task(each) for each in (vain.run(), hang(), fail())]
    await asyncio.wait_for(Queue(engine, turns, "a", *[(LOW, 9.0)] * 3).run(), 5)
    assert engine.took.count("a") == 3
    for each in noise:
        each.cancel()
    await asyncio.gather(*noise, return_exceptions=True)


async def test_a_queue_whose_turn_took_nothing_waits_for_none_whose_head_cannot_be_read() -> None:
    """Such a queue has no turn while others take, so what waits for it would wait for all of theirs."""
    engine, turns = Engine(0), Turns()
    vain = Vain(engine, turns, "x", (CRITICAL, 0.0), times=1_000_000)
    busy, broken = Queue(engine, turns, "b", *[(NORMAL, 1.0)] * 9), Unstaged(engine, turns, "y", (NORMAL, 2.0))
    engine.room = 9
    running = [asyncio.create_task(each.run()) for each in (vain, busy, broken)]
    busy.pull_most = 1
    await eventually(lambda: engine.took.count("b") + engine.took.count("y") == 9)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert "bb" not in "".join(engine.took)


async def test_a_queue_whose_turn_took_nothing_comes_first_again_once_there_is_new_room() -> None:
    """Until then it waited only for the others' turns, and what it may take may be more urgent than theirs."""
    engine, turns = Engine(0), Turns()
    first, second = Queue(engine, turns, "a"), Queue(engine, turns, "b", *[(NORMAL, 2.0)] * 9)
    for _ in range(3):
        first.waiting = []
        engine.room = 1
        await asyncio.gather(first.pull(), second.pull())  # it takes nothing
        first.waiting = [(CRITICAL, 1.0)]
        engine.room = 1
        await asyncio.gather(first.pull(), second.pull())
    assert "".join(engine.took) == "bababa"


async def test_a_puller_that_is_cancelled_while_it_waits_leaves_the_turns_whole() -> None:
    engine, turns = Engine(4), Turns()
    first, second = Queue(engine, turns, "a", (NORMAL, 1.0)), Queue(engine, turns, "b", (NORMAL, 2.0))
    async with turns.turn(first):
        leaving = asyncio.create_task(second.pull())
        await eventually(lambda: second in turns._wanted)
    leaving.cancel()  # in the moment in which its turn comes
    await asyncio.gather(leaving, return_exceptions=True)
    assert turns._giving is not None
    await asyncio.wait_for(turns._giving, 5)
    await asyncio.gather(first.run(), second.run())
    assert engine.took == ["a", "b"]


async def test_pullers_that_are_cancelled_while_heads_are_read_leave_the_turns_whole() -> None:
    looks, answer = [], asyncio.Event()

    class Slow(Queue):
        async def head(self) -> tuple[Lane, float] | None:
            looks.append(self)
            await answer.wait()
            return None

    engine, turns = Engine(4), Turns()
    leaving = [asyncio.create_task(Slow(engine, turns, name).pull()) for name in "ab"]
    await eventually(lambda: len(looks) == 2)
    for each in leaving:
        each.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    answer.set()
    assert turns._giving is not None
    await asyncio.wait_for(turns._giving, 5)
