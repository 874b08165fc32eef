"""One reading of a queue for all who look at it: a hundred viewers cost Redis as much as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from streamfleet.common.broker import Broker
from streamfleet.common.clock import Clock
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.protocol import Lane
from streamfleet.gateway.ui.movement import Movement
from streamfleet.gateway.ui.overview import Head, Next, overview
from streamfleet.gateway.ui.texts import line, line_or_none
from streamfleet.producer.snapshot import take_snapshot
from streamfleet.producer.whereabouts import own_id

REUSE_S = 1.0
SHOWN_NEXT = 5
MOST_BYTES = 1_048_576
"""Of what runs next, at most so much is read in one look: an entry brings its body along."""
MOST_HEADS = 512


class Shared:
    """What one look says, for all who ask within a second; that it failed, too.

    Args:
        look: does it.
        clock: for how long it serves.
    """

    def __init__(self, look: Callable[[], Awaitable[dict[str, Any]]], clock: Clock) -> None:
        self._look, self._clock = look, clock
        self._seen: dict[str, Any] | StreamfleetError = {}
        self._seen_at = float("-inf")
        self._changes = 0
        self._looking = asyncio.Lock()

    async def get(self) -> dict[str, Any]:
        """It, at most a second old. Raises what the look raised."""
        if self._is_old:
            async with self._looking:
                if self._is_old:
                    await self._again()
        if isinstance(self._seen, StreamfleetError):
            raise self._seen
        return self._seen

    def forget(self) -> None:
        """Somebody changed something: look again, also where somebody is looking just now."""
        self._changes += 1
        self._seen_at = float("-inf")

    @property
    def _is_old(self) -> bool:
        return self._clock.monotonic() - self._seen_at >= REUSE_S

    async def _again(self) -> None:
        changes = self._changes
        try:
            self._seen = await self._look()
        except StreamfleetError as error:
            self._seen = error
        if changes == self._changes:
            self._seen_at = self._clock.monotonic()


class Watcher:
    """Looks at one queue.

    Args:
        broker: gives the queue.
    """

    def __init__(self, broker: Callable[[], Awaitable[Broker]]) -> None:
        self._broker = broker
        self._movement = Movement()
        self._heads: dict[str, Head] = {}

    async def look(self) -> dict[str, Any]:
        """The queue, as the page shows it."""
        broker = await self._broker()
        snapshot = await take_snapshot(broker)
        ready = await broker.next_ready(SHOWN_NEXT)
        await self._read_heads(broker, ready)
        following = {
            lane: [Next(stream_id, rank, self._heads.get(f"{lane}:{stream_id}")) for stream_id, rank in some]
            for lane, some in ready.items()
        }
        return overview(snapshot, self._movement.add(snapshot), following)

    async def _read_heads(self, broker: Broker, ready: dict[Lane, list[tuple[str, int]]]) -> None:
        """Read those that were not read before: what stands in an entry does not change."""
        size = 0
        for lane, some in ready.items():
            missing = [stream_id for stream_id, _ in some if f"{lane}:{stream_id}" not in self._heads]
            async for stream_id, fields in broker.entries_of(lane, missing):
                entry = f"{lane}:{stream_id}"
                head = Head(
                    line(own_id(entry, fields)), line_or_none(fields.get(b"tenant")), len(fields.get(b"body", b""))
                )
                self._heads[entry] = head
                size += head.size_bytes
                if size > MOST_BYTES:
                    break
        while len(self._heads) > MOST_HEADS:
            del self._heads[next(iter(self._heads))]
