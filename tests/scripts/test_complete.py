"""complete.lua: fenced, written once, counted once, notified once, and only then removed."""

from __future__ import annotations

import pytest

from streamfleet.common.broker.producer import Notifications
from streamfleet.common.broker.types import CompleteCode, Completion
from streamfleet.common.protocol import Status
from streamfleet.common.replies import mapping
from tests.scripts.harness import BODY, ERROR, Queue, entry, submission
from tests.scripts.keyspace import changed
from tests.scripts.mutants import fails_without


async def test_an_outcome_is_published_and_its_entry_removed(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1", reply="me")
    before = await queue.dump()
    done = Completion(lease, Status.SUCCEEDED, {"response": "{}", "usage": b"\xff"}, "me")
    assert await queue.broker.complete("w1", [done]) == [CompleteCode.PUBLISHED]
    assert await queue.dump() == changed(
        before,
        {
            "lane:high": None,
            "result:r1": {
                "status": "succeeded",
                "response": "{}",
                "usage": "\\xff",
                "worker": "w1",
                "attempt": "1",
                "entry": "high:1000-0",
                "lane": "high",
                "notified:me": "1",
            },
            "reply:me": [{"id": "r1", "status": "succeeded"}],
            "counts": {"staged": "1", "succeeded": "1"},
        },
    )


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED, Status.DEAD])
async def test_an_outcome_without_success_leaves_a_dead_letter(queue: Queue, status: Status) -> None:
    lease = await queue.running("high", "1000-0", id="r1")
    before = await queue.dump()
    assert await queue.complete("w1", lease, status=status, error=ERROR) == [1]
    letter = {"_id": "r1", "_status": status, "_error": ERROR, "_entry": "high:1000-0", "_attempts": "1"}
    result = {"status": status, "error": ERROR, "worker": "w1", "attempt": "1", "entry": "high:1000-0", "lane": "high"}
    assert await queue.dump() == changed(
        before,
        {
            "lane:high": None,
            "result:r1": result,
            "dead": [letter | entry(id="r1")],
            "counts": {"staged": "1", status: "1"},
        },
    )


