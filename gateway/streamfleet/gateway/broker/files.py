"""The files of the HTTP gateway in Redis: their owners, and the stored contents that they consist of.

`FileBroker` takes and returns records. Contents never pass through here: `files.store` holds them, and Redis has only
their names and sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from streamfleet.common.connection import Connection
from streamfleet.common.replies import mapping
from streamfleet.gateway.batch_records import BatchNames, FileRecord, Part, read_file, read_part
from streamfleet.gateway.broker.base import SharedKeys


class Deletion(IntEnum):
    """Outcome of deleting a file; the return codes of gateway_file_delete.lua."""

    UNKNOWN = 0
    DELETED = 1
    IN_USE = 2


class Addition(IntEnum):
    """Outcome of adding a file; the return codes of gateway_file_add.lua."""

    TOO_LATE = 0
    MADE = 1
    OVER_QUOTA = 2
    TOO_MANY = 3


class FileBroker(SharedKeys[BatchNames]):
    """One method for each operation, each one script or one command.

    Contents are stored elsewhere. A content is registered as `loose` before it is written, until a file owns it. A
    loose content past its time is deleted, so the death of its writer leaves nothing behind.
    """

    async def hold(self, contents: Sequence[str], hold_ms: int) -> None:
        """Register contents before they are stored: unless a file owns them within `hold_ms`, they may be deleted."""
        until_ms = await self.now_ms() + hold_ms
        words = [word for name in contents for word in (until_ms, name)]
        await self.connection.command("ZADD", self.names.loose, *words)

    async def let_go(self, contents: Sequence[str]) -> None:
        """Unregister loose contents that are deleted, or were never stored."""
        await self.connection.command("ZREM", self.names.loose, *contents)

    async def loose(self, most: int) -> list[str]:
        """Loose contents that may be deleted, the oldest first."""
        words = ("-inf", await self.now_ms(), "LIMIT", 0, most)
        found = await self.connection.command("ZRANGEBYSCORE", self.names.loose, *words)
        return [name.decode(errors="replace") for name in found]

    async def add_file(self, record: FileRecord, part: Part, most_bytes: int = 0) -> Addition:
        """Make a file of a stored content.

        Args:
            record, part: the file, and its content.
            most_bytes: most bytes of all files of the tenant; 0 for no limit.
        """
        names = self.names
        keys = [
            names.file(record.id),
            names.parts(record.id),
            names.files(record.tenant),
            names.ends,
            names.loose,
            names.use(record.tenant),
        ]
        flat = [word for pair in record.fields().items() for word in pair]
        limits = [record.bytes, most_bytes]
        args = [record.id, part.name, part.encoded(), self._clock(), record.expires_ms, *limits, *flat]
        return Addition(await self.connection.script("gateway_file_add", keys, args))

    async def file_bytes(self, tenant: str) -> int:
        """Bytes of all files of a tenant."""
        return int(await self.connection.command("HGET", self.names.use(tenant), "file_bytes") or 0)

    async def file(self, file_id: str) -> FileRecord | None:
        """One file."""
        return (await self.files([file_id]))[0]

    async def files(self, file_ids: Sequence[str]) -> list[FileRecord | None]:
        """Several files, in one round trip."""
        if not file_ids:
            return []
        replies = await self.connection.pipeline([("HGETALL", self.names.file(file_id)) for file_id in file_ids])
        return [read_file(file_id, mapping(reply)) for file_id, reply in zip(file_ids, replies, strict=True)]

    async def parts(self, file_id: str) -> list[Part]:
        """The contents of a file, in order."""
        return [read_part(text) for text in await self.connection.command("LRANGE", self.names.parts(file_id), 0, -1)]

    async def file_ids(self, tenant: str, after: str, most: int, *, newest_first: bool = True) -> list[str]:
        """Ids of a tenant's files after one of them (empty: from the beginning)."""
        return await page(self.connection, self.names.files(tenant), after, most, newest_first)

    async def delete_file(self, record: FileRecord) -> tuple[Deletion, list[Part]]:
        """Delete a file. The caller must delete its contents, and then call `let_go`."""
        names = self.names
        keys = [
            names.file(record.id),
            names.parts(record.id),
            names.files(record.tenant),
            names.ends,
            names.loose,
            names.use(record.tenant),
        ]
        code, contents = await self.connection.script(
            "gateway_file_delete", keys, [record.id, record.tenant, self._clock()]
        )
        return Deletion(code), [read_part(text) for text in contents]

    async def ended_files(self, most: int) -> list[str]:
        """Expired files, the oldest first."""
        words = ("-inf", await self.now_ms(), "LIMIT", 0, most)
        found = await self.connection.command("ZRANGEBYSCORE", self.names.ends, *words)
        return [file_id.decode(errors="replace") for file_id in found]

    async def put_off(self, file_id: str, ms: int) -> None:
        """Check an expired file again after `ms`, because it is still needed."""
        await self.connection.command("ZADD", self.names.ends, "XX", await self.now_ms() + ms, file_id)

    async def forget_end(self, file_id: str) -> None:
        """Remove a deleted file from the files to expire."""
        await self.connection.command("ZREM", self.names.ends, file_id)


async def page(connection: Connection, key: str, after: str, most: int, newest_first: bool) -> list[str]:
    """Members of a sorted set of ids, after one of them (empty: from the beginning)."""
    if newest_first:
        words = ("ZREVRANGEBYLEX", key, f"({after}" if after else "+", "-")
    else:
        words = ("ZRANGEBYLEX", key, f"({after}" if after else "-", "+")
    found = await connection.command(*words, "LIMIT", 0, most)
    return [member.decode(errors="replace") for member in found]
