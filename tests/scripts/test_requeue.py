"""requeue.lua, and the broker's operations on dead letters."""

from __future__ import annotations

import pytest

from streamfleet.common.broker.types import Accepted, EnqueueCode
from streamfleet.common.errors import BrokerOutOfMemory
from streamfleet.common.protocol import Lane, Status
from tests.scripts.harness import BODY, NOW, Queue, entry, ids, submission
from tests.scripts.keyspace import changed
from tests.scripts.mutants import fails_without


async def bury(queue: Queue, number: int = 0, **fields: object) -> str:
    """One request that failed; its dead letter's id."""
    lease = await queue.running("high", f"1000-{number}", id=f"r{number}", **fields)
    await queue.complete("w1", lease, status=Status.FAILED)
    return (await queue.broker.dead_letters(1))[0][0]


async def again(queue: Queue, letter: str, request_id: str, lane: Lane, fields: list[bytes], **more: str) -> str | None:
    """Requeue what may be requeued; its new stream id."""
    new, newer = await queue.broker.requeue(letter, request_id, lane, fields, **more)
    assert newer == ""
    return new


@fails_without("requeue: the letter's own result is no hindrance", "[1] and result[2] ~= former then", "[1] then")
async def test_a_dead_letter_gets_another_life(queue: Queue) -> None:
    letter = await bury(queue)
    before = await queue.dump()
    new = await again(queue, letter, "r0", Lane.LOW, [b"id", b"r0", b"body", BODY.encode()], entry="high:1000-0")
    assert new is not None
    assert await queue.dump() == changed(
        before,
        {
            "lane:low": {"entries": {new: entry(id="r0")}, "undelivered": [new]},
            "result:r0": None,
            "request:r0": f"- low:{new} ",
            "dead": None,
            "counts": {"staged": "1", "failed": "1", "requeued": "1"},
        },
    )
    lease = await queue.claim()
    assert (lease.request_id, lease.attempt) == ("r0", 1)
    assert await queue.complete("w1", lease) == [1]
    assert (await queue.broker.audit()).problems() == []