async def test_a_zombies_outcome_after_the_reclaim_writes_nothing(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1", reply="me")
    await queue.broker.reclaim(0, 3)
    async with queue.unchanged():
        assert await queue.complete("w1", lease) == [CompleteCode.LOST]


async def test_a_late_outcome_of_an_earlier_attempt_of_the_same_worker_writes_nothing(queue: Queue) -> None:
    first = await queue.running("high", "1000-0", id="r1")
    await queue.broker.reclaim(0, 3)
    second = await queue.claim("w1")
    assert (first.attempt, second.attempt) == (1, 2)
    async with queue.unchanged():
        assert await queue.complete("w1", first) == [CompleteCode.LOST]
    assert await queue.complete("w1", second) == [CompleteCode.PUBLISHED]


@fails_without(
    "complete: published before by this very attempt",
    "return result[1] == worker and tonumber(result[2]) == attempt and result[3] == entry_name(lane, id)",
    "return result[1] == worker",
)
async def test_an_outcome_sent_again_after_a_lost_answer_says_so(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1", reply="me")
    await queue.complete("w1", lease)
    async with queue.unchanged():
        assert await queue.complete("w1", lease) == [CompleteCode.PUBLISHED_BEFORE]
        assert await queue.complete("w2", lease) == [CompleteCode.LOST]
        assert await queue.complete("w1", lease._replace(attempt=2)) == [CompleteCode.LOST]


async def test_one_lease_twice_in_a_call_is_published_once(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1")
    assert await queue.complete("w1", lease, lease) == [1, 3]
    assert (await queue.dump())["counts"] == {"staged": "1", "succeeded": "1"}


async def test_a_missing_group_is_noticed_before_the_first_outcome_is_written(queue: Queue) -> None:
    high = await queue.running("high", "1000-0", id="r1")
    low = await queue.running("low", "1000-0", id="r2")
    await queue.command("DEL", queue.keys.lane("low"))
    assert await queue.complete("w1", high, low) == [CompleteCode.PUBLISHED, CompleteCode.LOST]
    assert (await queue.dump())["counts"] == {"staged": "2", "succeeded": "1"}


async def test_results_replies_and_records_expire(queue: Queue) -> None:
    """keyspace.read checks what has a time to live and what has none; here, how long."""
    short = queue.with_limits(result_ttl_ms=60_000)
    await short.broker.enqueue([submission("r1", reply="me")])
    (claim,) = (await short.pull()).claims
    await short.broker.complete("w1", [Completion(claim.lease, Status.SUCCEEDED, {}, "me")])
    for key in (queue.keys.result("r1"), queue.keys.reply("me"), queue.keys.request("r1")):
        assert 50_000 < await queue.command("PTTL", key) <= 60_000


async def test_a_reply_stream_is_bounded(queue: Queue) -> None:
    small = queue.with_limits(reply_cap=100)
    for number in range(400):
        lease = await small.running("high", f"1000-{number}", reply="me", body=BODY)
        await small.broker.complete("w1", [Completion(lease, Status.SUCCEEDED, {}, "me")])
    assert 100 <= len((await queue.dump())["reply:me"]) < 250


@fails_without(
    "notification: a result's field `id` is not the request's",
    "values[n + 1], values[n + 2] = 'id', request_id   -- the last of a name counts\n"
    "      tell(key, 'MAXLEN', '~', cfg.reply_cap, '*', unpack(values, 1, n + 2))",
    "tell(key, 'MAXLEN', '~', cfg.reply_cap, '*', 'id', request_id, unpack(values, 1, n))",
)
async def test_a_small_result_comes_with_its_notification(queue: Queue) -> None:
    await finish(queue, "x" * 4_000)
    stored = mapping(await queue.command("HGETALL", queue.keys.result("r1")))
    del stored[b"notified:me"], stored[b"id"]
    assert await told(queue) == [("r1", stored)]


@fails_without("notification: a large result does not come along", "and bytes <= 4096", "")
async def test_a_result_of_over_four_kib_does_not_come_along(queue: Queue) -> None:
    await finish(queue, "x" * 4_100)
    assert await told(queue) == [("r1", None)]


@fails_without("notification: no result behind many", "values and room > 0", "values")
@fails_without("notification: those of the same call count", "told[key] = room - 1", "told[key] = room")
async def test_no_result_comes_behind_two_hundred_notifications(queue: Queue) -> None:
    """198 that nobody has read, and another one of the same call."""
    last = await notify(queue, 198)
    leases = [await queue.running("high", f"1000-{number}", id=f"r{number}", reply="me") for number in range(3)]
    await queue.broker.complete(
        "w1", [Completion(lease, Status.SUCCEEDED, {"finished_ms": "7"}, "me") for lease in leases]
    )
    assert [fields is not None for _, fields in await told(queue, last)] == [True, True, False]


@fails_without("notification: results do not outlive their time in a reply stream", "length == 0 then", "length then")
async def test_a_reply_stream_lives_from_its_first_notification_on(queue: Queue) -> None:
    """Longer, and a result would stay in it for longer than it is kept."""
    await finish(queue, "x")
    await queue.command("PEXPIRE", queue.keys.reply("me"), 5_000)
    lease = await queue.running("high", "1000-1", id="r2", reply="me")
    await queue.broker.complete("w1", [Completion(lease, Status.SUCCEEDED, {}, "me")])
    assert 0 < await queue.command("PTTL", queue.keys.reply("me")) <= 5_000


async def test_read_notifications_are_deleted(queue: Queue) -> None:
    await queue.broker.trim_replies("me", await notify(queue, 500))
    assert 1 <= await queue.command("XLEN", queue.keys.reply("me")) <= 101, "a whole node of the stream may be left"


async def finish(queue: Queue, response: str) -> None:
    """Run the request `r1` of the caller `me` to this response."""
    lease = await queue.running("high", "1000-0", id="r1", reply="me")
    values = {"finished_ms": "7", "response": response, "id": "another"}
    await queue.broker.complete("w1", [Completion(lease, Status.SUCCEEDED, values, "me")])


async def notify(queue: Queue, count: int) -> str:
    """Add notifications for the caller `me`. Returns the stream id of the last one."""
    words = ("XADD", queue.keys.reply("me"), "*", "id", "x", "status", "succeeded")
    ids: list[bytes] = await queue.broker.connection.pipeline([words] * count)
    return ids[-1].decode()


async def told(queue: Queue, after: str = "0-0") -> Notifications:
    """The notifications of the caller `me`."""
    return (await queue.broker.read_replies("me", after, 1))[1]


@fails_without("complete: two outcomes of one id in one call", "absent and not (tried and tried[request_id])", "absent")
async def test_two_outcomes_of_one_id_in_one_call_are_one_result(queue: Queue) -> None:
    first = await queue.running("high", "1000-0", id="r1")
    second = await queue.running("low", "1000-0", id="r1")
    outcomes = [
        Completion(lease, Status.SUCCEEDED, {"response": str(n)}, "") for n, lease in enumerate((first, second))
    ]
    codes = await queue.broker.complete("w1", outcomes)
    assert codes == [CompleteCode.PUBLISHED, CompleteCode.ENDED_BEFORE]
    after = await queue.dump()
    assert after["result:r1"]["response"] == "0"
    assert after["counts"] == {"staged": "2", "succeeded": "1", "duplicate": "1"}


async def test_outcomes_of_one_call_have_each_their_own_fields(queue: Queue) -> None:
    """Names are sent once for outcomes alike; a reply is only the one's that has it."""
    given: list[dict[str, str]] = [
        {"response": "a", "usage": "u"},
        {"response": "b", "usage": "v"},
        {},
        {},
        {"error": "c"},
    ]
    leases = [await queue.running("low", f"1000-{number}", id=f"r{number}") for number in range(len(given))]
    replies = ["me", "", "me", "", ""]
    outcomes = [
        Completion(lease, Status.SUCCEEDED, values, reply)
        for lease, values, reply in zip(leases, given, replies, strict=True)
    ]
    assert await queue.broker.complete("w1", outcomes) == [CompleteCode.PUBLISHED] * 5
    after = await queue.dump()
    for number, (values, reply) in enumerate(zip(given, replies, strict=True)):
        signed = {"status": "succeeded", "worker": "w1", "attempt": "1", "entry": f"low:1000-{number}", "lane": "low"}
        told = {f"notified:{reply}": "1"} if reply else {}
        assert after[f"result:r{number}"] == values | signed | told
