"""Files: contents in the store, records in Redis, and a sweep that deletes one without the other.

Routes and batches create, read and delete files through `Files`. An upload is announced in Redis before its content is
written, so that the sweep finds the content if the gateway dies. Its bytes count against its tenant's quota while they
come, together with those of the other uploads to this gateway.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager

import structlog

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.batch_records import FILE, FileRecord, Part, new_id
from streamfleet.gateway.broker.files import Addition, Deletion, FileBroker
from streamfleet.gateway.errors import FULL_S, LIMITED, NOT_AGAIN, SERVER, ApiError, retry_after
from streamfleet.gateway.files.store import Store, StoreUnavailable, Writer
from streamfleet.gateway.shared_counts import Count, SharedCounts

log = structlog.get_logger(__name__)
PIECE_BYTES = 65_536
"""Bytes of an upload that are gathered before they are written."""
MOST_OPEN, MOST_OPEN_PER_TENANT = 64, 8
"""Uploads that one gateway receives at once."""
LOOK_EVERY_BYTES = 1_048_576
"""Bytes of an upload after which its tenant's use is read again: files are added through other gateways too."""
UPLOAD_HOLD_MS, SEGMENT_HOLD_MS = 21_600_000, 3_600_000
"""Time in which an upload, or a piece of a batch's output, has to be complete; after it, the sweep may delete it."""
SWEEP_MOST, DISCARDED_AT_ONCE, STILL_NEEDED_MS = 200, 4, 3_600_000
MAKE_ROOM = (
    "those of batches and jobs among them: delete some, with DELETE /v1/files/ID; those of jobs cannot be deleted, "
    "and end by themselves"
)


class Files:
    """Operations of the Files API, and those that batches need.

    Args:
        broker: records in Redis.
        store: contents.
        most_bytes: limit for one file.
        kept_ms: default lifetime of a file.
        most_together: limit for all files of a tenant, in bytes; 0 for none.
        shared: counts of all processes; None for a gateway of one.

    Attributes:
        coming: bytes of uploads that are not files yet, by tenant.
    """

    def __init__(
        self,
        broker: FileBroker,
        store: Store,
        most_bytes: int,
        kept_ms: int,
        most_together: int = 0,
        shared: SharedCounts | None = None,
    ) -> None:
        self.broker, self.store = broker, store
        self._most_bytes, self._kept_ms, self._most_together = most_bytes, kept_ms, most_together
        self.coming: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self._shared = shared or SharedCounts()

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """Keeps a place for one upload; an empty tenant, where keys are off, may have all of them.

        Raises:
            ApiError: too many uploads are open.
        """
        others = self._shared.others
        for held, most, whose in (
            (
                self._open[tenant] + others(Count.UPLOADS, tenant) if tenant else 0,
                MOST_OPEN_PER_TENANT,
                " of this tenant",
            ),
            (self._open.total() + others(Count.UPLOADS), MOST_OPEN, ""),
        ):
            if held >= most:
                text = f"{held} uploads{whose} are open at this gateway, which is the limit; try again"
                status, kind = (429, LIMITED) if whose else (503, SERVER)
                headers = retry_after(FULL_S)
                raise ApiError(status, text, "too_many_uploads", kind, headers=headers, reason="uploads")
        self._open[tenant] += 1
        self._shared.add(Count.UPLOADS, 1, tenant)
        try:
            yield
        finally:
            self._shared.add(Count.UPLOADS, -1, tenant)
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]  # tenants come and go

    async def begin_upload(self, tenant: str, *, bounded: bool = True) -> Upload:
        """Begin an upload of a tenant; not `bounded`, its file may be larger than others. Raises BrokerUnavailable,
        StoreUnavailable.
        """
        now_ms = await self.broker.now_ms()
        file_id = new_id(FILE, now_ms)
        name = self.store.new_name(file_id)
        await self.broker.hold([name], UPLOAD_HOLD_MS)
        most_bytes = self._most_bytes if bounded else sys.maxsize
        return Upload(self, tenant, file_id, name, await self.store.write(name), most_bytes)

    async def add(
        self, upload: Upload, tenant: str, filename: str, purpose: str, kept_ms: int | None = None
    ) -> FileRecord:
        """Create the record of an uploaded file.

        Raises:
            ApiError: the tenant's files are too large together.
            StoreUnavailable: the upload took so long that the sweep may have deleted it.
        """
        now_ms = await self.broker.now_ms()
        ends_ms = now_ms + (self._kept_ms if kept_ms is None else kept_ms)
        record = FileRecord(upload.file_id, tenant, filename, purpose, upload.bytes, now_ms, ends_ms)
        upload.forget()  # before its file counts: else other uploads would find its bytes twice
        code = await self.broker.add_file(record, Part(upload.name, upload.bytes), self._most_together)
        if code is Addition.OVER_QUOTA:
            raise self._quota_exceeded()
        if code is Addition.TOO_MANY:
            raise too_many_files()
        if code is Addition.TOO_LATE:
            raise StoreUnavailable("the upload took too long: send it again")
        return record

    async def check_quota(self, tenant: str, size: int = 1) -> None:
        """Refuse an upload if files, uploads and so many bytes exceed the tenant's limit. Raises ApiError."""
        self.check_room(tenant, await self.used_bytes(tenant), size)

    async def used_bytes(self, tenant: str) -> int:
        """Bytes of a tenant's files; 0 where there is no limit of them."""
        return await self.broker.file_bytes(tenant) if self._most_together else 0

    def check_room(self, tenant: str, used: int, size: int = 0) -> None:
        """Do the same, with what the tenant's files are known to use."""
        if self._most_together and used + self.coming[tenant] + size > self._most_together:
            raise self._quota_exceeded()

    def _quota_exceeded(self) -> ApiError:
        text = f"your files may have {self._most_together} bytes together, {MAKE_ROOM}"
        return ApiError(413, text, "file_quota_exceeded", param="file", headers=NOT_AGAIN, reason="file_quota")

    async def read(self, parts: list[Part]) -> AsyncGenerator[bytes, None]:
        """Yields contents one after the other. Raises ContentGone before anything is yielded, or StoreUnavailable."""
        await self.store.check([part.name for part in parts[1:]])  # reading tells it of the first
        for part in parts:
            async with aclosing(self.store.read(part.name)) as blocks:
                async for block in blocks:
                    yield block

    async def delete(self, record: FileRecord) -> Deletion:
        """Delete a file and its contents; `sweep` deletes those that the store cannot delete now."""
        code, parts = await self.broker.delete_file(record)
        try:
            for part in parts:
                await self.store.delete(part.name)
            if parts:
                await self.broker.let_go([part.name for part in parts])
        except StoreUnavailable:
            pass
        return code

    async def discard(self, names: list[str]) -> None:
        """Delete contents that belong to no file. Raises StoreUnavailable."""
        for start in range(0, len(names), DISCARDED_AT_ONCE):
            await asyncio.gather(*map(self.store.delete, names[start : start + DISCARDED_AT_ONCE]))
        if names:
            await self.broker.let_go(names)

    async def sweep(self) -> int:
        """Delete contents without a file, and expired files. Returns how many were deleted."""
        names = await self.broker.loose(SWEEP_MOST)
        await self.discard(names)
        deleted = len(names)
        for file_id in await self.broker.ended_files(SWEEP_MOST):
            record = await self.broker.file(file_id)
            if record is None:
                await self.broker.forget_end(file_id)
            elif await self.delete(record) is Deletion.IN_USE:
                await self.broker.put_off(file_id, STILL_NEEDED_MS)
            else:
                deleted += 1
        return deleted


