"""The part of the broker that finds and repairs damage done by manual Redis commands."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.protocol import Lane

ENTRIES, BYTES = 128, 131_072
"""Bounds of one call, which copies the entries that it checks while the server does nothing else."""
SCANNED = 250
_BROKEN = re.compile(rb":broken:\d{13}$")
"""End of the name of a key that was renamed because it was of another type."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage in a queue that only manual Redis commands can cause.

    Attributes:
        kind: kind of damage; see `streamfleet.operator.repair.KINDS`.
        name: affected object: ``<lane>:<stream id>``, a lane, a key, a member, or a request id.
        detail: further details; may be empty.
    """

    kind: str
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Expected properties of a key.

    Attributes:
        key: its full name.
        type: type, as the command TYPE returns it.
        life_ms: time to live to set if it has none; None if it needs none.
        field: field that it must have, or empty.
    """

    key: str | bytes
    type: str
    life_ms: int | None = None
    field: str = ""


@dataclass(frozen=True, slots=True)
class Balance:
    """Corrections of the counters: entries never counted as staged, entries that vanished unnoticed, and the difference
    to the streams' own counts since a lane or the counters were deleted."""

    staged: int
    vanished: int
    forgotten: int


class RepairBroker(BrokerBase):
    """Bounded checks of a queue; with `mend`, each repairs what it finds. Workers may run meanwhile."""

    async def check_groups(self, mend: bool) -> list[Damage]:
        """Check the lanes' consumer groups: missing, set back, or set beyond the end."""
        found = await self.connection.script("repair_groups", self._shared, [self._config, int(mend)])
        return _damages(found)

    async def check_entries(self, part: str, lane: Lane, after: str, mend: bool) -> tuple[str, list[Damage]]:
        """Check some entries of a lane (`part` is ``lane``), or some that are pending there (``pending``).

        Returns:
            The stream id to continue after, empty at the end; and the findings.
        """
        reached, found = await self._repair(part, lane.number, after, (), mend)
        return reached.decode(), found

    async def check_members(
        self, part: str, lane: Lane | None, members: Sequence[bytes], mend: bool, label: bytes = b""
    ) -> tuple[int, list[Damage]]:
        """Check members of a ready set (`part` is ``ready``) or the delayed set, or fields of ``tries`` or ``tickets``.

        Args:
            part: ``ready``, ``firsts`` (of that set), ``delayed``, ``tries`` or ``tickets``.
            lane: None for what belongs to all lanes.
            members: the members, or fields.
            mend: repair what is found.
            label: what the key of a label's set has behind that of the ready set.

        Returns:
            Number of members that were checked, at least one; and the findings.
        """
        reached, found = await self._repair(part, lane.number if lane else 0, label, members, mend)
        return int(reached), found

    async def check_counts(self, lane: Lane, labels: Sequence[bytes], mend: bool) -> list[Damage]:
        """Check the number of those that wait with a label. `labels`: of the lane's sets, as from `label_sets`."""
        return (await self._repair("counts", lane.number, "", labels, mend))[1]

    async def check_interrupted(self, mend: bool) -> list[Damage]:
        """Check the number of interrupted requests, and of the bytes of output that is kept for them."""
        return (await self._repair("interrupted", 0, "", (), mend))[1]

    async def _repair(
        self, part: str, lane: int, after: str | bytes, members: Sequence[bytes], mend: bool
    ) -> tuple[Any, list[Damage]]:
        args = [self._config, int(mend), part, lane, after, ENTRIES, BYTES, *members]
        reached, found = await self.connection.script("repair", self._shared, args)
        return reached, _damages(found)

    async def members(self, part: str, lane: Lane | None, label: bytes = b"") -> AsyncIterator[list[bytes]]:
        """Members of the sorted set, or fields of the hash, that `check_members` checks by the same name, in parts.

        A member that is present throughout is returned at least once.
        """
        shared = {"delayed": self.keys.delayed, "tries": self.keys.tries, "tickets": self.keys.tickets}
        key = shared.get(part) or self.keys.ready(lane or "").encode() + label
        verb, cursor = "HSCAN" if part in ("tries", "tickets") else "ZSCAN", b"0"
        while True:
            cursor, flat = await self.connection.command(verb, key, cursor, "COUNT", SCANNED)
            if flat:
                yield flat[::2]
            if cursor == b"0":
                return

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

    async def check_keys(self, checks: Sequence[KeyCheck], mend: bool) -> list[Damage]:
        """Check types and lifetimes of keys; with `mend`, wrong keys are renamed, or get the missing lifetime."""
        keys: list[Any] = [*self._shared, *(check.key for check in checks)]
        args: list[Any] = [self._config, int(mend), f":broken:{await self.now_ms()}"]
        for check in checks:
            args += (check.type, "" if check.life_ms is None else check.life_ms, check.field)
        found = await self.connection.script("repair_keys", keys, args)
        words = [word.decode(errors="replace") for word in found]
        return [Damage(*words[at : at + 3]) for at in range(0, len(words), 3)]

    async def balance(self) -> Balance | None:
        """Correct the counters to match the entries; None if the queue's keys contradict each other."""
        off = await self._with_groups(lambda: self.connection.script("balance", self._shared, [self._config]))
        return Balance(*map(int, off)) if off else None


def _damages(flat: Sequence[bytes]) -> list[Damage]:
    words = [word.decode(errors="replace") for word in flat]
    return [Damage(kind, name) for kind, name in zip(words[::2], words[1::2], strict=True)]
