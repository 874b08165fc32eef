"""The part of the operators' broker that lists a queue's keys, to find and repair what commands by hand have broken."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from streamfleet.common.broker.reconciling import Damage, KeyCheck, ReconcilingBroker
from streamfleet.common.protocol import Lane

SCANNED = 250
_BROKEN = re.compile(rb":broken:\d{13}$")
"""End of the name of a key that was renamed because it was of another type."""


class RepairBroker(ReconcilingBroker):
    """Lists of a queue's keys, and their checks; with `mend`, each repairs what it finds. Workers may run meanwhile."""

    async def every_key(self) -> AsyncIterator[list[str]]:
        """The queue's keys with ASCII names, out of all keys of the database, some hundreds at a time."""
        async for found in self._scan(self.keys.base):
            yield [key.decode() for key in found if key.isascii()]

    async def label_sets(self) -> AsyncIterator[list[tuple[Lane, bytes]]]:
        """Lane, and what the key has behind that of the ready set, of each set of what waits with a label."""
        names = {lane.encode(): lane for lane in Lane}
        before = len(self.keys.ready(""))
        async for found in self._scan(self.keys.ready("")):
            keys = [key for key in found if not _BROKEN.search(key)]
            parts = [key[before:].partition(b":") for key in keys]
            yield [(names[lane], colon + label) for lane, colon, label in parts if lane in names and colon]

    async def delete_queue(self) -> int:
        """Delete every key of this queue, with all requests and results. Returns the number of keys."""
        return sum(
            [await self.connection.command("UNLINK", *found) async for found in self._scan(self.keys.base) if found]
        )

    async def _scan(self, prefix: str) -> AsyncIterator[list[bytes]]:
        cursor, pattern = b"0", re.sub(r"([*?\[\]^\\])", r"\\\1", prefix) + "*"
        while True:
            cursor, found = await self.connection.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED)
            yield found
            if cursor == b"0":
                return

    async def database_size(self) -> int:
        """Number of all keys in the database, of any queue or program."""
        return int(await self.connection.command("DBSIZE"))

    async def set_aside(self, checks: Sequence[KeyCheck], mend: bool) -> list[Damage]:
        """Check types and lifetimes of keys; with `mend`, wrong keys are renamed, or get the missing lifetime."""
        return await self.check_keys(checks, mend, f":broken:{await self.now_ms()}")
