"""Uploads: few at once, little of each in memory, at a pace, within their tenant's quota while they come."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.batch_records import FileRecord
from streamfleet.gateway.body import Bodies, read_body
from streamfleet.gateway.call import Call
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.files import upload
from streamfleet.gateway.files.files import LOOK_EVERY_BYTES, MOST_OPEN, MOST_OPEN_PER_TENANT, Files, Upload
from streamfleet.gateway.files.store import Store
from streamfleet.gateway.files.upload import LEAST_BYTES_S, receive_file
from tests.waiting import eventually

QUOTA = 3_000_000
HEAD = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
HEAD += b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b"\r\n--x--\r\n"
PERIOD_S = 0.05
Receive = Callable[[], Awaitable[Any]]


class Records:
    """The records of one tenant's files, as far as uploads need them."""

    def __init__(self) -> None:
        self.used, self.looks = 0, 0

    async def now_ms(self) -> int:
        return 1_790_000_000_000

    async def hold(self, *_: object) -> None:
        pass

    async def let_go(self, *_: object) -> None:
        pass

    async def file_bytes(self, tenant: str) -> int:
        assert tenant
        self.looks += 1
        return self.used

    async def add_file(self, record: Any, *_: object) -> int:
        self.used += record.bytes
        return 1


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[Files]:
    store = Store(f"file://{tmp_path}/files")
    records: Any = Records()
    yield Files(records, store, 10_000_000, 60_000, QUOTA)
    await store.close()


def stored(tmp_path: Path) -> int:
    """Bytes in the store."""
    return sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


def refusal(raised: pytest.ExceptionInfo[ApiError]) -> tuple[int, str | None, bool]:
    return raised.value.status, raised.value.code, "retry-after" in raised.value.headers


def asking(receive: Receive, *headers: tuple[bytes, bytes]) -> Request:
    kind = (b"content-type", b"multipart/form-data; boundary=x")
    scope = {"type": "http", "method": "POST", "headers": [kind, *headers], "state": {"call": Call(0.0)}}
    return Request(scope, receive)


def sending(*parts: bytes, period_s: float = 0.0, ends: bool = True) -> Receive:
    """A client that sends these parts, one in each period, and then nothing."""
    left = list(parts)

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        await asyncio.sleep(period_s)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or not ends}

    return receive


def test_a_tenant_has_a_share_of_the_places(files: Files) -> None:
    with contextlib.ExitStack() as places:
        for _ in range(MOST_OPEN_PER_TENANT):
            places.enter_context(files.place("a"))
        with pytest.raises(ApiError) as raised, files.place("a"):
            pass
        assert refusal(raised) == (429, "too_many_uploads", True)
        with files.place("b"):
            pass
    with files.place("a"):
        pass


def test_all_tenants_share_the_places(files: Files) -> None:
    with contextlib.ExitStack() as places:
        for number in range(MOST_OPEN):
            places.enter_context(files.place(f"t{number // MOST_OPEN_PER_TENANT}"))
        with pytest.raises(ApiError) as raised, files.place("other"):
            pass
        assert refusal(raised) == (503, "too_many_uploads", True)
    with files.place("other"):
        pass


def test_without_keys_nobody_else_needs_a_place(files: Files) -> None:
    with contextlib.ExitStack() as places:
        for _ in range(MOST_OPEN):
            places.enter_context(files.place(""))
        with pytest.raises(ApiError), files.place(""):
            pass


@pytest.mark.parametrize("last", [60_000, 250_000])
async def test_an_upload_that_stalls_holds_little(files: Files, last: int) -> None:
    """It held a megabyte, the last piece twice, and counted in no limit."""
    stalled, sizes = asyncio.Event(), [250_000, 250_000, 250_000, last]

    async def receive() -> Any:
        if not sizes:
            stalled.set()
            await asyncio.Event().wait()
        return {
            "type": "http.request",
            "body": (HEAD if len(sizes) == 4 else b"") + b"x" * sizes.pop(0),
            "more_body": True,
        }

    await receive_file(asking(sending(HEAD + b"x" + END)), files, "a", 10_000_000)  # what is made once is made
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        task = asyncio.create_task(receive_file(asking(receive), files, "a", 10_000_000))
        await asyncio.wait_for(stalled.wait(), 10)
        # A thread may be about to write the last piece.
        await eventually(lambda: tracemalloc.get_traced_memory()[0] - before < 200_000, what="it holds little")
    finally:
        tracemalloc.stop()
    task.cancel()
    await asyncio.wait((task,))


LEAST = round(LEAST_BYTES_S * PERIOD_S)


