"""deregister.lua: whoever is gone is forgotten, in bounded calls, and nobody else."""

from __future__ import annotations

import json

from streamfleet.common.keys import GROUP
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without
from tests.scripts.test_check import consumers

SILENT_MS = 60_000


async def leave_consumers(queue: Queue, *names: str) -> None:
    """Leave the consumers that a pull of each worker creates."""
    for name in names:
        await queue.command("XGROUP", "CREATECONSUMER", queue.keys.lane("high"), GROUP, name)


@fails_without(
    "deregister: consumers that nobody describes", "        looked_at[name] = true\n        forget(name)\n", ""
)
@fails_without("deregister: not before they were silent", " and named(row, 'idle') >= silent_ms then", " then")
async def test_a_consumer_that_nobody_describes_goes_by_its_own_silence(queue: Queue) -> None:
    """A worker that died before its first sign of life, or whose description was deleted by hand."""
    await leave_consumers(queue, "w1", "w2")
    assert await queue.broker.deregister(silent_ms=SILENT_MS) == 0
    assert await consumers(queue) == {"w1", "w2"}
    assert await queue.broker.deregister(silent_ms=0) == 2
    assert await consumers(queue) == set()


@fails_without("deregister: a sign of life from before the clock was set back counts as one of now")
async def test_a_sign_of_life_from_before_the_clock_was_set_back_counts_as_one_of_now(queue: Queue) -> None:
    await queue.at(NOW + 3_600_000).broker.heartbeat("w1", {"models": ["m"]})
    assert await queue.broker.deregister(silent_ms=SILENT_MS, look_only=True) == 0
    assert await queue.broker.deregister(silent_ms=SILENT_MS) == 0
    assert json.loads((await queue.dump())["workers"]["w1"]) == {"models": ["m"], "seen_ms": NOW}
    assert await queue.at(NOW + SILENT_MS + 1).broker.deregister(silent_ms=SILENT_MS) == 1


@fails_without("deregister: not the living, however idle their consumers", "not looked_at[name] and ", "")
async def test_neither_the_living_nor_nobody_go_however_long_they_were_idle(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    await queue.hand_out()
    await leave_consumers(queue, "w1")
    await queue.broker.heartbeat("w1", {})
    async with queue.unchanged():
        assert await queue.broker.deregister(silent_ms=0) == 0


async def test_who_holds_something_goes_once_it_was_taken_back(queue: Queue) -> None:
    lease = await queue.running("low", "1000-0")
    await queue.broker.heartbeat("w1", {})
    later = queue.at(NOW + SILENT_MS + 1)
    async with queue.unchanged():
        assert await later.broker.deregister(silent_ms=SILENT_MS) == 0
    await later.broker.reclaim(0, 5)
    assert await later.broker.deregister(silent_ms=SILENT_MS) == 1
    assert await consumers(queue, "low") == set()
    # And should it come back after all: its lease is gone, its request waits, and it may take it again.
    assert await queue.complete("w1", lease) == [0]
    await later.broker.heartbeat("w1", {})
    again = await later.claim("w1")
    assert (again.stream_id, again.attempt) == ("1000-0", 2)
    assert await later.broker.deregister(silent_ms=SILENT_MS) == 0
    assert await later.complete("w1", again) == [1]


async def test_a_name_that_came_back_is_alive(queue: Queue) -> None:
    """As a pod of a StatefulSet, which is called the same after every restart."""
    lease = await queue.running()
    await queue.broker.heartbeat("w1", {"pid": 1})
    later = queue.at(NOW + SILENT_MS + 1)
    await later.broker.heartbeat("w1", {"pid": 2})
    assert await later.broker.deregister(silent_ms=SILENT_MS) == 0
    # Entries of the first worker of that name are taken back as usual; neither can finish them under that lease.
    await later.broker.reclaim(0, 5)
    assert (await later.claim("w1")).attempt == 2
    assert await later.complete("w1", lease) == [0]
    assert json.loads((await queue.dump())["workers"]["w1"])["pid"] == 2


@fails_without("deregister: bounded", "forgotten >= most or not holds_nothing(worker)", "not holds_nothing(worker)")
async def test_one_call_forgets_a_bounded_number(queue: Queue) -> None:
    await leave_consumers(queue, *(f"w{number}" for number in range(25)))
    for number in range(25):
        await queue.broker.heartbeat(f"v{number}", {})
    later = queue.at(NOW + SILENT_MS + 1)
    forgotten = [await later.broker.deregister(silent_ms=0, limit=20) for _ in range(4)]
    assert forgotten == [20, 20, 10, 0]
    assert await consumers(queue) == set()
    assert "workers" not in await queue.dump()


@fails_without("deregister: looking forgets nobody")
async def test_counting_forgets_nobody(queue: Queue) -> None:
    await leave_consumers(queue, "w1")
    await queue.broker.heartbeat("w2", {})
    async with queue.unchanged():
        assert await queue.at(NOW + 1).broker.deregister(silent_ms=0, look_only=True) == 2
    await queue.command("FLUSHALL")
    assert await queue.broker.deregister(silent_ms=0, look_only=True) == 0
    assert await queue.command("DBSIZE") == 0


async def test_a_missing_group_is_made_and_nobody_is_gone(queue: Queue) -> None:
    await queue.command("FLUSHALL")
    assert await queue.broker.deregister("w1") == 1
    assert await queue.broker.deregister() == 0


async def test_a_full_redis_lets_them_go(queue: Queue) -> None:
    await leave_consumers(queue, "w1")
    async with queue.full_memory():
        assert await queue.broker.deregister(silent_ms=0) == 1


@fails_without("deregister: a fleet looks for the gone now and then, not each of its workers")
@fails_without("deregister: a clock set back delays nothing", "since >= 0 and since < pause_ms", "since < pause_ms")
async def test_nobody_is_looked_for_again_during_the_pause(queue: Queue) -> None:
    """Each worker of a fleet asks for it once a minute, and it looks at all of them."""
    await leave_consumers(queue, "w1", "w2", "w3")
    forget = queue.broker.deregister
    assert await forget(silent_ms=0, limit=2, pause_ms=1_000) == 2
    assert await forget(silent_ms=0, limit=2, pause_ms=1_000) == 1  # there may have been more: that was no end
    await leave_consumers(queue, "w4")
    assert await queue.at(NOW + 999).broker.deregister(silent_ms=0, pause_ms=1_000) == 0
    assert await queue.at(NOW + 1_000).broker.deregister(silent_ms=0, pause_ms=1_000) == 1
    await leave_consumers(queue, "w5")
    assert await queue.at(NOW - 5_000).broker.deregister(silent_ms=0, pause_ms=1_000) == 1  # the clock was set back
