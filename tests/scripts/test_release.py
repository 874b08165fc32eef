"""release.lua: work handed back at its old rank, its attempt not counted; and disown, which finds what to hand back."""

from __future__ import annotations

import pytest

from tests.scripts.harness import NOW, Queue, entry, ids
from tests.scripts.keyspace import changed
from tests.scripts.mutants import fails_without


async def test_released_work_is_ready_at_its_old_rank_and_somebody_is_woken(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", deadline=NOW + 5)
    await queue.pull("idle")
    before = await queue.dump()
    assert await queue.broker.release("w1", [lease]) == 1
    assert await queue.dump() == changed(
        before,
        {
            "lane:high": {"entries": {"1000-0": entry(deadline=NOW + 5)}},
            "ready:high": [("1000-0", NOW + 5)],
            "wake": {"undelivered": 1},
            "waiting": [("idle", 2)],
        },
    )


async def test_a_released_attempt_is_not_counted(queue: Queue) -> None:
    await queue.retry("w1", await queue.running())
    for _ in range(5):
        lease = await queue.claim()
        assert lease.attempt == 2
        assert await queue.broker.release("w1", [lease]) == 1
    assert (await queue.dump())["tries"] == {"2|1000-0": "1"}


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


async def test_a_lost_lease_is_not_released(queue: Queue) -> None:
    lease = await queue.running()
    await queue.broker.reclaim(0, 3)
    other = await queue.claim("w2")
    before = await queue.dump()
    assert await queue.broker.release("w1", [lease, other._replace(attempt=1)]) == 0
    assert await queue.broker.release("w2", [other._replace(attempt=1)]) == 0
    assert await queue.dump() == before


@fails_without("fence: a lease counts once")
async def test_one_lease_twice_in_a_call_is_released_once(queue: Queue) -> None:
    lease = await queue.running()
    assert await queue.broker.release("w1", [lease, lease]) == 1


async def test_releasing_twice_changes_nothing_more(queue: Queue) -> None:
    lease = await queue.running()
    await queue.broker.release("w1", [lease])
    before = await queue.dump()
    assert await queue.broker.release("w1", [lease]) == 0
    assert await queue.dump() == before


async def test_an_entry_deleted_by_hand_is_counted_as_vanished(queue: Queue) -> None:
    lease = await queue.running()
    await queue.command("XDEL", queue.keys.lane("high"), "1000-0")
    before = await queue.dump()
    assert await queue.broker.release("w1", [lease]) == 0
    assert await queue.dump() == changed(before, {"lane:high": None, "counts": {"staged": "1", "vanished": "1"}})


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


async def test_one_whose_deadline_has_passed_ends_as_it_comes_back(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1", deadline=NOW + 5)
    await queue.pull("idle")
    assert await queue.at(NOW + 5).broker.release("w1", [lease]) == 1
    after = await queue.dump()
    assert (after["result:r1"]["status"], after["result:r1"]["attempt"]) == ("expired", "0")
    assert after["counts"] == {"staged": "1", "expired": "1"}
    assert not {"lane:high", "ready:high"} & set(after)
    assert "wake" not in after


async def test_a_full_redis_still_takes_work_back(queue: Queue) -> None:
    lease = await queue.running()
    async with queue.full_memory():
        assert await queue.broker.release("w1", [lease]) == 1
        assert ids((await queue.pull("w2")).claims) == ["1000-0"]
