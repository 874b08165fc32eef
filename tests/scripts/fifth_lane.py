"""Requests through a fifth lane: `python -m tests.scripts.fifth_lane URL`, with sources that have one in PYTHONPATH."""

from __future__ import annotations

import asyncio
import sys

from streamfleet.common.broker.types import Lease
from streamfleet.common.protocol import LANES, Lane
from streamfleet.gateway.request_parameters import Bounds, read_parameters
from streamfleet.operator.exporter.families import families
from streamfleet.operator.exporter.view import view
from streamfleet.operator.json_view import queue_object
from streamfleet.operator.snapshot import read_queue, take_snapshot
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
        await shown_to_operators(queue)
        taken_by_the_gateway(last)
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
    assert (await later.broker.return_delayed())[0] == 1
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


async def shown_to_operators(queue: Queue) -> None:
    """Show all lanes in the metrics, on the page, and in the judgement of which is late."""
    audit, sample = await read_queue(queue.broker)
    metrics = families("q", view(audit, sample, queue.limits.patience_ms))
    labels = [sample.labels for metric in metrics for sample in metric.samples]
    assert {label["lane"] for label in labels if "lane" in label} == set(LANES)
    snapshot = await take_snapshot(queue.broker)
    assert [row["lane"] for row in queue_object(snapshot, None)["lanes"]] == list(LANES)


def taken_by_the_gateway(last: Lane) -> None:
    """Read the lane from a header, and answer with the tier of the side that it is on."""
    bounds = Bounds(LANES, 1_000, 1_000)
    found = read_parameters({"x-streamfleet-lane": last}, {"service_tier": "auto"}, bounds, NOW)
    assert (found.lane, found.tier) == (last, "flex")


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1]))
