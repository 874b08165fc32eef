"""cancel.lua: the result is written at once; whoever holds the entry finds out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.broker.types import CompleteCode, EnqueueCode, Notices
from streamfleet.common.errors import UnknownRequest
from streamfleet.common.keys import GROUP
from tests.scripts.harness import NOW, Queue, submission
from tests.scripts.keyspace import changed
from tests.scripts.mutants import fails_without

HOUR_MS = 3_600_000


async def lives_ms(queue: Queue, request_id: str) -> int:
    """Remaining life of a result, in ms."""
    return int(await queue.command("PTTL", queue.keys.result(request_id)))


async def sound(queue: Queue) -> None:
    """Every request adds up, and balancing the counters finds nothing to mend."""
    assert (await queue.broker.audit()).problems() == []
    assert await queue.broker.compare(None, True, counters="all") == []


async def test_an_enqueued_request_is_cancelled_at_once(queue: Queue) -> None:
    (accepted,) = await queue.broker.enqueue([submission("r1", reply="me")])
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
            "result:r1": {
                "status": "cancelled",
                "http_status": "499",
                "finished_ms": str(NOW),
                "notified:me": "1",
                "lane": "high",
                "entry": accepted.entry,
                "enqueued_ms": str(NOW),  # the entry's id is ahead of this clock
            },
            "reply:me": [{"id": "r1", "status": "cancelled"}],
            "cancels": [{"id": "r1"}],
            "lane:high": None,
            "counts": {"staged": "1", "cancelled": "1"},
        },
    )
    await sound(queue)
    assert await lives_ms(queue, "r1") <= queue.limits.result_ttl_ms


@pytest.mark.parametrize("odd", ["r1", "high:1000-0", "}:x", "a b", "é\n", "x" * 1_000_000, ""])
async def test_an_id_that_the_queue_has_never_seen_blocks_nothing(queue: Queue, odd: str) -> None:
    await queue.add("high", "1000-1", id="other")
    async with queue.unchanged():
        with pytest.raises(UnknownRequest, match="never seen"):
            await queue.broker.cancel(odd)


@fails_without("cancel: an id that the queue has never seen blocks nothing")
async def test_what_comes_after_its_cancel_runs(queue: Queue) -> None:
    for _ in range(2):
        with pytest.raises(UnknownRequest):
            await queue.broker.cancel("r1")
    await queue.add("high", "1000-0", id="r1")
    assert [claim.lease.request_id for claim in (await queue.pull()).claims] == ["r1"]
    with pytest.raises(UnknownRequest):
        await queue.broker.cancel("r2")
    assert [each.code for each in await queue.broker.enqueue([submission("r2")])] == [EnqueueCode.ACCEPTED]


async def test_an_id_that_is_yet_to_come_is_cancelled_when_it_comes_if_that_is_asked_for(queue: Queue) -> None:
    assert await queue.broker.cancel("r1", before_ms=HOUR_MS)
    assert set(await queue.dump()) == {"result:r1", "cancels"}
    assert 0 < await lives_ms(queue, "r1") <= HOUR_MS
    await queue.add("high", "1000-0", id="r1")
    assert (await queue.pull()).dropped == 1
    assert (await queue.dump())["counts"] == {"staged": "1", "cancelled": "1"}
    assert await queue.broker.cancel("r2", before_ms=10**15)
    assert await lives_ms(queue, "r2") <= queue.limits.waiting_ttl_ms


@pytest.mark.parametrize("place", range(0, 40, 5))
async def test_what_came_by_a_plain_xadd_is_found_wherever_it_waits_or_runs(queue: Queue, place: int) -> None:
    """Behind megabytes too, which no single call reads."""
    lanes = ("critical", "low", "high", "normal")
    for number in range(40):
        size = 300_000 if number % 4 == 0 and number != place else 10
        name = "r1" if number == place else f"o{number}"
        await queue.add(lanes[number % 4], f"{1000 + number}-0", body="b" * size, id=name)
    if place % 3:
        await queue.pull("w1", (0, 40)[place % 3 - 1])
    assert await queue.broker.cancel("r1")
    assert (await queue.broker.result("r1")) is not None
    await queue.pull("w1", 50)
    assert (await queue.broker.audit()).problems() == []


@fails_without("cancel: a long queue is looked through in bounded calls")
@fails_without("cancel: the first entry of a lane is read alone", "bytes, chunk = 0, 0, 1", "bytes, chunk = 0, 0, 64")
@fails_without("cancel: what came by a plain XADD is looked for to the end")
async def test_a_long_queue_is_looked_through_in_bounded_calls(queue: Queue) -> None:
    for number in range(7):
        await queue.add("low", f"{1000 + number}-0", body="b" * 300_000, id=f"o{number}")
    await queue.add("low", "2000-0", id="r1")
    script, calls = queue.broker.connection.script, 0

    async def counted(*words: Any) -> Any:
        nonlocal calls
        calls += 1
        return await script(*words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue.broker.connection, "script", counted)
        assert await queue.broker.cancel("r1")
    assert calls == 4


@fails_without(
    "notification: none of a result to which more is added", "status ~= 'cancelled' and values or nil", "values"
)
async def test_the_result_of_a_cancelled_request_does_not_come_with_its_notification(queue: Queue) -> None:
    """Fields of its entry are added to it."""
    await queue.broker.enqueue([submission("r1", reply="me")])
    assert await queue.broker.cancel("r1")
    assert (await queue.broker.read_replies("me", "0-0", 1))[1] == [("r1", None)]


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


# -- where the entry is ------------------------------------------------------------------------------------


@fails_without("leave: no longer ready")
async def test_one_that_waits_staged_leaves_its_lane_at_once(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1"), submission("r2")])
    await queue.pull("w1", 0)
    before = await queue.dump()
    assert await queue.broker.cancel("r1")
    after = await queue.dump()
    assert len(after["ready:high"]) == 1
    assert len(after["lane:high"]["entries"]) == 1
    assert after["counts"] == before["counts"] | {"cancelled": "1"}
    await sound(queue)
    assert [claim.lease.request_id for claim in (await queue.pull("w1", 2)).claims] == ["r2"]


@fails_without("cancel: no longer delayed")
async def test_one_that_waits_for_its_next_try_leaves_its_lane_at_once(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1")])
    await queue.retry("w1", await queue.claim(), delay_ms=60_000)
    assert await queue.broker.cancel("r1")
    after = await queue.dump()
    assert not after.keys() & {"lane:high", "delayed", "tries"}
    assert after["counts"] == {"staged": "1", "cancelled": "1"}
    await sound(queue)


@fails_without("cancel: what a watcher has was not staged yet")
async def test_one_that_a_watcher_was_just_given_leaves_its_lane_and_the_watcher_goes_on(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1"), submission("r2")])
    hints = await queue.hand_out()
    assert await queue.broker.cancel("r1")
    after = await queue.dump()
    assert len(after["lane:high"]["entries"]) == 1
    assert after["counts"] == {"staged": "1", "cancelled": "1"}
    await sound(queue)
    assert [claim.lease.request_id for claim in (await queue.pull("w1", 2, hints)).claims] == ["r2"]
    assert (await queue.dump())["counts"] == {"staged": "2", "cancelled": "1"}


@fails_without("cancel: not what a worker has", "if row and row[2] ~= NOBODY or not pcall", "if not pcall")
async def test_a_running_one_that_is_known_stays_with_its_worker(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1")])
    lease = await queue.claim()
    assert await queue.broker.cancel("r1")
    assert (await queue.dump())["lane:high"]["pending"] == {lease.stream_id: ("w1", 1)}
    assert await queue.complete("w1", lease) == [CompleteCode.ENDED_BEFORE]
    assert (await queue.dump())["counts"] == {"staged": "1", "cancelled": "1"}


@fails_without("cancel: counted as staged once", "\n      or staged and encode_id(entry_id) <= encode_id(staged)", "")
async def test_one_that_comes_again_from_a_group_made_anew_is_counted_once(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1")])
    await queue.pull("w1", 0)
    await queue.command("XGROUP", "DESTROY", queue.keys.lane("high"), GROUP)
    await queue.broker.ensure_groups()
    await queue.command("ZPOPMIN", queue.keys.ready("high"))
    assert await queue.broker.cancel("r1")
    assert (await queue.dump())["counts"] == {"staged": "1", "cancelled": "1"}
    await sound(queue)


async def test_one_in_a_lane_without_a_group_leaves_it_at_once(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1")])
    await queue.command("XGROUP", "DESTROY", queue.keys.lane("high"), GROUP)
    assert await queue.broker.cancel("r1")
    await queue.broker.ensure_groups()
    assert (await queue.pull()).claims == []
    assert (await queue.broker.audit()).problems() == []


@fails_without("cancel: not another request's entry", "if entry and entry.id == id then return", "if entry then return")
async def test_a_record_that_names_another_entry_removes_nothing(queue: Queue) -> None:
    """A record may name any entry, because every producer may write records."""
    (other,) = await queue.broker.enqueue([submission("r2")])
    await queue.command("SET", queue.keys.request("r1"), f"d1 {other.entry} ", "PX", HOUR_MS)
    assert await queue.broker.cancel("r1")
    assert [claim.lease.request_id for claim in (await queue.pull()).claims] == ["r2"]


@fails_without("cancel: the stream id as the lane has it", "return lane, row[1], entry", "return lane, given, entry")
async def test_a_record_that_writes_its_entry_otherwise_leaves_no_trace_of_it(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1")
    await queue.pull("w1", 0)
    await queue.command("SET", queue.keys.request("r1"), "d1 high:001000-00 ", "PX", HOUR_MS)
    assert await queue.broker.cancel("r1")
    assert not (await queue.dump()).keys() & {"lane:high", "ready:high"}
    await sound(queue)


@fails_without("cancel: also beside a key of another type", " or not pcall(require_types) then", " then")
async def test_a_key_of_another_type_leaves_the_entry_where_it_is(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1")])
    await queue.command("SET", queue.keys.counts, "by hand")
    assert await queue.broker.cancel("r1")
    await queue.command("DEL", queue.keys.counts)
    assert (await queue.pull()).dropped == 1
    await sound(queue)


# -- how long a cancelled request stays so -----------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
async def test_a_cancelled_request_never_runs_however_long_its_lane_is_paused(queue: Queue, known: bool) -> None:
    """Its result, where it would expire first, is all that tells a pull that it was cancelled."""
    short = queue.with_limits(result_ttl_ms=1_000, waiting_ttl_ms=HOUR_MS)
    await short.broker.pause()
    if known:
        await short.broker.enqueue([submission("r1")])
    else:
        await short.add("high", "1000-0", id="r1")
    await short.pull("w1", 0)
    assert await short.broker.cancel("r1")
    await short.command("PEXPIRE", short.keys.result("r1"), await lives_ms(short, "r1") - short.limits.result_ttl_ms)
    await short.broker.resume()
    pulled = await short.pull()
    assert pulled.claims == []
    assert (await short.dump())["counts"] == {"staged": "1", "cancelled": "1"}


@fails_without(
    "discard duplicate: then the result lives as any",
    "unpack(values))\n    call('PEXPIRE', result_key(request_id), cfg.result_ttl_ms)\n",
    "unpack(values))\n",
)
async def test_the_result_of_what_is_not_found_outlives_a_request_that_waits_and_then_lives_as_any(
    queue: Queue,
) -> None:
    await queue.add("high", "1000-0", id="r1")
    await queue.command("SET", queue.keys.request("r1"), "d1 x ", "PX", HOUR_MS)
    assert await queue.broker.cancel("r1")
    for key in (queue.keys.result("r1"), queue.keys.request("r1")):
        left = await queue.command("PTTL", key)
        assert queue.limits.waiting_ttl_ms - HOUR_MS < left <= queue.limits.waiting_ttl_ms
    assert (await queue.pull()).dropped == 1
    for key in (queue.keys.result("r1"), queue.keys.request("r1")):
        left = await queue.command("PTTL", key)
        assert queue.limits.result_ttl_ms - HOUR_MS < left <= queue.limits.result_ttl_ms


@fails_without("cancel: its result outlives what it may still meet", ".record_ttl_ms or ARGV", ".result_ttl_ms or ARGV")
async def test_a_running_one_that_goes_back_to_its_lane_stays_cancelled(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1")
    assert await queue.broker.cancel("r1")
    await queue.broker.release("w1", [lease])
    assert await lives_ms(queue, "r1") > queue.limits.result_ttl_ms
    assert (await queue.pull()).dropped == 1
    assert await lives_ms(queue, "r1") <= queue.limits.result_ttl_ms


@fails_without("ask: also on a full server")
@pytest.mark.every_release
async def test_a_full_redis_takes_what_workers_are_asked_for(queue: Queue) -> None:
    """It is they who make room."""
    async with queue.full_memory():
        await queue.broker.ask_to_cancel("r1", HOUR_MS)
        await queue.broker.drain("w1")
    asked = {"id": "r1", "before_it_comes": str(HOUR_MS)}
    assert await queue.dump() == {"cancel_requests": [asked], "cancels": [{"drain": "w1"}]}


async def test_what_workers_are_told_is_bounded(queue: Queue) -> None:
    """Somebody who tells workers to drain in a loop must not fill Redis."""
    queue = queue.with_limits(notices_cap=100)
    for number in range(500):
        await queue.broker.drain(f"w{number}")
    assert await queue.command("XLEN", queue.keys.cancels) <= 250  # Redis cuts whole nodes of a stream
    assert "w499" in (await queue.broker.read_notices("0-0", 1)).drain
