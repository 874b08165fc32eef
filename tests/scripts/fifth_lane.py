"""Requests through a fifth lane: `python -m tests.scripts.fifth_lane URL`, with sources that have one in PYTHONPATH."""

from __future__ import annotations

import asyncio
import sys

from streamfleet.common.broker.types import Lease
from streamfleet.common.protocol import LANES, Lane
from tests.scripts.conftest import open_queue
from tests.scripts.harness import NOW, Queue, submission


async def play(url: str) -> None:
    """Take requests of the last lane to every ending.

    Raises:
        AssertionError: a script or the broker does not know the lane.
    """
    last = LANES[-1]
    assert (len(LANES), last.number) == (5, 5)
    async with open_queue(url) as opened:
        queue = opened.at(await opened.broker.now_ms())
        await queue.broker.enqueue([submission(f"{lane}-1", lane) for lane in reversed(LANES)])
        leases = [(await queue.claim()) for _ in LANES]
        assert [lease.lane for lease in leases] == list(LANES), "the most urgent lane goes first"
        await ended_by_a_worker(queue, last, leases)
        await ended_by_nobody(queue, last)
        assert await queue.broker.heartbeat("w1", {}) is not None
        audit = await queue.broker.audit()
        found = ([row.lane for row in audit.lanes], audit.problems(), audit.outstanding)
        assert found == (list(LANES), [], 0), found


async def ended_by_a_worker(queue: Queue, last: Lane, leases: list[Lease]) -> None:
    """Renew, hand back, lose and retry the one of the last lane; complete all."""
    *others, lease = leases
    assert await queue.broker.renew("w1", [lease]) == [1]
    assert await queue.broker.release("w1", [lease]) == 1
    assert (await queue.claim()) == lease
    await queue.complete("w1", *others)
    assert (await queue.broker.reclaim(0, 9)).ready == 1
    await queue.retry("w1", await queue.claim(), 10)
    later = queue.at((queue.limits.now_ms or NOW) + 20)
    assert (await later.broker.promote())[0] == 1
    again = await later.claim()
    assert (again.lane, again.attempt) == (last, 3)
    await later.complete("w1", again)
    result = await queue.broker.result(f"{last}-1")
    assert result is not None
    assert (result.fields["status"], result.fields["lane"]) == ("succeeded", last)


async def ended_by_nobody(queue: Queue, last: Lane) -> None:
    """Let one of the last lane expire while the lane is paused, and cancel another."""
    now = queue.limits.now_ms or NOW
    assert await queue.broker.pause([last]) == [last]
    await queue.add(last, "*", id="late", deadline=now + 50)
    await queue.broker.enqueue([submission("unwanted", last)])
    assert (await queue.pull()).claims == []
    assert (await queue.at(now + 60).broker.expire())[0] == 1
    assert await queue.broker.record("unwanted") is not None
    assert await queue.broker.cancel("unwanted")
    found = await queue.broker.results(["late", "unwanted"])
    assert [result and result.fields["status"] for result in found] == ["expired", "cancelled"]
    assert await queue.broker.resume([last]) == [last]


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1]))
