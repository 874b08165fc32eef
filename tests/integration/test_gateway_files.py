"""Files on a real Redis and a real folder: what is too large, what came to nothing, what nobody needs any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamfleet.common.connection import Connection
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import CHAT, MESSAGES, Lane
from streamfleet.common.settings import load
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.api_keys import GatewayNames
from streamfleet.gateway.batch_records import BATCH, FILE, BatchNames, BatchRecord, BatchStatus, FileRecord, new_id
from streamfleet.gateway.batches import ledger
from streamfleet.gateway.batches.claimed_batch import ClaimedBatch, Dependencies
from streamfleet.gateway.batches.lifecycle import run_batch
from streamfleet.gateway.broker.batches import AddCode, BatchBroker, Ending
from streamfleet.gateway.broker.files import FileBroker
from streamfleet.gateway.files.files import STILL_NEEDED_MS, UPLOAD_HOLD_MS, Files, Upload
from streamfleet.gateway.files.store import Store, StoreUnavailable
from streamfleet.gateway.metrics import STORE_FAULTS, STORE_GONE

KEPT_MS = 50_000_000
MOST_BYTES = 3_000_000


@dataclass
class Clock:
    now_ms: int = 1_790_000_000_000


class Records(BatchBroker, FileBroker):
    """Batches and files, through one connection."""


@dataclass
class Place:
    """Files, and the folder that they are in."""

    files: Files
    folder: Path
    clock: Clock

    @property
    def broker(self) -> Records:
        assert isinstance(self.files.broker, Records)
        return self.files.broker

    @property
    def stored(self) -> int:
        """Number of contents in the store."""
        return sum(path.is_file() for path in self.folder.rglob("*"))

    async def add(self, data: bytes = b"{}") -> FileRecord:
        """A file."""
        upload = await self.files.begin_upload("t")
        await upload.write(data)
        await upload.close()
        return await self.files.add(upload, "t", "in.jsonl", "batch")


@pytest.fixture
async def place(redis_url: str, tmp_path: Path) -> AsyncIterator[Place]:
    clock = Clock()
    broker = Records(Connection(redis_url), BatchNames(GatewayNames().base), lambda: clock.now_ms)
    store = Store(f"file://{tmp_path}/files")
    yield Place(Files(broker, store, MOST_BYTES, KEPT_MS), tmp_path / "files", clock)
    await store.close()
    await broker.connection.close()


async def test_an_upload_beyond_the_limit_is_refused_while_it_comes(place: Place) -> None:
    upload = await place.files.begin_upload("t")
    with pytest.raises(InvalidRequest, match="larger than"):
        await write_much(upload)
    assert upload.bytes <= MOST_BYTES + 100_000
    await upload.abort()
    assert (place.stored, await place.broker.loose(5)) == (0, [])


async def write_much(upload: Upload) -> None:
    for _ in range(100):
        await upload.write(b"x" * 100_000)


async def test_what_a_dead_gateway_left_is_deleted_in_time(place: Place) -> None:
    upload = await place.files.begin_upload("t")
    await upload.write(b"x" * 2_000_000)
    assert place.stored == 1
    place.clock.now_ms += UPLOAD_HOLD_MS - 1
    assert await place.files.sweep() == 0
    place.clock.now_ms += 1
    assert await place.files.sweep() == 1
    assert place.stored == 0
    await upload.close()
    with pytest.raises(StoreUnavailable, match="too long"):
        await place.files.add(upload, "t", "in.jsonl", "batch")


async def test_two_gateways_that_sweep_at_once_miss_no_content(place: Place) -> None:
    missed = STORE_FAULTS.labels(STORE_GONE)
    before = missed._value.get()
    uploads = [await place.files.begin_upload("t") for _ in range(10)]
    place.clock.now_ms += UPLOAD_HOLD_MS
    assert sum(await asyncio.gather(place.files.sweep(), place.files.sweep())) == 20
    assert (place.stored, missed._value.get()) == (0, before)
    for each in uploads:
        await each.close()


async def test_files_end(place: Place) -> None:
    record = await place.add()
    place.clock.now_ms += KEPT_MS - 1
    assert await place.files.sweep() == 0
    place.clock.now_ms += 1
    assert await place.files.sweep() == 1
    assert (place.stored, await place.broker.file(record.id), await place.files.sweep()) == (0, None, 0)


async def test_a_file_that_is_read_ends_later(place: Place) -> None:
    record = await place.add()
    now_ms = place.clock.now_ms
    output, errors = new_id(FILE, now_ms), new_id(FILE, now_ms)
    batch = BatchRecord(
        new_id(BATCH, now_ms), "t", record.id, output, errors, CHAT, "24h", Lane.LOW, now_ms, now_ms + 1
    )
    assert (await place.broker.add_batch(batch))[0] is AddCode.ACCEPTED
    place.clock.now_ms += KEPT_MS
    assert (await place.files.sweep(), place.stored) == (0, 1)
    taken = await place.broker.take_batch(batch.id, "g", 1_000)
    assert taken is not None
    await place.broker.finish_batch(batch, taken.epoch, Ending(BatchStatus.CANCELLED, KEPT_MS, "batch_output"))
    place.clock.now_ms += STILL_NEEDED_MS
    assert (await place.files.sweep(), place.stored) == (1, 0)


async def test_a_batch_keeps_its_number_of_requests_while_it_is_cancelled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known from the start, but was that of the lines ended so far."""
    monkeypatch.setattr(ledger, "MOST_LINES", 2)
    body = {"model": "m", "messages": []}
    lines = [{"custom_id": f"r{number}", "method": "POST", "url": MESSAGES, "body": body} for number in range(5)]
    file = await place.add("".join(f"{json.dumps(line)}\n" for line in lines).encode())
    ids = [new_id(kind, place.clock.now_ms) for kind in (BATCH, FILE, FILE)]
    ends_ms = place.clock.now_ms + KEPT_MS
    record = BatchRecord(
        ids[0], "t", file.id, ids[1], ids[2], MESSAGES, "24h", Lane.LOW, place.clock.now_ms, ends_ms, total=5
    )
    broker, totals = place.broker, []
    await broker.add_batch(record)
    await broker.cancel_batch(record.id, "t")
    taken = await broker.take_batch(record.id, "gateway", 60_000)
    assert taken is not None
    save = broker.save_batch

    async def saving(*args: Any) -> Any:
        saved = await save(*args)
        found = await broker.batch(record.id)
        totals.append(found and (found.total, found.cancelled))
        return saved

    async def announce(_: BatchRecord) -> None:
        pass

    monkeypatch.setattr(broker, "save_batch", saving)
    nothing: Any = None  # no request is in a queue
    parts = Dependencies(place.files, broker, nothing, nothing, load(GatewaySettings), 1_000_000, nothing)
    await run_batch(ClaimedBatch(parts, taken, b"", 0.0), announce)
    assert totals == [(5, 2), (5, 4), (5, 5)]
