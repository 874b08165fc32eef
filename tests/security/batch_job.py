"""The complete work of gateways on files and batches."""

from __future__ import annotations

from dataclasses import replace

from streamfleet.common.connection import Connection
from streamfleet.common.protocol import CHAT, Lane
from streamfleet.gateway.api_keys import GatewayNames
from streamfleet.gateway.batch_records import (
    BATCH,
    FILE,
    JOB,
    BatchNames,
    BatchRecord,
    BatchStatus,
    FileRecord,
    Part,
    new_id,
)
from streamfleet.gateway.broker.batches import AddCode, BatchBroker, Ending, Naming, SaveCode, Step
from streamfleet.gateway.broker.files import Deletion, FileBroker

HOLD_MS = 60_000


class Records(BatchBroker, FileBroker):
    """Batches and files, through one connection."""


async def run_batches(url: str) -> None:
    """A file, a batch, a job; all that may become of them."""
    me = Records(Connection(url, patience_s=0), BatchNames(GatewayNames().base))
    try:
        file = await _file(me)
        assert await me.files([file.id]) == [file]
        assert await me.parts(file.id) == [Part(f"aa/{file.id}", 5)]
        assert await me.file_ids("t", "", 5) == await me.file_ids("t", "", 5, newest_first=False) == [file.id]
        for kind in (BATCH, JOB):
            await _batch(me, file, kind)
        assert await me.batch_ids("t", "", 5)
        await me.forget_batches("t", ["batch_x"])
        await me.count("t", {"prompts": 3})
        assert await me.stats("t") == {"jobs": 2, "prompts": 3}
        assert await me.ended_files(5) == [file.id]
        await me.put_off(file.id, HOLD_MS)
        await me.forget_end("file-x")
        assert (await me.delete_file(file))[0] is Deletion.DELETED
        assert await me.loose(5) == [f"aa/{file.id}"]
        await me.let_go([f"aa/{file.id}"])
    finally:
        await me.connection.close()


async def _file(me: Records) -> FileRecord:
    now_ms = await me.now_ms()
    file = FileRecord(new_id(FILE, now_ms), "t", "in.jsonl", "batch", 5, now_ms, now_ms)
    await me.hold([f"aa/{file.id}"], HOLD_MS)
    assert await me.add_file(file, Part(f"aa/{file.id}", 5))
    return file


async def _batch(me: Records, file: FileRecord, kind: str) -> None:
    now_ms = await me.now_ms()
    output, errors = new_id(FILE, now_ms), new_id(FILE, now_ms)
    made = BatchRecord(
        new_id(kind, now_ms), "t", file.id, output, errors, CHAT, "24h", Lane.LOW, now_ms, now_ms + HOLD_MS
    )
    naming = Naming(f"name-of-{made.id}", "what was asked for")
    assert await me.named(naming.name) is None
    assert (await me.add_batch(made, naming=naming, kept_ms=HOLD_MS))[0] is AddCode.ACCEPTED
    assert await me.named(naming.name) == (made.id, naming.digest)
    another = replace(made, id=new_id(kind, now_ms))
    assert await me.add_batch(another, most_open=1) == (AddCode.TOO_MANY_OPEN, "")
    assert [each.id for each in await me.free_batches(5)] == [made.id]
    taken = await me.take_batch(made.id, "g1", HOLD_MS)
    assert taken is not None
    assert await me.done_lines(made.id) == b""
    await me.hold([f"aa/{made.id}"], HOLD_MS)
    step = Step([1], Part(f"aa/{made.id}", 5), None, {"completed": 1}, {"total": "1"})
    assert (await me.save_batch(made, taken.epoch, step))[0] is SaveCode.SAVED
    assert await me.renew_batch(made.id, taken.epoch, HOLD_MS) is BatchStatus.VALIDATING
    assert await me.cancel_batch(made.id, "t") is BatchStatus.CANCELLING
    ending = Ending(BatchStatus.CANCELLED, HOLD_MS, "batch_output", {"jobs": 1})
    assert await me.finish_batch(made, taken.epoch, ending)
    await me.close_batch(made.id, taken.epoch)