def too_many_files() -> ApiError:
    """Returns the refusal of a file, or of a batch that would make some."""
    text = f"you have as many files as a tenant may have, {MAKE_ROOM}"
    return ApiError(413, text, "file_quota_exceeded", param="file", headers=NOT_AGAIN, reason="file_quota")


class Upload:
    """A content that arrives in pieces.

    Attributes:
        file_id, name: id of the future file, and name of its content in the store.
        bytes: received so far.
    """

    def __init__(self, files: Files, tenant: str, file_id: str, name: str, writer: Writer, most_bytes: int) -> None:
        self.file_id, self.name, self.bytes = file_id, name, 0
        self._files, self._tenant, self._writer, self._most_bytes = files, tenant, writer, most_bytes
        self._piece = bytearray()
        self._counted = self._used = self._looked_at = 0

    async def write(self, data: bytes | memoryview) -> None:
        """Add a piece.

        Raises:
            InvalidRequest: the file is too large.
            ApiError: the tenant's files and uploads are too large together.
            StoreUnavailable: the store failed.
        """
        self.bytes += len(data)
        if self.bytes > self._most_bytes:
            raise InvalidRequest(
                f"the file is larger than {self._most_bytes} bytes, which is the limit", "file", "request_too_large"
            )
        await self._count(len(data))
        if len(self._piece) + len(data) < PIECE_BYTES:
            self._piece += data
            return
        await self._flush()
        await self._writer.write(data)

    def forget(self) -> None:
        """Count its bytes as no longer coming."""
        coming = self._files.coming
        coming[self._tenant] -= self._counted
        self._counted = 0
        if not coming[self._tenant]:
            del coming[self._tenant]

    async def close(self) -> None:
        """Complete the content. Raises StoreUnavailable."""
        await self._flush()
        await self._writer.close()

    async def abort(self) -> None:
        """Delete the content; the sweep deletes it later if that fails now."""
        self.forget()
        await _log_failure(self._writer.abort)
        await _log_failure(lambda: self._files.discard([self.name]))

    async def _count(self, size: int) -> None:
        """Count bytes as coming. Raises ApiError if the tenant may not have them."""
        if not self._counted or self.bytes - self._looked_at >= LOOK_EVERY_BYTES:
            self._used, self._looked_at = await self._files.used_bytes(self._tenant), self.bytes
        self._files.coming[self._tenant] += size
        self._counted += size
        try:
            self._files.check_room(self._tenant, self._used)
        except ApiError:
            self.forget()  # the other uploads may go on
            raise

    async def _flush(self) -> None:
        if self._piece:
            piece, self._piece = bytes(self._piece), bytearray()
            await self._writer.write(piece)


async def _log_failure(work: Callable[[], Awaitable[object]]) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - the caller has to see the error that led to the abort
        log.warning("upload_not_cleared", error=f"{type(error).__name__}: {error}")
