"""The part of the broker that inspects one request, or the server. Every call is bounded, and changes nothing."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.connection import MissingGroup
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.keys import GROUP
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.replies import (
    LAST_PART,
    entries,
    id_order,
    last_delivered,
    mapping,
    pending_row,
    recorded,
    score,
)
from streamfleet.common.results import Result, decode_result

CHUNK_BYTES, MOST_AT_ONCE = 262_144, 64
_ENTRY = re.compile(rf"({'|'.join(LANES)}):([0-9]{{1,20}})-([0-9]{{1,20}})")

Fields = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class EntryDetails:
    """State of one entry of a lane, at about one instant.

    Attributes:
        fields: fields as they were XADDed; None if the entry is no longer in its lane.
        delivered: it was read from the lane, and is staged, delayed or running.
        worker, attempt, idle_ms: consumer that holds it, attempt, and ms since the last renewal; None, 0 and 0 if
            none
            holds it. The consumer `~` is no worker: it holds entries that no worker has been given yet.
        before, rank_ms: number of requests of its lane that run before it, and its rank, epoch ms, once somebody has
            asked for them; None if it is not ready.
        due_ms: time of its next attempt, epoch ms; None if it is not delayed.
        tries: ``<attempts>[ <worker>…]`` of the attempts before this one; empty for none.
        interrupted: ``<times>[ <run> <bytes>[ <until> <worker>]]``: how often it gave way to an urgent request, the
            output that is kept of its last run, and the worker for which it waits until then, epoch ms; empty if no run
            was interrupted.
    """

    fields: Fields | None
    delivered: bool
    worker: str | None
    attempt: int
    idle_ms: int
    before: int | None
    rank_ms: int | None
    due_ms: int | None
    tries: str
    interrupted: str = ""


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """Data under a request's id: its record (entry and reply name, empty without one), and its result."""

    entry: str
    reply: str
    result: Result | None
    result_ttl_ms: int | None


def read_entry_name(text: str) -> tuple[Lane, str] | None:
    """Lane and stream id of ``<lane>:<stream id>``; None for an invalid stream id."""
    match = _ENTRY.fullmatch(text)
    if match is None or max(int(match[2]), int(match[3])) > LAST_PART:
        return None
    return Lane(match[1]), f"{int(match[2])}-{int(match[3])}"


