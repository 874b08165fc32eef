"""gateway_file_*.lua and gateway_batch_*.lua: what each writes, and what it refuses to write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamfleet.common.errors import BrokerOutOfMemory
from streamfleet.common.protocol import CHAT, Lane
from streamfleet.gateway.batch_records import BatchNames, BatchRecord, BatchStatus, FileRecord, Part
from streamfleet.gateway.broker.batches import (
    AddCode,
    BatchBroker,
    Contender,
    Ending,
    Naming,
    SaveCode,
    Step,
    Taken,
)
from streamfleet.gateway.broker.files import Addition, Deletion, FileBroker
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without

LEASE_MS, HOLD_MS, KEPT_MS = 1_000, 500, 60_000
INPUT = FileRecord("file-in", "t", "in.jsonl", "batch", 10, NOW, NOW + KEPT_MS)
BATCH = BatchRecord("batch_1", "t", "file-in", "file-out", "file-err", CHAT, "24h", Lane.LOW, NOW, NOW + 86_400_000)


class Records(BatchBroker, FileBroker):
    """Batches and files, through one connection."""


def broker(queue: Queue, now_ms: int = NOW) -> Records:
    """The gateway's broker, in the test's keyspace, at a time that stands still."""
    return Records(queue.connection, BatchNames(queue.keys.base), lambda: now_ms)


async def with_file(queue: Queue, record: FileRecord = INPUT, content: str = "aa/in") -> Records:
    found = broker(queue)
    await found.hold([content], HOLD_MS)
    assert await found.add_file(record, Part(content, record.bytes))
    return found


async def added(found: Records, batch: BatchRecord = BATCH) -> bool:
    return await found.add_batch(batch) == (AddCode.ACCEPTED, batch.id)


async def with_batch(queue: Queue) -> Records:
    found = await with_file(queue)
    assert await added(found)
    return found


async def taken(queue: Queue, now_ms: int = NOW) -> Taken:
    found = await broker(queue, now_ms).take_batch(BATCH.id, "g1", LEASE_MS)
    assert found is not None
    return found


async def with_taken_batch(queue: Queue) -> tuple[Records, int]:
    found = await with_batch(queue)
    return found, (await taken(queue)).epoch


async def record_of(found: Records) -> BatchRecord:
    record = await found.batch(BATCH.id)
    assert record is not None
    return record


async def stored(found: Records, *names: str) -> list[Part]:
    await found.hold(names, HOLD_MS)
    return [Part(name, 100 + number) for number, name in enumerate(names)]


# -- files -------------------------------------------------------------------------------------------------


@fails_without("gateway_file_add: asked again")
async def test_a_content_becomes_a_file(queue: Queue) -> None:
    found = broker(queue)
    await found.hold(["aa/in"], HOLD_MS)
    assert await queue.dump() == {"loose": [("aa/in", NOW + HOLD_MS)]}
    assert await found.add_file(INPUT, Part("aa/in", 10))
    assert await queue.dump() == {
        "file:file-in": INPUT.fields(),
        "parts:file-in": ["10 aa/in"],
        "files:t": [("file-in", 0)],
        "file_ends": [("file-in", NOW + KEPT_MS)],
        "use:t": {"file_bytes": "10"},
    }
    assert await found.file("file-in") == INPUT
    assert await found.parts("file-in") == [Part("aa/in", 10)]
    async with queue.unchanged():
        assert await found.add_file(INPUT, Part("aa/in", 10)), "its answer was lost, and it is asked again"


@fails_without("gateway_file_add: a content whose time is over")
async def test_a_content_whose_time_is_over_becomes_no_file(queue: Queue) -> None:
    """Somebody may be deleting it."""
    found = broker(queue)
    await found.hold(["aa/in"], HOLD_MS)
    async with queue.unchanged():
        assert not await broker(queue, NOW + HOLD_MS).add_file(INPUT, Part("aa/in", 10))
        assert not await found.add_file(INPUT, Part("aa/other", 10)), "nobody said that it would be stored"
    assert await broker(queue, NOW + HOLD_MS - 1).loose(10) == []
    assert await broker(queue, NOW + HOLD_MS).loose(10) == ["aa/in"]


@fails_without("gateway_file_delete: whose it is")
@fails_without("gateway_file_delete: contents are found again", "content in ipairs(contents)", "content in ipairs({})")
async def test_a_deleted_file_leaves_its_contents_to_be_deleted(queue: Queue) -> None:
    found = await with_file(queue)
    other = replace(INPUT, tenant="somebody else")
    async with queue.unchanged():
        assert await found.delete_file(other) == (Deletion.UNKNOWN, [])
    assert await found.delete_file(INPUT) == (Deletion.DELETED, [Part("aa/in", 10)])
    assert await queue.dump() == {"loose": [("aa/in", NOW)]}
    assert await found.delete_file(INPUT) == (Deletion.UNKNOWN, [])
    assert await found.loose(10) == ["aa/in"]
    await found.let_go(["aa/in"])
    assert await queue.dump() == {}


@fails_without("gateway_file_delete: a batch needs it")
@fails_without("gateway_batch_finish: its input may be deleted again", ", KEYS[9], 'uses', -1", ", KEYS[9], 'uses', 0")
@pytest.mark.every_release
async def test_a_file_that_a_batch_reads_is_not_deleted(queue: Queue) -> None:
    found = await with_batch(queue)
    async with queue.unchanged():
        assert await found.delete_file(INPUT) == (Deletion.IN_USE, [])
    _, epoch = await taken(queue)
    await found.finish_batch(BATCH, epoch, Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output"))
    assert (await found.delete_file(INPUT))[0] is Deletion.DELETED


@fails_without("gateway_file_add: all files of a tenant")
@fails_without("gateway_file_delete: gives room back")
async def test_all_files_of_a_tenant_have_a_limit_together(queue: Queue) -> None:
    found = await with_file(queue)
    second, third = replace(INPUT, id="file-2"), replace(INPUT, id="file-3", tenant="somebody else")
    await found.hold(["aa/2", "aa/3"], HOLD_MS)
    async with queue.unchanged():
        assert await found.add_file(second, Part("aa/2", 10), 19) is Addition.OVER_QUOTA
    assert await found.add_file(third, Part("aa/3", 10), 10) is Addition.MADE, "each tenant by itself"
    assert await found.add_file(second, Part("aa/2", 10), 20) is Addition.MADE
    assert await found.file_bytes("t") == 20
    await found.delete_file(INPUT)
    assert await found.file_bytes("t") == 10
    await found.delete_file(second)
    assert (await found.file_bytes("t"), "use:t" in await queue.dump()) == (0, False)


# -- accepting and taking ----------------------------------------------------------------------------------


@fails_without("gateway_batch_add: asked again")
async def test_a_batch_is_accepted_once(queue: Queue) -> None:
    found = await with_file(queue)
    before = await queue.dump()
    assert await added(found)
    after = before | {
        "file:file-in": {**INPUT.fields(), "uses": "1"},
        "batch:batch_1": BATCH.fields(),
        "batches:t": [("batch_1", 0)],
        "open_batches": [("batch_1", NOW)],
        "use:t": {"file_bytes": "10", "queued_bytes": "10", "open": "1", "open:batch_1": "10"},
    }
    assert await queue.dump() == after
    assert await added(found), "its answer was lost, and it is asked again"
    assert await queue.dump() == after
    assert await found.batch("batch_1") == BATCH


@fails_without("gateway_batch_finish: what was counted gives back, nothing else", "[11], mine) == 1", "[11], mine) < 2")
async def test_a_batch_that_counted_for_nothing_gives_nothing_back(queue: Queue) -> None:
    found = await with_batch(queue)
    await queue.command("HDEL", found.names.use("t"), "open:batch_1")
    _, epoch = await taken(queue)
    await found.finish_batch(BATCH, epoch, Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output"))
    assert await queue.command("HMGET", found.names.use("t"), "queued_bytes", "open") == [b"10", b"1"]
    assert (await record_of(found)).status is BatchStatus.COMPLETED


@fails_without("gateway_batch_add: whose the input is")
async def test_a_batch_of_another_tenants_file_is_not_accepted(queue: Queue) -> None:
    found = await with_file(queue, replace(INPUT, tenant="somebody else"))
    async with queue.unchanged():
        assert not await added(found)
        assert not await added(found, replace(BATCH, input_file_id="file-none"))


@fails_without("gateway_batch_add: a name is one batch's")
@fails_without("gateway_batch_add: a name is for one thing")
@fails_without("gateway_batch_add: names are forgotten")
async def test_the_same_name_is_the_same_batch(queue: Queue) -> None:
    found = await with_file(queue)
    another, later = replace(BATCH, id="batch_2"), replace(BATCH, id="batch_3")
    one, other = Naming("n", "what was asked"), Naming("n", "something else")
    assert await found.add_batch(BATCH, naming=one, kept_ms=KEPT_MS) == (AddCode.ACCEPTED, "batch_1")
    before = await queue.dump()
    assert before["named:n"] == {"batch": "batch_1", "digest": "what was asked"}
    assert 0 < await queue.command("PTTL", queue.keys.base + "named:n") <= KEPT_MS
    assert await found.add_batch(BATCH, naming=one) == (AddCode.ACCEPTED, "batch_1"), "its answer was lost"
    assert await found.add_batch(another, naming=one) == (AddCode.REPEATED, "batch_1")
    assert await found.add_batch(another, naming=other) == (AddCode.CONFLICT, "")
    assert await queue.dump() == before
    await found.connection.command("DEL", queue.keys.base + "named:n")
    assert await found.add_batch(later, naming=other, kept_ms=1) == (AddCode.ACCEPTED, "batch_3")


@fails_without("gateway_batch_add: all open batches of a tenant")
@fails_without("gateway_batch_finish: gives room back")
async def test_open_batches_of_a_tenant_have_a_limit_together(queue: Queue) -> None:
    found = await with_batch(queue)
    second = replace(BATCH, id="batch_2")
    async with queue.unchanged():
        assert await found.add_batch(second, most_bytes=19) == (AddCode.TOO_MUCH, "")
    _, epoch = await taken(queue)
    await found.finish_batch(BATCH, epoch, Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output"))
    await found.finish_batch(BATCH, epoch, Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output"))
    assert await queue.command("HGETALL", found.names.use("t")) == [b"file_bytes", b"10"]
    assert await found.add_batch(second, most_bytes=19) == (AddCode.ACCEPTED, "batch_2")
    third = replace(BATCH, id="batch_3")
    assert await found.add_batch(third, most_bytes=20) == (AddCode.ACCEPTED, "batch_3")


@fails_without("gateway_batch_add: a tenant's open batches")
@fails_without("gateway_batch_finish: one less is open")
async def test_a_tenant_has_a_number_of_open_batches(queue: Queue) -> None:
    found = await with_batch(queue)
    second, job = replace(BATCH, id="batch_2"), replace(BATCH, id="job_1")
    async with queue.unchanged():
        for each in (second, job):
            assert await found.add_batch(each, most_open=1) == (AddCode.TOO_MANY_OPEN, "")
    _, epoch = await taken(queue)
    for _ in range(2):
        await found.finish_batch(BATCH, epoch, Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output"))
    assert await found.add_batch(job, most_open=1) == (AddCode.ACCEPTED, "job_1")
    assert await found.add_batch(second, most_open=1) == (AddCode.TOO_MANY_OPEN, "")
    assert await found.add_batch(second, most_open=2) == (AddCode.ACCEPTED, "batch_2")


@fails_without("gateway_batch_add: a batch that is gone counts no more")
async def test_open_batches_whose_records_were_deleted_count_no_more(queue: Queue) -> None:
    await deleted_ones_count_no_more(queue, {"most_open": 2})


@fails_without("gateway_batch_add: so do the bytes of one that is gone", "or (most > 0 and queued + bytes > most) ", "")
async def test_inputs_of_open_batches_whose_records_were_deleted_count_no_more(queue: Queue) -> None:
    await deleted_ones_count_no_more(queue, {"most_bytes": 20})


async def deleted_ones_count_no_more(queue: Queue, limit: dict[str, Any]) -> None:
    found = await with_batch(queue)
    second, third, fourth = (replace(BATCH, id=f"batch_{number}") for number in (2, 3, 4))
    assert await added(found, second)
    before = await queue.dump()
    assert (await found.add_batch(third, **limit))[1] == ""
    assert await queue.dump() == before, "what is counted anew was right"
    await queue.command("DEL", found.names.batch("batch_1"), found.names.batch("batch_2"))
    for batch_id in ("batch_1", "batch_2"):
        assert await found.take_batch(batch_id, "g1", LEASE_MS) is None
    for each in (third, fourth):
        assert await found.add_batch(each, **limit) == (AddCode.ACCEPTED, each.id)
    use = {"file_bytes": "10", "queued_bytes": "20", "open": "2", "open:batch_3": "10", "open:batch_4": "10"}
    assert (await queue.dump())["use:t"] == use
    assert (await found.add_batch(BATCH, **limit))[1] == ""


@fails_without("gateway_batch_add: a tenant's batches")
async def test_a_tenant_has_a_number_of_batches(queue: Queue) -> None:
    found = await with_file(queue)
    naming = Naming("n", "digest")
    assert await found.add_batch(BATCH, naming=naming, kept_ms=KEPT_MS, most_kept=2) == (AddCode.ACCEPTED, "batch_1")
    job, third = replace(BATCH, id="job_0"), replace(BATCH, id="batch_3")
    assert await found.add_batch(job, most_kept=2) == (AddCode.ACCEPTED, "job_0")
    async with queue.unchanged():
        assert await found.add_batch(third, most_kept=2) == (AddCode.TOO_MANY_KEPT, "")
    assert await found.oldest_ended("t", 9, 9) == [], "both are open"
    _, epoch = await taken(queue)
    await found.finish_batch(BATCH, epoch, Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output"))
    assert await found.oldest_ended("t", 9, 9) == [], "its end is not announced yet"
    await found.close_batch(BATCH.id, epoch)
    assert await found.oldest_ended("t", 9, 9) == ["batch_1"]
    assert (await record_of(found)).named == "n"
    await found.forget("t", "batch_1", "n")
    assert {"batch:batch_1", "named:n", "batches:t"}.isdisjoint(await queue.dump())
    assert await found.add_batch(third, most_kept=2) == (AddCode.ACCEPTED, "batch_3")
    await queue.command("DEL", found.names.batch("job_0"), found.names.batch("batch_3"))
    await queue.command("DEL", found.names.open)
    assert await found.oldest_ended("t", 1, 9) == ["job_0"], "of those that are gone, the oldest"


@fails_without("gateway_batch_add: the number of a tenant's files")
@fails_without("gateway_file_add: the number of a tenant's files")
async def test_a_tenant_has_a_number_of_files(queue: Queue) -> None:
    found = await with_file(queue)
    await queue.command("ZADD", found.names.files("t"), *(word for n in range(19_999) for word in (0, f"file-{n}")))
    async with queue.unchanged():
        assert await found.add_batch(BATCH) == (AddCode.TOO_MANY_FILES, "")
    await found.hold(["aa/more"], HOLD_MS)
    more = replace(INPUT, id="file-more")
    assert await found.add_file(more, Part("aa/more", 10)) is Addition.TOO_MANY
    await queue.command("ZREM", found.names.files("t"), "file-1")
    assert await found.add_batch(BATCH) == (AddCode.ACCEPTED, BATCH.id)
    assert await found.add_file(more, Part("aa/more", 10)) is Addition.MADE


@fails_without("gateway_batch_take: somebody has it", "until_ms or tonumber(until_ms) > now then", "until_ms then")
async def test_a_batch_is_taken_by_one(queue: Queue) -> None:
    found = await with_batch(queue)
    assert await found.free_batches(10) == [Contender("batch_1", "t", frozenset())]
    before = await queue.dump()
    assert await found.take_batch(BATCH.id, "g1", LEASE_MS) == Taken(BATCH, 1)
    after = before | {
        "batch:batch_1": {**before["batch:batch_1"], "epoch": "1", "owner": "g1"},
        "open_batches": [("batch_1", NOW + LEASE_MS)],
    }
    assert await queue.dump() == after
    assert await found.free_batches(10) == []
    assert await found.take_batch(BATCH.id, "g2", LEASE_MS) is None
    assert await broker(queue, NOW + LEASE_MS - 1).take_batch(BATCH.id, "g2", LEASE_MS) is None
    assert await queue.dump() == after


@fails_without("gateway_batch_take: an epoch for each", "redis.call('HINCRBY', KEYS[1", "1\nredis.call('HSET', KEYS[1")
async def test_a_batch_of_a_silent_gateway_is_taken_in_a_new_epoch(queue: Queue) -> None:
    await with_batch(queue)
    await taken(queue)
    later = broker(queue, NOW + LEASE_MS)
    assert await later.free_batches(10) == [Contender("batch_1", "t", frozenset())]
    assert await later.take_batch(BATCH.id, "g2", LEASE_MS) == Taken(BATCH, 2)


@fails_without("gateway_batch_take: it is gone")
async def test_a_batch_that_is_gone_is_open_no_more(queue: Queue) -> None:
    found = await with_batch(queue)
    await queue.command("DEL", found.names.batch(BATCH.id))
    assert await found.take_batch(BATCH.id, "g1", LEASE_MS) is None
    assert {"batch:batch_1", "open_batches"}.isdisjoint(await queue.dump())


@fails_without("gateway_batch_lease: only of an open batch", "or not call('ZSCORE', KEYS[2], ARGV[1]) then", "then")
async def test_a_lease_is_renewed_handed_back_and_ended(queue: Queue) -> None:
    await with_batch(queue)
    _, epoch = await taken(queue)
    later = broker(queue, NOW + 900)
    assert await later.renew_batch(BATCH.id, epoch, LEASE_MS) is BatchStatus.VALIDATING
    assert (await queue.dump())["open_batches"] == [("batch_1", NOW + 900 + LEASE_MS)]
    await later.release_batch(BATCH.id, epoch, 50, stumbled=True)
    assert (await queue.dump())["open_batches"] == [("batch_1", NOW + 950)]
    assert (await record_of(broker(queue, NOW + 950))).stumbles == 1
    await later.close_batch(BATCH.id, epoch)
    assert "open_batches" not in await queue.dump()
    assert await later.renew_batch(BATCH.id, epoch, LEASE_MS) is None, "it is not open any more"
    assert "open_batches" not in await queue.dump()


@fails_without("gateway_batch_lease: fenced by the epoch", "if theirs() or not call", "if not call")
async def test_whoever_lost_a_batch_renews_nothing(queue: Queue) -> None:
    await with_batch(queue)
    _, old = await taken(queue)
    await taken(queue, NOW + LEASE_MS)
    async with queue.unchanged():
        late = broker(queue, NOW + LEASE_MS + 10)
        assert await late.renew_batch(BATCH.id, old, LEASE_MS) is None
        await late.release_batch(BATCH.id, old, 0, stumbled=True)
        await late.close_batch(BATCH.id, old)


# -- progress ----------------------------------------------------------------------------------------------


async def test_progress_is_written_down_at_once(queue: Queue) -> None:
    found, epoch = await with_taken_batch(queue)
    output, errors = await stored(found, "aa/out", "aa/err")
    before = await queue.dump()
    move = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
    step = Step([1, 3, 10], output, errors, {"completed": 2, "failed": 1}, {"total": "12", "mark": "10"}, move)
    assert await found.save_batch(BATCH, epoch, step) == (SaveCode.SAVED, BatchStatus.IN_PROGRESS)
    said = {"completed": "2", "failed": "1", "total": "12", "mark": "10", "output_bytes": "100", "error_bytes": "101"}
    assert await queue.dump() == {name: value for name, value in before.items() if name != "loose"} | {
        "batch:batch_1": before["batch:batch_1"] | said | {"status": "in_progress", "in_progress_ms": str(NOW)},
        "parts:file-out": ["100 aa/out"],
        "parts:file-err": ["101 aa/err"],
        "done:batch_1": "\\xa0@",
    }
    assert await found.done_lines(BATCH.id) == bytes([0b1010_0000, 0b0100_0000])


@fails_without("gateway_batch_save: fenced by the epoch")
@fails_without("gateway_batch_finish: fenced by the epoch")
async def test_whoever_lost_a_batch_writes_nothing_down(queue: Queue) -> None:
    """It was thought dead, and comes back while another gateway does its work."""
    found = await with_batch(queue)
    _, old = await taken(queue)
    output, _ = await stored(found, "aa/out", "aa/err")
    await taken(queue, NOW + LEASE_MS)
    async with queue.unchanged():
        assert await found.save_batch(BATCH, old, Step([1], output, None, {"completed": 1})) == (SaveCode.LOST, None)
        assert not await found.finish_batch(BATCH, old, Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output"))


@fails_without("gateway_batch_save: a line is finished once")
async def test_a_line_is_finished_once(queue: Queue) -> None:
    found, epoch = await with_taken_batch(queue)
    first, second = await stored(found, "aa/1", "aa/2")
    assert (await found.save_batch(BATCH, epoch, Step([2], first)))[0] is SaveCode.SAVED
    async with queue.unchanged():
        assert (await found.save_batch(BATCH, epoch, Step([1, 2], second)))[0] is SaveCode.DONE_BEFORE


@fails_without("gateway_batch_save: a content whose time is over")
async def test_a_content_whose_time_is_over_is_not_written_down(queue: Queue) -> None:
    """Somebody may be deleting it: the file would have a hole."""
    found, epoch = await with_taken_batch(queue)
    (part,) = await stored(found, "aa/1")
    async with queue.unchanged():
        late = broker(queue, NOW + HOLD_MS)
        assert (await late.save_batch(BATCH, epoch, Step([1], part)))[0] is SaveCode.TOO_LATE
        assert (await found.save_batch(BATCH, epoch, Step([1], Part("aa/unheard of", 5))))[0] is SaveCode.TOO_LATE


@fails_without("gateway_batch_save: a cancel stays one", "if step.to and status == step.from then", "if step.to then")
@pytest.mark.every_release
async def test_a_cancel_is_not_passed_over_by_progress(queue: Queue) -> None:
    found, epoch = await with_taken_batch(queue)
    assert await found.cancel_batch(BATCH.id, "t") is BatchStatus.CANCELLING
    move = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
    assert await found.save_batch(BATCH, epoch, Step(move=move)) == (SaveCode.SAVED, BatchStatus.CANCELLING)
    record = await record_of(found)
    assert (record.status, record.times) == (BatchStatus.CANCELLING, {"cancelling": NOW})


@fails_without("gateway_batch_save: progress makes stumbles forgotten")
async def test_progress_makes_stumbles_forgotten(queue: Queue) -> None:
    found, epoch = await with_taken_batch(queue)
    await found.release_batch(BATCH.id, epoch, 0, stumbled=True)
    await found.save_batch(BATCH, epoch, Step())
    assert (await record_of(found)).stumbles == 0


@fails_without(
    "gateway_batch_save: a full server takes what is finished",
    "call('ZREM', KEYS[3], '')\nfor",
    "call('HSET', KEYS[1], 'saved', 1)\nfor",
)
@pytest.mark.every_release
async def test_what_is_finished_is_written_down_in_a_full_redis(queue: Queue) -> None:
    found, epoch = await with_taken_batch(queue)
    (part,) = await stored(found, "aa/1")
    async with queue.full_memory():
        assert await found.renew_batch(BATCH.id, epoch, LEASE_MS) is BatchStatus.VALIDATING
        assert (await found.save_batch(BATCH, epoch, Step([1], part, counts={"completed": 1})))[0] is SaveCode.SAVED
        assert await found.finish_batch(BATCH, epoch, Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output"))
        with pytest.raises(BrokerOutOfMemory):
            await found.hold(["aa/2"], HOLD_MS)


# -- ends --------------------------------------------------------------------------------------------------


@fails_without("gateway_batch_cancel: whose it is")
async def test_only_its_tenant_cancels_a_batch_and_only_before_its_end(queue: Queue) -> None:
    found = await with_batch(queue)
    before = await queue.dump()
    assert await found.cancel_batch(BATCH.id, "somebody else") is None
    assert await found.cancel_batch("batch_none", "t") is None
    assert await queue.dump() == before
    assert await found.cancel_batch(BATCH.id, "t") is BatchStatus.CANCELLING
    changed = {"status": "cancelling", "cancelling_ms": str(NOW)}
    assert await queue.dump() == before | {"batch:batch_1": before["batch:batch_1"] | changed}
    assert await broker(queue, NOW + 5).cancel_batch(BATCH.id, "t") is BatchStatus.CANCELLING
    assert await queue.dump() == before | {"batch:batch_1": before["batch:batch_1"] | changed}


@fails_without("gateway_batch_cancel: only before its end")
async def test_a_batch_that_is_nearly_through_is_not_cancelled(queue: Queue) -> None:
    found, epoch = await with_taken_batch(queue)
    await found.save_batch(BATCH, epoch, Step(move=(BatchStatus.VALIDATING, BatchStatus.FINALIZING)))
    assert await found.cancel_batch(BATCH.id, "t") is BatchStatus.FINALIZING


@fails_without("gateway_batch_finish: its files take room")
@fails_without("gateway_batch_finish: asked again")
@fails_without("gateway_batch_finish: files in which something stands", "call('EXISTS', KEYS[2 + 2 * i]) == 1", "true")
async def test_at_its_end_a_batch_has_its_files_once(queue: Queue) -> None:
    found, epoch = await with_taken_batch(queue)
    (part,) = await stored(found, "aa/1")
    await found.save_batch(BATCH, epoch, Step([1], part, counts={"completed": 1}))
    ending = Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output", {"jobs": 1, "prompts": 3})
    assert await found.finish_batch(BATCH, epoch, ending)
    after = await everything(queue, found)
    assert after["file"] == FileRecord("file-out", "t", "batch_1_output.jsonl", "batch_output", 100, NOW, NOW + KEPT_MS)
    assert after["error file"] is None, "nothing stands in it"
    assert after["files"] == ["file-out", "file-in"]
    assert after["stats"] == {"jobs": 1, "prompts": 3}
    assert after["uses"] == b"0"
    assert after["bytes"] == 110, "what it wrote takes room as well"
    assert after["done"] == b""
    assert after["status"] is BatchStatus.COMPLETED
    assert 0 < after["ttl"] <= KEPT_MS
    assert await found.finish_batch(BATCH, epoch, ending), "its answer was lost, and it is asked again"
    assert await everything(queue, found) | {"ttl": 0} == after | {"ttl": 0}


async def test_files_of_a_batch_are_kept_as_long_as_it_says(queue: Queue) -> None:
    found = await with_file(queue)
    batch = replace(BATCH, output_kept_ms=5_000)
    assert await added(found, batch)
    record, epoch = await taken(queue)
    output, errors = await stored(found, "aa/1", "aa/2")
    await found.save_batch(record, epoch, Step([1, 2], output, errors))
    assert await found.finish_batch(record, epoch, Ending(BatchStatus.COMPLETED, KEPT_MS, "batch_output"))
    files = await found.files([batch.output_file_id, batch.error_file_id])
    assert [file and file.expires_ms for file in files] == [NOW + 5_000] * 2
    assert await broker(queue, NOW + 5_001).ended_files(9) == ["file-err", "file-out"]
    assert (await everything(queue, found))["ttl"] > 5_000, "it is there for longer"


async def test_a_batch_that_failed_says_why(queue: Queue) -> None:
    found, epoch = await with_taken_batch(queue)
    why = {"code": "empty_file", "message": "no requests", "line": None, "param": None}
    await found.finish_batch(BATCH, epoch, Ending(BatchStatus.FAILED, KEPT_MS, "batch_output", errors=[why]))
    record = await record_of(found)
    assert (record.status, record.errors) == (BatchStatus.FAILED, (why,))


async def everything(queue: Queue, found: Records) -> dict[str, Any]:
    """Returns everything that exists after an end, some of which expires."""
    record = await record_of(found)
    return {
        "file": await found.file("file-out"),
        "error file": await found.file("file-err"),
        "files": await found.file_ids("t", "", 10),
        "stats": await found.stats("t"),
        "uses": await queue.command("HGET", found.names.file("file-in"), "uses"),
        "bytes": await found.file_bytes("t"),
        "done": await found.done_lines(BATCH.id),
        "status": record.status,
        "ttl": await queue.command("PTTL", found.names.batch(BATCH.id)),
    }


async def test_pages_go_from_the_newest_or_from_the_oldest(queue: Queue) -> None:
    found = broker(queue)
    for number in range(4):
        await queue.command("ZADD", found.names.files("t"), 0, f"file-{number}")
    assert await found.file_ids("t", "", 2) == ["file-3", "file-2"]
    assert await found.file_ids("t", "file-2", 5) == ["file-1", "file-0"]
    assert await found.file_ids("t", "file-1", 5, newest_first=False) == ["file-2", "file-3"]
    assert await found.file_ids("nobody", "", 5) == []
