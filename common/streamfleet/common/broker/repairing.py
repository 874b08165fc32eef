"""The part of the broker that looks for what commands by hand have broken, and mends it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from streamfleet.common.broker.operating import OperatorBroker
from streamfleet.common.protocol import Lane
from streamfleet.common.records import Balance, Finding, KeyCheck

ENTRIES, BYTES = 128, 131_072
"""What one call looks at: a call copies what it looks at, and the server does nothing else meanwhile."""
SCANNED = 250


class RepairBroker(OperatorBroker):
    """Bounded looks at a queue, each of which mends what it finds when told to. Workers may run all the while."""

    async def look_at_groups(self, mend: bool) -> list[Finding]:
        """The lanes' consumer groups: gone, set back, or set beyond the end."""
        found = await self.connection.script("repair_groups", self._shared, [self._config, int(mend)])
        return _findings(found)

    async def look_at_entries(self, part: str, lane: Lane, after: str, mend: bool) -> tuple[str, list[Finding]]:
        """Some entries of a lane (`part` is ``lane``), or some that are pending there (``pending``).

        Returns:
            The stream id to go on behind, empty at the end; and what was found.
        """
        reached, found = await self._repair(part, lane.number, after, (), mend)
        return reached.decode(), found

    async def look_at_members(
        self, part: str, lane: Lane | None, members: Sequence[bytes], mend: bool
    ) -> tuple[int, list[Finding]]:
        """Members of a ready set (`part` is ``ready``), of the delayed ones, or fields of ``tries``.

        Returns:
            How many of them were looked at, at least one; and what was found.
        """
        reached, found = await self._repair(part, lane.number if lane else 0, "", members, mend)
        return int(reached), found

    async def _repair(
        self, part: str, lane: int, after: str, members: Sequence[bytes], mend: bool
    ) -> tuple[Any, list[Finding]]:
        args = [self._config, int(mend), part, lane, after, ENTRIES, BYTES, *members]
        reached, found = await self.connection.script("repair", self._shared, args)
        return reached, _findings(found)

    async def members(self, part: str, lane: Lane | None) -> AsyncIterator[list[bytes]]:
        """Members of the sorted set or fields of the hash that `look_at_members` means by `part`, some at a time.

        What is in it all the while comes at least once.
        """
        key = {"ready": self.keys.ready(lane or ""), "delayed": self.keys.delayed, "tries": self.keys.tries}[part]
        verb, cursor = "HSCAN" if part == "tries" else "ZSCAN", b"0"
        while True:
            cursor, flat = await self.connection.command(verb, key, cursor, "COUNT", SCANNED)
            if flat:
                yield flat[::2]
            if cursor == b"0":
                return

    async def every_key(self) -> AsyncIterator[list[str]]:
        """The queue's keys with ASCII names, out of all keys of the database, some hundreds at a time."""
        cursor, pattern = b"0", re.sub(r"([*?\[\]^\\])", r"\\\1", self.keys.base) + "*"
        while True:
            cursor, found = await self.connection.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED)
            yield [key.decode() for key in found if key.isascii()]
            if cursor == b"0":
                return

    async def database_size(self) -> int:
        """How many keys the database has, of whatever queue or program."""
        return int(await self.connection.command("DBSIZE"))

    async def look_at_keys(self, checks: Sequence[KeyCheck], mend: bool) -> list[Finding]:
        """Whether keys are what they have to be; those that are not are set aside, or given their end of life."""
        keys = [*self._shared, *(check.key for check in checks)]
        args: list[Any] = [self._config, int(mend), f":broken:{await self.now_ms()}"]
        for check in checks:
            args += (check.type, "" if check.life_ms is None else check.life_ms, check.field)
        found = await self.connection.script("repair_keys", keys, args)
        words = [word.decode(errors="replace") for word in found]
        return [Finding(*words[at : at + 3]) for at in range(0, len(words), 3)]

    async def end_vanished(self, request_ids: Sequence[str], mend: bool) -> list[str]:
        """End those of the recorded requests whose entry is gone, so that nobody waits for them. Returns which."""
        left, gone = list(request_ids), []
        while left:
            codes = await self._end_vanished(left, mend)
            gone += [name for name, code in zip(left, codes, strict=False) if code]
            left = left[len(codes) :]
        return gone

    async def _end_vanished(self, request_ids: Sequence[str], mend: bool) -> list[int]:
        records = await self.connection.pipeline([("GET", self.keys.request(name)) for name in request_ids])
        keys, args = list(self._shared), [self._config, int(mend), BYTES]
        for name, record in zip(request_ids, records, strict=True):
            reply = (record or b"").decode(errors="replace").split(" ", 2)[2:]
            told = reply[0] if reply else ""
            keys += (self.keys.request(name), self.keys.result(name))
            keys += (self.keys.reply(told) if told else self.keys.result(name), self.keys.tokens(name))
            args += (name, told)
        return list(await self.connection.script("vanish", keys, args))

    async def balance(self) -> Balance | None:
        """Bring the counters to what is there; None when the queue holds what does not fit together."""
        off = await self._with_groups(lambda: self.connection.script("balance", self._shared, [self._config]))
        return Balance(*map(int, off)) if off else None


def _findings(flat: Sequence[bytes]) -> list[Finding]:
    words = [word.decode(errors="replace") for word in flat]
    return [Finding(kind, name) for kind, name in zip(words[::2], words[1::2], strict=True)]