class InspectingBroker(BrokerBase):
    """Queries of an operator about one request, or about the server."""

    async def stored_request(self, request_id: str) -> StoredRequest:
        """Data under a request's id."""
        result = self.keys.result(request_id)
        record, fields, ttl = await self._look_all(
            [("GET", self.keys.request(request_id)), ("HGETALL", result), ("PTTL", result)]
        )
        entry, reply = recorded(record)
        return StoredRequest(entry, reply, decode_result(request_id, mapping(fields)), ttl if ttl > 0 else None)

    async def entry_details(self, lane: Lane, stream_id: str) -> EntryDetails:
        """State of an entry, without its place. O(log n) of its lane."""
        stream, field = self.keys.lane(lane), f"{lane.number}|{stream_id}"
        commands: list[tuple[Any, ...]] = [
            ("XRANGE", stream, stream_id, stream_id),
            ("ZSCORE", self.keys.delayed, field),
            ("HGET", self.keys.tries, field),
            ("HGET", self.keys.entries, f"interrupted:{field}"),
        ]
        group = [("XPENDING", stream, GROUP, stream_id, stream_id, 1), ("XINFO", "GROUPS", stream)]
        try:
            found, due, tries, interrupted, pending, groups = await self._look_all([*commands, *group])
        except MissingGroup:  # without a group, no worker was ever there, and nothing was delivered
            found, due, tries, interrupted = await self._look_all(commands)
            pending, groups = [], []
        row = pending_row(pending[0]) if pending else None
        return EntryDetails(
            fields=next((fields for _, fields in entries(found)), None),
            delivered=id_order(stream_id) <= id_order(last_delivered(groups, GROUP)),
            worker=row[1] if row else None,
            attempt=row[3] if row else 0,
            idle_ms=row[2] if row else 0,
            before=None,
            rank_ms=None,
            due_ms=score(due),
            tries=(tries or b"").decode(errors="backslashreplace"),
            interrupted=(interrupted or b"").decode(errors="backslashreplace"),
        )

    async def has_group(self, lane: Lane) -> bool:
        """True if a lane has the workers' group; the first worker creates it."""
        return await self._has_group(self.keys.lane(lane))

    async def pending_ids(self, lane: Lane, most: int, first: str = "-") -> list[str]:
        """Stream ids of the oldest `most` pending entries of a lane, from `first` on."""
        try:
            rows = await self._look("XPENDING", self.keys.lane(lane), GROUP, first, "+", most)
        except MissingGroup:
            return []
        return [pending_row(row)[0] for row in rows]

    async def entries_of(self, lane: Lane, ids: Sequence[str]) -> AsyncIterator[tuple[str, Fields]]:
        """Existing entries among these stream ids; read in small chunks, because entries carry bodies."""
        at, chunk = 0, 1
        while at < len(ids):
            words = [("XRANGE", self.keys.lane(lane), each, each) for each in ids[at : at + chunk]]
            found = [entry for reply in await self._look_all(words) for entry in entries(reply)]
            for entry in found:
                yield entry
            at, chunk = at + chunk, _next_chunk(chunk, found)

    def stream_entries(
        self, key: str, start: str, most: float = math.inf, *, newest_first: bool = False
    ) -> AsyncIterator[tuple[str, Fields]]:
        """Up to `most` entries of a stream from one stream id on, as XRANGE, or XREVRANGE, takes it."""
        return stream_entries(self._look, key, start, most, newest_first=newest_first)

    async def some_keys(self, rounds: int, at_once: int = 500) -> tuple[list[str], bool]:
        """Keys of all queues with this prefix, found in `rounds` calls of SCAN; True if these covered the database."""
        keys: list[str] = []
        cursor, pattern = b"0", re.sub(r"([*?\[\]^\\])", r"\\\1", self.keys.prefix) + "{*}:*"
        for _ in range(rounds):
            cursor, found = await self.connection.command("SCAN", cursor, "MATCH", pattern, "COUNT", at_once)
            keys += [key.decode() for key in found if key.isascii()]
            if cursor == b"0":
                return keys, True
        return keys, False

    async def permitted(self, commands: Sequence[Sequence[str]]) -> tuple[str, list[bool]] | None:
        """Check by ACL DRYRUN which commands the user may send (Redis 7.0 or newer); none of them runs.

        Returns:
            The user's name, and True for each permitted command; None if the user may not ask, or the server cannot
            tell.
        """
        try:
            user = (await self.connection.command("ACL", "WHOAMI")).decode(errors="backslashreplace")
            replies = await self.connection.pipeline([("ACL", "DRYRUN", user, *words) for words in commands])
        except StreamfleetError:
            return None
        return user, [reply == b"OK" for reply in replies]


async def stream_entries(
    look: Callable[..., Awaitable[Any]], key: str, start: str, most: float = math.inf, *, newest_first: bool = False
) -> AsyncIterator[tuple[str, Fields]]:
    """As the method of `InspectingBroker`, of any stream; `look` sends a command."""
    command, end = ("XREVRANGE", "-") if newest_first else ("XRANGE", "+")
    chunk = 1
    while most > 0:
        count = int(min(chunk, most))
        found = entries(await look(command, key, start, end, "COUNT", count))
        for entry in found:
            yield entry
        if len(found) < count:
            return
        most, start, chunk = most - len(found), f"({found[-1][0]}", _next_chunk(chunk, found)


def _next_chunk(chunk: int, found: Sequence[tuple[str, Fields]]) -> int:
    """Number of entries to read next: larger while they are small, so that no reply far exceeds CHUNK_BYTES."""
    size = sum(len(name) + len(value) for _, fields in found for name, value in fields.items())
    fitting = CHUNK_BYTES * len(found) // size if size else MOST_AT_ONCE
    return max(1, min(chunk * 2, fitting, MOST_AT_ONCE))
