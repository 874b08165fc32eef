"""cancel.lua: the result is written at once; whoever holds the entry finds out."""

from __future__ import annotations

import json

import pytest

from streamfleet.common.broker import steering
from streamfleet.common.records import CompleteCode, Notices
from tests.scripts.harness import NOW, Queue, ids, submission
from tests.scripts.keyspace import changed


async def test_an_enqueued_request_is_cancelled_at_once(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1", reply="me")])
    before = await queue.dump()
    assert await queue.broker.cancel("r1", "not wanted any more")
    after = await queue.dump()
    error = after["result:r1"].pop("error")
    assert json.loads(error) == {
        "error": {"message": "not wanted any more", "type": "cancelled", "param": None, "code": "cancelled"}
    }
    assert after == changed(
        before,
        {
            "result:r1": {"status": "cancelled", "http_status": "499", "finished_ms": str(NOW), "notified:me": "1"},
            "reply:me": [{"id": "r1", "status": "cancelled"}],
            "cancels": [{"id": "r1"}],
        },
    )


async def test_cancelling_twice_is_true_and_changes_nothing_more(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1", reply="me")])
    await queue.broker.cancel("r1")
    before = await queue.dump()
    assert await queue.broker.cancel("r1")
    assert await queue.dump() == before


async def test_an_id_that_nobody_knows_is_cancelled_ahead(queue: Queue) -> None:
    assert await queue.broker.cancel("r1")
    assert set(await queue.dump()) == {"result:r1", "cancels"}
    await queue.add("high", "1000-0", id="r1")
    assert (await queue.pull()).dropped == 1
    assert (await queue.dump())["counts"] == {"staged": "1", "cancelled": "1"}


async def test_a_request_without_an_id_is_cancelled_by_the_name_it_got(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    assert await queue.broker.cancel("high:1000-0")
    assert (await queue.pull()).dropped == 1


async def test_a_finished_request_stays_as_it_ended(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1")
    await queue.complete("w1", lease)
    before = await queue.dump()
    assert not await queue.broker.cancel("r1")
    assert await queue.dump() == before


async def test_a_running_request_is_cancelled_and_its_worker_can_tell(queue: Queue) -> None:
    last = await queue.broker.last_notice()
    lease = await queue.running("high", "1000-0", id="r1", reply="me")
    assert await queue.broker.cancel("r1")
    assert (await queue.dump())["lane:high"]["pending"] == {"1000-0": ("w1", 1)}
    notices = await queue.broker.read_notices(last, 1)
    assert notices.cancelled == ["r1"]
    assert notices.last_id == await queue.broker.last_notice()
    assert await queue.broker.read_notices(notices.last_id, 1) == Notices(notices.last_id, [], frozenset())
    assert await queue.complete("w1", lease) == [CompleteCode.ENDED_BEFORE]


async def test_a_reply_name_that_only_the_entry_knows_is_told_once(queue: Queue) -> None:
    for number in range(3):
        await queue.add("high", f"1000-{number}", id="r1", reply="me")
    await queue.broker.cancel("r1")
    assert "reply:me" not in await queue.dump()
    await queue.pull("w1", 3)
    after = await queue.dump()
    assert after["reply:me"] == [{"id": "r1", "status": "cancelled"}]
    assert after["counts"] == {"staged": "3", "cancelled": "1", "duplicate": "2"}


async def test_a_reply_name_told_by_the_cancel_is_not_told_again_by_the_pick(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1", reply="me")])
    await queue.broker.cancel("r1")
    await queue.pull()
    assert (await queue.dump())["reply:me"] == [{"id": "r1", "status": "cancelled"}]


async def test_only_the_cancelled_one_is_dropped(queue: Queue) -> None:
    for number in range(3):
        await queue.add("high", f"1000-{number}", id=f"r{number}")
    await queue.broker.cancel("r1")
    assert ids((await queue.pull("w1", 3)).claims) == ["1000-0", "1000-2"]


async def test_any_text_may_be_cancelled(queue: Queue) -> None:
    for odd in ("}:x", "a b", "é\n", "x" * 1_000_000):
        assert await queue.broker.cancel(odd)
        assert f"result:{odd}" in await queue.dump()


async def test_a_full_redis_still_cancels(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1", reply="me")])
    async with queue.full_memory():
        assert await queue.broker.cancel("r1")
        assert (await queue.pull()).dropped == 1
    assert "lane:high" not in await queue.dump()


async def test_what_workers_are_told_is_bounded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who tells workers to drain in a loop must not fill Redis."""
    monkeypatch.setattr(steering, "MOST_NOTICES", 100)
    for number in range(500):
        await queue.broker.drain(f"w{number}")
    assert await queue.command("XLEN", queue.keys.cancels) <= 250  # Redis cuts whole nodes of a stream
    assert "w499" in (await queue.broker.read_notices("0-0", 1)).drain
