"""The part of the broker that compares a queue's keys, and makes those anew that follow from others.

All of it is bounded calls beside running work; the housekeeping makes them a part at a time, `streamfleet audit` to the
end. With `mend` they change what they find, else they only look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.keys import GROUP
from streamfleet.common.protocol import LANES, Lane

ENTRIES, BYTES = 128, 262_144
"""Bounds of one call, which copies the entries that it examines while the server does nothing else."""
LISTED = 250
PARTS = ("delayed", "tries", "entries", *LANES, "tickets")
"""Keys that name entries, for `sweep`, and lanes for the entries that workers hold. Tickets follow from all else."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage in a queue that commands by hand can cause, or a server that lost writes.

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


class ReconcilingBroker(BrokerBase):
    """Comparisons of a queue's keys, and their repair."""

    async def check_keys(self, checks: Sequence[KeyCheck], mend: bool, aside: str = "") -> list[Damage]:
        """Check types and lifetimes of keys; a key without a life gets one.

        Args:
            checks: the keys.
            mend: change what is wrong.
            aside: what unusable keys are renamed to have at the end of their names; empty to delete them.
        """
        types = await self.connection.pipeline([("TYPE", check.key) for check in checks])
        found: list[Damage] = []
        changes: list[tuple[object, ...]] = []
        unusable: list[KeyCheck] = []
        for check, kind in zip(checks, map(bytes.decode, types), strict=True):
            if kind == "none":
                continue
            name, problem, detail = _text(check.key), "", ""
            if kind != check.type:
                problem, detail = "wrong_type", kind
            elif check.field and not await self.connection.command("HEXISTS", check.key, check.field):
                problem, detail = "no_status", check.field
            if problem:
                unusable.append(check)
            elif check.life_ms is not None and await self.connection.command("PTTL", check.key) == -1:
                problem = "no_ttl"
                changes.append(("PEXPIRE", check.key, check.life_ms))
            if problem:
                found.append(Damage(problem, name, detail))
        if mend:
            await self._remove(unusable, aside)
        if mend and changes:
            await self.connection.pipeline(changes)
        return found

    async def _remove(self, unusable: Sequence[KeyCheck], aside: str) -> None:
        if aside and unusable:  # somebody may have written what is right meanwhile
            args = [word for check in unusable for word in (check.type, check.field)]
            keys = [*self._shared, *(check.key for check in unusable)]
            await self.connection.script("set_aside", keys, [self._config, aside, *args])
        elif unusable:
            await self.connection.pipeline([("UNLINK", check.key) for check in unusable])

    async def mend_types(self) -> list[Damage]:
        """Delete keys of another type than streamfleet's that can be made anew."""
        return await self.check_keys([KeyCheck(*each) for each in self.keys.typed(derived=True).items()], mend=True)

    async def compare(
        self, lane: Lane | None, mend: bool, labels: Sequence[bytes] = (), counters: str = ""
    ) -> list[Damage]:
        """Compare the places of all entries, the counters, and what waits with a label in one lane.

        Args:
            lane: that lane; None to compare what is known of interrupted requests instead, as both may be thousands.
            mend: set right what is certain.
            labels: what the keys of its sets have behind the ready set's, where all are known.
            counters: ``streams`` to mend the counters by what the streams count, too, which know of entries that nobody
                has seen; ``all`` to do so although not all places can be counted, once each entry was examined.

        Returns:
            The findings. A lane that ``differs`` is to be made anew (`begin`); ``mending`` says that one just is.
        """
        how = (counters or 1) if mend else 0
        args = [self._config, how, lane.number if lane else 0, *labels]
        return _damages(await self.connection.script("compare", self._shared, args))

    async def begin(self, lane: Lane, labels: Sequence[bytes] = ()) -> None:
        """Delete the sets of what waits in a lane. `go_on` makes them anew; `labels`: as for `compare`."""
        await self._reconcile(lane, "begin", True, labels)

    async def go_on(self, lane: Lane) -> tuple[str, list[Damage]]:
        """Make a part of a lane's sets anew. Returns where the next call goes on, empty at the end; and findings."""
        return await self._reconcile(lane, "go on", True)

    async def examine(self, lane: Lane, after: str, mend: bool) -> tuple[str, list[Damage]]:
        """Examine some entries of a lane behind a stream id; empty for the first. Returns as `go_on` does."""
        return await self._reconcile(lane, after, mend)

    async def _reconcile(
        self, lane: Lane | None, how: str, mend: bool, words: Sequence[bytes] = ()
    ) -> tuple[str, list[Damage]]:
        args = [self._config, int(mend), lane.number if lane else 0, how, ENTRIES, BYTES, *words]
        reached, found = await self.connection.script("reconcile", self._shared, args)
        return reached.decode() if isinstance(reached, bytes) else str(reached), _damages(found)

    async def sweep(self, part: str, cursor: str, mend: bool) -> tuple[str, list[Damage]]:
        """Remove what a part of `PARTS` knows of entries that are gone.

        Args:
            part: the key, or the lane.
            cursor: where to go on; empty at the beginning.
            mend: remove it.

        Returns:
            Where the next call goes on, empty at the end; and findings.
        """
        cursor, fields = await self._listed(part, cursor)
        found: list[Damage] = []
        while fields:
            examined, damages = await self._reconcile(None, "names", mend, fields)
            found += damages
            fields = fields[int(examined or len(fields)) :]
        return cursor, found

    async def _listed(self, part: str, cursor: str) -> tuple[str, list[bytes]]:
        if part in LANES:
            lane = Lane(part)
            if not await self._has_group(self.keys.lane(lane)):
                return "", []
            start = f"({cursor}" if cursor else "-"
            rows = await self._look("XPENDING", self.keys.lane(lane), GROUP, start, "+", LISTED)
            ids = [row[0] for row in rows]
            return ids[-1].decode() if len(ids) == LISTED else "", [b"%d|%s" % (lane.number, each) for each in ids]
        verb = "ZSCAN" if part == "delayed" else "HSCAN"
        following, flat = await self._look(verb, getattr(self.keys, part), cursor or 0, "COUNT", LISTED)
        # In `entries` the field's name begins with what is known of the entry.
        fields = [field.rpartition(b":")[2] if part == "entries" else field for field in flat[::2]]
        fields = [field for field in fields if field != b"kept_bytes"]
        return "" if following == b"0" else following.decode(), fields


def _text(key: str | bytes) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else key


def _damages(flat: Sequence[bytes]) -> list[Damage]:
    words = [word.decode(errors="replace") for word in flat]
    return [Damage(kind, name) for kind, name in zip(words[::2], words[1::2], strict=True)]
