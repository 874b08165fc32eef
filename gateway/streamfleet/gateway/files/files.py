"""Files: contents in the store, records in Redis, and a sweep that deletes one without the other.

Routes and batches create, read and delete files through `Files`. An upload is announced in Redis before its content is
written, so that the sweep finds the content if the gateway dies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.batch_records import FILE, FileRecord, Part, new_id
from streamfleet.gateway.broker.files import Addition, Deletion, FileBroker
from streamfleet.gateway.errors import NOT_AGAIN, ApiError
from streamfleet.gateway.files.store import Store, StoreUnavailable, Writer

log = structlog.get_logger(__name__)
PIECE_BYTES = 1_048_576
UPLOAD_HOLD_MS, SEGMENT_HOLD_MS = 21_600_000, 3_600_000
"""Time in which an upload, or a piece of a batch's output, has to be complete; after it, the sweep may delete it."""
SWEEP_MOST, STILL_NEEDED_MS = 200, 3_600_000


class Files:
    """Operations of the Files API, and those that batches need.

    Args:
        broker: records in Redis.
        store: contents.
        most_bytes: limit for one file.
        kept_ms: default lifetime of a file.
        most_together: limit for all files of a tenant, in bytes; 0 for none.
    """

    def __init__(self, broker: FileBroker, store: Store, most_bytes: int, kept_ms: int, most_together: int = 0) -> None:
        self.broker, self.store = broker, store
        self._most_bytes, self._kept_ms, self._most_together = most_bytes, kept_ms, most_together

    async def begin_upload(self) -> Upload:
        """Begin an upload. Raises BrokerUnavailable, StoreUnavailable."""
        now_ms = await self.broker.now_ms()
        file_id = new_id(FILE, now_ms)
        name = self.store.new_name(file_id)
        await self.broker.hold([name], UPLOAD_HOLD_MS)
        return Upload(self, file_id, name, await self.store.write(name), self._most_bytes)

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
        code = await self.broker.add_file(record, Part(upload.name, upload.bytes), self._most_together)
        if code is Addition.OVER_QUOTA:
            raise self._quota_exceeded()
        if code is Addition.TOO_MANY:
            raise too_many_files()
        if code is Addition.TOO_LATE:
            raise StoreUnavailable("the upload took too long: send it again")
        return record

    async def check_quota(self, tenant: str) -> None:
        """Refuse an upload early if the tenant's files have reached the limit. Raises ApiError."""
        if self._most_together and await self.broker.file_bytes(tenant) >= self._most_together:
            raise self._quota_exceeded()

    def _quota_exceeded(self) -> ApiError:
        text = f"your files may have {self._most_together} bytes together: delete some, with DELETE /v1/files/ID"
        return ApiError(413, text, "file_quota_exceeded", param="file", headers=NOT_AGAIN, reason="file_quota")

    async def read(self, parts: list[Part]) -> AsyncIterator[bytes]:
        """Yields contents one after the other. Raises ContentGone, StoreUnavailable."""
        for part in parts:
            async for block in self.store.read(part.name):
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
        for name in names:
            await self.store.delete(name)
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
    text = "you have as many files as a tenant may have: delete some, with DELETE /v1/files/ID"
    return ApiError(413, text, "file_quota_exceeded", param="file", headers=NOT_AGAIN, reason="file_quota")


class Upload:
    """A content that arrives in pieces.

    Attributes:
        file_id, name: id of the future file, and name of its content in the store.
        bytes: received so far.
    """

    def __init__(self, files: Files, file_id: str, name: str, writer: Writer, most_bytes: int) -> None:
        self.file_id, self.name, self.bytes = file_id, name, 0
        self._files, self._writer, self._most_bytes = files, writer, most_bytes
        self._piece = bytearray()

    async def write(self, data: bytes) -> None:
        """Add a piece.

        Raises:
            InvalidRequest: the file is too large.
            StoreUnavailable: the store failed.
        """
        self.bytes += len(data)
        if self.bytes > self._most_bytes:
            raise InvalidRequest(
                f"the file is larger than {self._most_bytes} bytes, which is the limit", "file", "request_too_large"
            )
        self._piece += data
        if len(self._piece) >= PIECE_BYTES:
            await self._flush()

    async def close(self) -> None:
        """Complete the content. Raises StoreUnavailable."""
        await self._flush()
        await self._writer.close()

    async def abort(self) -> None:
        """Delete the content; the sweep deletes it later if that fails now."""
        await _log_failure(self._writer.abort)
        await _log_failure(lambda: self._files.discard([self.name]))

    async def _flush(self) -> None:
        if self._piece:
            piece, self._piece = bytes(self._piece), bytearray()
            await self._writer.write(piece)


async def _log_failure(work: Callable[[], Awaitable[object]]) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - the caller has to see the error that led to the abort
        log.warning("upload_not_cleared", error=f"{type(error).__name__}: {error}")