@fails_without("requeue: its id stays taken")
async def test_the_record_of_its_id_names_the_new_entry_so_that_nobody_enqueues_it_a_second_time(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1", reply="me")])
    await queue.complete("w1", await queue.claim(), status=Status.FAILED)
    ((letter, fields),) = await queue.broker.dead_letters(1)
    new = await again(
        queue, letter, "r1", Lane.HIGH, [b"id", b"r1", b"body", b"{}"], entry=fields[b"_entry"].decode(), reply="me"
    )
    assert await queue.broker.enqueue([submission("r1")]) == [Accepted(EnqueueCode.EXISTING, f"high:{new}")]
    assert await queue.broker.enqueue([submission("r1", digest="d2")]) == [
        Accepted(EnqueueCode.CONFLICT, f"high:{new}")
    ]
    assert (await queue.dump())["request:r1"] == f"d1 high:{new} me"
    assert queue.limits.result_ttl_ms < await queue.command("PTTL", queue.keys.request("r1"))


@fails_without(
    "requeue: once, however often it is asked for",
    "return {id and tonumber(string.match(id, '^%d+')) >= tonumber(string.match(letter, '^%d+')) and id or '', ''}",
    "return {'', ''}",
)
async def test_asked_twice_it_is_requeued_once_and_says_the_same(queue: Queue) -> None:
    await queue.broker.enqueue([submission("r1")])
    await queue.complete("w1", await queue.claim(), status=Status.FAILED)
    ((letter, fields),) = await queue.broker.dead_letters(1)
    entry = fields[b"_entry"].decode()
    new = await again(queue, letter, "r1", Lane.HIGH, [b"id", b"r1", b"body", b"{}"], entry=entry)
    async with queue.unchanged():
        assert await again(queue, letter, "r1", Lane.HIGH, [b"id", b"r1", b"body", b"{}"], entry=entry) == new


@fails_without("requeue: what was purged was not requeued", "and entry ~= former and string.match", "and string.match")
@fails_without(
    "requeue: not what was enqueued before the letter was written",
    "return {id and tonumber(string.match(id, '^%d+')) >= tonumber(string.match(letter, '^%d+')) and id or '', ''}",
    "return {id or '', ''}",
)
async def test_a_letter_that_was_purged_was_not_requeued_though_its_id_is_known(queue: Queue) -> None:
    (accepted,) = await queue.broker.enqueue([submission("r1")])
    async with queue.unchanged():
        # A result of the entry that the record names, in any millisecond; and one of another entry, later than that.
        for letter, former in (("1-1", accepted.entry), ("9999999999999-0", "high:1-1")):
            assert await again(queue, letter, "r1", Lane.HIGH, [b"x", b"y"], entry=former) is None


# -- an id that was used again since ------------------------------------------------------------------------


async def forgotten(queue: Queue) -> str:
    """One request that failed and whose result and record have expired; its dead letter's id."""
    await queue.broker.enqueue([submission("r0")])
    await queue.complete("w1", await queue.claim(), status=Status.FAILED)
    await queue.command("DEL", queue.keys.result("r0"), queue.keys.request("r0"))
    return (await queue.broker.dead_letters(1))[0][0]


async def refused(queue: Queue, letter: str) -> str:
    """The reason for which a letter is not requeued; nothing changes by that."""
    async with queue.unchanged():
        entry_of = (await queue.broker.dead_letter(letter) or {})[b"_entry"].decode()
        fields = [b"id", b"r0", b"body", BODY.encode()]
        new, newer = await queue.broker.requeue(letter, "r0", Lane.HIGH, fields, entry=entry_of)
        assert new is None
    return newer


@fails_without("requeue: not over a newer result")
async def test_a_newer_success_is_not_deleted(queue: Queue) -> None:
    letter = await forgotten(queue)
    await queue.broker.enqueue([submission("r0")])
    await queue.complete("w1", await queue.claim())
    assert await refused(queue, letter) == "succeeded"


@fails_without("requeue: not beside a newer request", argument="d2")
@pytest.mark.parametrize("digest", ["d1", "d2"])
async def test_a_newer_request_that_has_not_ended_keeps_its_id(queue: Queue, digest: str) -> None:
    """Otherwise a caller that waits for it by its id gets the answer to the older one."""
    letter = await forgotten(queue)
    await queue.broker.enqueue([submission("r0", digest=digest)])
    assert await refused(queue, letter) == "outstanding"
    await queue.pull()
    assert await refused(queue, letter) == "outstanding"


async def test_an_id_that_was_cancelled_since_stays_cancelled(queue: Queue) -> None:
    letter = await forgotten(queue)
    await queue.broker.cancel("r0", before_ms=60_000)
    assert await refused(queue, letter) == "cancelled"


async def test_what_is_no_result_of_anybodys_keeps_no_letter_back(queue: Queue) -> None:
    letter = await bury(queue)
    await queue.command("DEL", queue.keys.result("r0"))
    await queue.command("SET", queue.keys.result("r0"), "by hand", "PX", 60_000)
    assert await again(queue, letter, "r0", Lane.LOW, [b"body", b"{}"], entry="high:1000-0")


async def test_a_letter_that_was_requeued_and_failed_again_is_requeued_again(queue: Queue) -> None:
    letter = await bury(queue)
    for _ in range(2):
        entry_of = (await queue.broker.dead_letter(letter) or {})[b"_entry"].decode()
        await again(queue, letter, "r0", Lane.HIGH, [b"id", b"r0", b"body", BODY.encode()], entry=entry_of)
        await queue.complete("w1", await queue.claim(), status=Status.FAILED)
        ((letter, _),) = await queue.broker.dead_letters(1)
    assert (await queue.broker.audit()).problems() == []


@fails_without(
    "requeue: no lasting record without an id",
    "local life = usable_name(request_id) and cfg.record_ttl_ms or cfg.result_ttl_ms",
    "local life = cfg.record_ttl_ms",
)
async def test_a_request_without_an_id_of_its_own_leaves_a_record_for_a_while_only(queue: Queue) -> None:
    await queue.complete("w1", await queue.running("high", "1000-0"), status=Status.FAILED)
    ((letter, _),) = await queue.broker.dead_letters(1)
    name, fields = "high:1000-0", [b"body", b"{}"]
    new = await again(queue, letter, name, Lane.HIGH, fields, entry=name)
    assert await again(queue, letter, name, Lane.HIGH, fields, entry=name) == new
    assert 0 < await queue.command("PTTL", queue.keys.request("high:1000-0")) <= queue.limits.result_ttl_ms


@fails_without("requeue: not what is gone")
async def test_a_dead_letter_that_is_gone_is_not_requeued(queue: Queue) -> None:
    letter = await bury(queue)
    assert await queue.broker.purge([letter]) == 1
    async with queue.unchanged():
        assert await again(queue, letter, "r0", Lane.LOW, [b"body", b"{}"], entry="high:1000-0") is None


async def test_a_full_redis_keeps_the_dead_letter(queue: Queue) -> None:
    letter = await bury(queue)
    async with queue.unchanged(), queue.full_memory():
        with pytest.raises(BrokerOutOfMemory):
            await again(queue, letter, "r0", Lane.LOW, [b"body", b"{}"], entry="high:1000-0")


async def test_a_dead_letter_without_fields_is_kept(queue: Queue) -> None:
    letter = await bury(queue)
    async with queue.unchanged():
        with pytest.raises(Exception, match="number of arg"):
            await again(queue, letter, "r0", Lane.LOW, [], entry="high:1000-0")


async def test_dead_letters_are_read_by_the_newest_by_id_and_in_order(queue: Queue) -> None:
    letters = [await bury(queue, number, meta=number) for number in range(5)]
    newest = await queue.broker.dead_letters(2)
    assert [(letter, fields[b"_id"]) for letter, fields in newest] == [(letters[4], b"r4"), (letters[3], b"r3")]
    one = await queue.broker.dead_letter(letters[2])
    assert one is not None
    assert (one[b"_id"], one[b"meta"]) == (b"r2", b"2")
    assert await queue.broker.dead_letter("1-1") is None
    assert [letter async for letter, _ in queue.broker.stream_entries(queue.broker.keys.dead, "-")] == letters
    assert await queue.broker.purge([]) == 0


async def test_dead_letters_are_bounded(queue: Queue) -> None:
    small = queue.with_limits(dead_cap=10)
    for number in range(300):
        await queue.add("high", f"1000-{number}", deadline=NOW - 1)
    while (await small.pull("w1", 64)).staged:
        pass
    after = await queue.dump()
    assert after["counts"]["expired"] == "300"
    assert 10 <= len(after["dead"]) < 150


async def test_an_expired_one_may_be_requeued_and_expires_again_unless_its_deadline_is_taken_out(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", deadline=5)
    await queue.pull()
    ((letter, fields),) = await queue.broker.dead_letters(1)
    kept = {name: value for name, value in fields.items() if not name.startswith(b"_") and name != b"deadline"}
    flat = [part for pair in kept.items() for part in pair]
    new = await again(queue, letter, "r1", Lane.HIGH, flat, entry="high:1000-0")
    assert ids((await queue.pull()).claims) == [new]
