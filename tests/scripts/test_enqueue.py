"""enqueue.lua: every id once, lanes bounded, nothing written for what is not accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamfleet.common.broker.types import TOO_MANY_BYTES, EnqueueCode
from streamfleet.common.errors import BrokerOutOfMemory
from streamfleet.common.protocol import Lane
from tests.scripts.harness import BODY, Queue, submission
from tests.scripts.mutants import fails_without


async def test_accepted_requests_stand_in_their_lanes_and_are_recorded(queue: Queue) -> None:
    first, second = await queue.broker.enqueue([submission("r1", reply="me"), submission("r2", Lane.LOW)])
    assert (first.code, second.code) == (EnqueueCode.ACCEPTED, EnqueueCode.ACCEPTED)
    assert first.entry.startswith("high:")
    high, low = first.entry.removeprefix("high:"), second.entry.removeprefix("low:")
    assert await queue.dump() == {
        "lane:high": {"entries": {high: {"body": BODY, "id": "r1", "reply": "me"}}, "undelivered": [high]},
        "lane:low": {"entries": {low: {"body": BODY, "id": "r2"}}, "undelivered": [low]},
        "request:r1": f"d1 {first.entry} me",
        "request:r2": f"d1 {second.entry} ",
    }


async def test_an_id_twice_in_one_call_is_accepted_once(queue: Queue) -> None:
    codes = [item.code for item in await queue.broker.enqueue([submission("r1"), submission("r1")])]
    assert codes == [EnqueueCode.ACCEPTED, EnqueueCode.EXISTING]
    assert len((await queue.dump())["lane:high"]["entries"]) == 1


@fails_without("enqueue: not what ended", "count > 0 and call('EXISTS', unpack(KEYS, before + 1 + count)) > 0", "false")
async def test_an_id_that_has_a_result_already_is_not_queued(queue: Queue) -> None:
    await queue.broker.cancel("r1", before_ms=60_000)
    async with queue.unchanged():
        (answer,) = await queue.broker.enqueue([submission("r1")])
        assert (answer.code, answer.entry) == (EnqueueCode.ANSWERED, "")


@fails_without("enqueue: only that which ended", "if answered and call('EXISTS', result) == 1 then", "if answered then")
async def test_of_many_only_those_that_have_a_result_are_not_queued(queue: Queue) -> None:
    await queue.broker.cancel("r2", before_ms=60_000)
    answers = await queue.broker.enqueue([submission(f"r{number}") for number in range(4)])
    assert [answer.code for answer in answers] == [
        EnqueueCode.ACCEPTED,
        EnqueueCode.ACCEPTED,
        EnqueueCode.ANSWERED,
        EnqueueCode.ACCEPTED,
    ]
    dump = await queue.dump()
    assert [fields["id"] for fields in dump["lane:high"]["entries"].values()] == ["r0", "r1", "r3"]
    assert "request:r2" not in dump


async def test_requests_of_many_kinds_in_one_call_keep_what_is_theirs(queue: Queue) -> None:
    items = [
        submission("r0", reply="me"),
        submission("r1", reply="you"),
        submission("r2", reply="you"),
        submission("r3", Lane.LOW, reply="you"),
        submission("r4", Lane.LOW),
        replace(submission("r5", Lane.LOW), fields={"id": b"r5", "body": b"{}", "ttl": b"5"}),
        submission("r6", reply="me"),
    ]
    answers = await queue.broker.enqueue(items)
    dump = await queue.dump()
    for item, answer in zip(items, answers, strict=True):
        stream_id = answer.entry.removeprefix(f"{item.lane}:")
        entry = dump[f"lane:{item.lane}"]["entries"][stream_id]
        assert list(entry.items()) == [(name, value.decode()) for name, value in item.fields.items()]
        assert dump[f"request:{item.id}"] == f"d1 {answer.entry} {item.reply}"
    assert sum(len(dump[f"lane:{lane}"]["entries"]) for lane in ("high", "low")) == len(items)


async def test_nothing_is_nothing(queue: Queue) -> None:
    assert await queue.broker.enqueue([]) == []
    assert await queue.dump() == {}


@pytest.mark.parametrize("record", ["", "odd", "odd "])
async def test_a_record_that_somebody_overwrote_is_a_conflict(queue: Queue, record: str) -> None:
    await queue.command("SET", queue.keys.request("r1"), record)
    first, second = await queue.broker.enqueue([submission("r1"), submission("r2")])
    assert (first.code, first.entry, second.code) == (EnqueueCode.CONFLICT, "", EnqueueCode.ACCEPTED)


async def test_a_call_of_many_hundred_requests(queue: Queue) -> None:
    large = queue.with_limits(lane_limit=10_000)
    answers = await large.broker.enqueue([submission(f"r{number}") for number in range(1_500)])
    assert {answer.code for answer in answers} == {EnqueueCode.ACCEPTED}
    assert len((await queue.dump())["lane:high"]["entries"]) == 1_500


@fails_without("enqueue: lanes are bounded")
@fails_without("enqueue: within one call too")
async def test_a_lane_takes_no_more_than_its_limit_by_its_length(queue: Queue) -> None:
    small = queue.with_limits(lane_limit=2)
    await queue.add("high", "1000-0")
    await queue.claim()  # running ones count too
    answers = await small.broker.enqueue([submission(f"r{i}") for i in range(3)] + [submission("other", Lane.NORMAL)])
    assert [answer.code for answer in answers] == [
        EnqueueCode.ACCEPTED,
        EnqueueCode.FULL,
        EnqueueCode.FULL,
        EnqueueCode.ACCEPTED,
    ]
    dump = await queue.dump()
    assert len(dump["lane:high"]["entries"]) == 2
    assert "request:r1" not in dump


LARGE = "x" * 100_000


@fails_without("enqueue: lanes are bounded in bytes")
async def test_a_lane_takes_no_more_large_requests_than_its_limit_of_bytes(queue: Queue) -> None:
    """Also where plain XADDs filled it: the server is asked what the lane takes."""
    narrow = queue.with_limits(lane_bytes=1_000_000)
    for number in range(8):
        await queue.add("high", f"1000-{number}", body=LARGE)
    answers = [(await narrow.broker.enqueue([submission(f"r{number}", body=LARGE)]))[0] for number in range(4)]
    taken = [answer.code for answer in answers].count(EnqueueCode.ACCEPTED)
    assert taken < 3, "the lane has 800 kB already"
    assert {answer.entry for answer in answers if answer.code is EnqueueCode.FULL} == {TOO_MANY_BYTES}
    small, other = await narrow.broker.enqueue([submission("small"), submission("other", Lane.LOW, body=LARGE)])
    assert (small.code, other.code) == (EnqueueCode.ACCEPTED, EnqueueCode.ACCEPTED)
    dump = await queue.dump()
    assert len(dump["lane:high"]["entries"]) == 8 + taken + 1
    assert "request:r3" not in dump
    await queue.command("XTRIM", queue.keys.lane("high"), "MAXLEN", 1)
    (again,) = await narrow.broker.enqueue([submission("r3", body=LARGE)])
    assert again.code is EnqueueCode.ACCEPTED, "there is room again at once"


@fails_without("enqueue: bytes of one call too")
async def test_the_bytes_of_one_call_count_together(queue: Queue) -> None:
    narrow = queue.with_limits(lane_bytes=1_000_000)
    answers = await narrow.broker.enqueue([submission(f"r{number}", body=LARGE) for number in range(12)])
    taken = [answer.code for answer in answers].count(EnqueueCode.ACCEPTED)
    assert 8 <= taken <= 9
    assert [answer.entry for answer in answers[taken:]] == [TOO_MANY_BYTES] * (12 - taken)


async def test_a_lane_without_room_in_bytes_still_knows_what_it_accepted(queue: Queue) -> None:
    narrow = queue.with_limits(lane_bytes=150_000)
    items = [submission("r1", body=LARGE), submission("r2", body=LARGE), submission("r1", body=LARGE)]
    codes = [answer.code for answer in await narrow.broker.enqueue(items)]
    assert codes == [EnqueueCode.ACCEPTED, EnqueueCode.FULL, EnqueueCode.EXISTING]


async def test_odd_bytes_go_through_as_they_are(queue: Queue) -> None:
    item = submission("}:x{q}:result:y")
    odd = {**item.fields, "meta": bytes(range(256)), "body": b"\xff\x00\r\n"}
    (answer,) = await queue.broker.enqueue([type(item)(item.id, item.lane, odd, "d", "")])
    stream_id = answer.entry.removeprefix("high:").encode()
    ((_, flat),) = await queue.command("XRANGE", queue.keys.lane("high"), stream_id, stream_id)
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == {name.encode(): value for name, value in odd.items()}
    assert (await queue.pull()).claims[0].lease.request_id == item.id


async def test_a_redis_at_its_memory_limit_refuses_new_requests_whole(queue: Queue) -> None:
    async with queue.unchanged(), queue.full_memory():
        with pytest.raises(BrokerOutOfMemory, match="memory limit"):
            await queue.broker.enqueue([submission("r1"), submission("r2")])