@pytest.mark.parametrize("size", [1, LEAST // 8])
async def test_an_upload_that_trickles_is_cut_off(
    files: Files, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte before each end of a time-out kept it for ever."""
    monkeypatch.setattr(upload, "IDLE_S", PERIOD_S)
    client = sending(HEAD, *[b"x" * size] * 1_000, period_s=PERIOD_S / 3)
    with pytest.raises(ApiError) as raised:
        async with asyncio.timeout(10):
            await receive_file(asking(client), files, "a", 10_000_000)
    assert (raised.value.status, raised.value.code) == (408, "body_too_slow")
    assert (stored(tmp_path), files.coming) == (0, {})


async def test_an_upload_that_begins_fast_has_to_go_on(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "IDLE_S", PERIOD_S)
    client = sending(HEAD + b"x" * 1_000_000, *[b"x"] * 1_000, period_s=PERIOD_S / 3)
    with pytest.raises(ApiError, match="408"):
        async with asyncio.timeout(10):
            await receive_file(asking(client), files, "a", 10_000_000)


async def test_an_upload_that_keeps_the_pace_is_kept(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The period is a long one: a machine that stalls for a short one looks like a sender that brings nothing."""
    monkeypatch.setattr(upload, "IDLE_S", 8 * PERIOD_S)
    client = sending(HEAD, *[b"x" * 20 * LEAST] * 8, END, period_s=2 * PERIOD_S)
    record = await receive_file(asking(client), files, "a", 10_000_000)
    assert record.bytes == 8 * 20 * LEAST


async def test_uploads_count_together_while_they_come(files: Files, tmp_path: Path) -> None:
    """A quota of 1 MB did not keep five uploads from 95 MB of the disk: it was looked at behind their ends."""
    uploads = [await files.begin_upload("a") for _ in range(5)]
    other, codes = await files.begin_upload("b"), []
    while uploads:
        try:
            await uploads[0].write(b"x" * 200_000)
        except ApiError as error:
            codes.append((error.status, error.code))
            await uploads.pop(0).abort()
        uploads = uploads[1:] + uploads[:1]  # by turns
        assert stored(tmp_path) <= QUOTA
    assert codes == [(413, "file_quota_exceeded")] * 5
    await other.write(b"x" * QUOTA)
    await other.abort()
    assert (stored(tmp_path), files.coming) == (0, {}), "nothing is left"


async def test_what_was_refused_makes_room_for_the_others(files: Files) -> None:
    first, second = await files.begin_upload("a"), await files.begin_upload("a")
    await first.write(b"x" * 2_000_000)
    with pytest.raises(ApiError):
        await second.write(b"x" * 1_000_001)
    await first.write(b"x" * 1_000_000)
    for each in (first, second):
        await each.abort()


async def test_files_of_other_gateways_are_seen_in_between(files: Files) -> None:
    records: Any = files.broker
    upload = await files.begin_upload("a")
    await upload.write(b"x" * 1_000)
    records.used = QUOTA
    await upload.write(b"x" * (LOOK_EVERY_BYTES - 1))
    with pytest.raises(ApiError, match="file_quota_exceeded"):
        await upload.write(b"x")
    await upload.abort()


async def test_a_file_is_not_counted_twice(files: Files) -> None:
    async with asyncio.timeout(10):
        one = await files.begin_upload("a")
        await one.write(b"x" * 2_000_000)
        await one.close()
        await files.add(one, "a", "in.jsonl", "batch")
        two = await files.begin_upload("a")
        await two.write(b"x" * 1_000_000)
        await two.close()
        await files.add(two, "a", "in.jsonl", "batch")
    assert files.coming == {}


async def test_an_upload_that_tells_its_length_is_refused_at_once(files: Files) -> None:
    async def never() -> Any:
        pytest.fail("it was read")

    with pytest.raises(ApiError, match="file_quota_exceeded"):
        await receive_file(asking(never, (b"content-length", b"5000000")), files, "a", 10_000_000)
    with pytest.raises(InvalidRequest, match="larger than"):
        await receive_file(asking(never, (b"content-length", b"50000000")), files, "a", 10_000_000)


async def test_a_file_that_is_made_of_a_body_is_bounded_by_the_body_alone(files: Files) -> None:
    """A message batch's lines are longer than its requests."""
    records: Any = files.broker
    narrow = Files(records, files.store, 1_000, 60_000)

    async def take(data: bytes, to: Upload) -> None:
        await to.write(data * 2)

    async def whole(size: int) -> FileRecord:
        messages = [{"type": "http.request", "body": b"x" * size, "more_body": False}]

        async def receive() -> Any:
            return messages.pop()

        return await upload.receive(asking(receive), narrow, "a", 1_000, take, lambda _: ("a", "batch", None))

    assert (await whole(1_000)).bytes == 2_000
    with pytest.raises(InvalidRequest, match="body: is larger than 1000 bytes"):
        await whole(1_001)


async def test_where_there_is_no_quota_nobody_looks(tmp_path: Path) -> None:
    records: Any = Records()
    files = Files(records, Store(f"file://{tmp_path}/files"), 10_000_000, 60_000)
    client = sending(HEAD + b"x" * 5_000_000 + END)
    assert (await receive_file(asking(client), files, "a", 10_000_000)).bytes == 5_000_000
    assert (records.looks, files.coming) == (0, {})
    await files.store.close()


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "zstd", "deflate", "identity, gzip", "gzip, identity", "x"])
async def test_an_encoded_body_is_refused(files: Files, coding: str) -> None:
    async def never() -> Any:
        pytest.fail("it was read")

    for read in (
        lambda request: read_body(request, 1_000, Bodies(1_000).hold("a")),
        lambda request: receive_file(request, files, "a", 1_000),
    ):
        with pytest.raises(ApiError) as raised:
            await read(asking(never, (b"content-encoding", coding.encode())))
        error = raised.value
        assert (error.status, error.code, error.param) == (415, "unsupported_encoding", "Content-Encoding")
        assert error.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("coding", ["identity", "Identity", "", " identity , "])
async def test_a_body_that_is_not_encoded_is_read(coding: str) -> None:
    request = asking(sending(b"{}"), (b"content-encoding", coding.encode()))
    assert await read_body(request, 1_000, Bodies(1_000).hold("a")) == b"{}"
