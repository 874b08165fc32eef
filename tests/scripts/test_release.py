"""release.lua: work handed back at its old rank, its attempt not counted; and disown, which finds what to hand back."""

from __future__ import annotations

import pytest

from tests.scripts.harness import Queue
from tests.scripts.mutants import fails_without


@fails_without("release: a turn that was not used comes again", "if turn and", "if false and", argument="low")
@pytest.mark.parametrize("lane", ["high", "low"])  # one has no share of its own
async def test_a_turn_that_was_not_used_comes_again_before_more_urgent_lanes(queue: Queue, lane: str) -> None:
    """A request that waits for room in a worker would else find other lanes' requests there, again and again."""
    lease = await queue.running(lane, "1000-0")
    await queue.add("critical", "1000-0")
    await queue.add("critical", "1001-0")
    for _ in range(3):
        assert await queue.broker.release("w1", [lease], in_turn=True) == 1
        (claim,) = (await queue.pull()).claims
        assert claim.lease == lease
    assert await queue.broker.release("w1", [lease]) == 1
    assert [claim.lease.lane for claim in (await queue.pull(wanted=3)).claims] == ["critical", "critical", lane]


@fails_without("fence: a lease counts once")
async def test_one_lease_twice_in_a_call_is_released_once(queue: Queue) -> None:
    lease = await queue.running()
    assert await queue.broker.release("w1", [lease, lease]) == 1


async def test_a_worker_hands_back_what_it_holds_without_knowing(queue: Queue) -> None:
    for number in range(3):
        await queue.add("high", f"1000-{number}")
    await queue.add("low", "1000-0")
    known, *_ = (await queue.pull("w1", 4)).claims  # the answer about the others is lost
    await queue.add("critical", "1000-0")
    await queue.pull("w2", 1)
    before = await queue.dump()
    assert await queue.broker.disown("w1", [known.lease]) == 3
    after = await queue.dump()
    assert after["lane:high"]["pending"] == {"1000-0": ("w1", 1)}
    assert after["lane:critical"] == before["lane:critical"]
    assert [stream_id for stream_id, _ in after["ready:high"] + after["ready:low"]] == ["1000-1", "1000-2", "1000-0"]
    assert "tries" not in after
    assert await queue.broker.disown("w1", [known.lease]) == 0
    assert await queue.dump() == after


@fails_without("release: one call is bounded in bytes", "= cfg.at_once or bytes >= cfg.copied_bytes ", "= cfg.at_once ")
async def test_one_call_is_bounded_in_bytes_and_the_rest_follows(queue: Queue) -> None:
    large = queue.with_limits(max_entry_bytes=900_000)
    for number in range(5):
        await large.add("high", f"1000-{number}", body="b" * 150_000)
    while (await large.pull("w1", 5)).claims:
        pass
    calls = large.note_calls()
    assert await large.broker.disown("w1", []) == 5
    assert calls == ["release"] * 3


async def test_one_call_is_bounded_in_requests_and_the_rest_follows(queue: Queue) -> None:
    for number in range(450):
        await queue.add("high", f"1000-{number}")
    while (await queue.pull("w1", 200)).claims:
        pass
    calls = queue.note_calls()
    assert await queue.broker.disown("w1", []) == 450
    assert calls == ["release"] * 3
