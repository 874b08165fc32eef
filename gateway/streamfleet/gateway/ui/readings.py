"""One cached reading of each queue for all viewers: a hundred viewers cost Redis as much as one.

`QueueReader` reads a queue through the broker and returns JSON values; `CachedReading` keeps them, or the error, for a
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from streamfleet.common.clock import Clock
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.protocol import Lane
from streamfleet.gateway.ui.overview import Head, Next, overview
from streamfleet.gateway.ui.rates import RateMeter
from streamfleet.gateway.ui.texts import line, line_or_none
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.request_location import own_id
from streamfleet.operator.snapshot import take_snapshot

REUSE_S = 1.0
SHOWN_NEXT = 5
MOST_BYTES = 1_048_576
"""Most bytes of next entries in one reading: an entry contains its body."""
MOST_HEADS = 512


class CachedReading:
    """Result of a reading, or its error, for all who ask within a second.

    Args:
        read: makes a reading.
        clock: for its age.
    """

    def __init__(self, read: Callable[[], Awaitable[dict[str, Any]]], clock: Clock) -> None:
        self._read, self._clock = read, clock
        self._result: dict[str, Any] | StreamfleetError = {}
        self._read_at_s = float("-inf")
        self._changes = 0
        self._lock = asyncio.Lock()

    async def get(self) -> dict[str, Any]:
        """Returns the result, at most a second old. Raises the error of the reading."""
        if self._is_old:
            async with self._lock:
                if self._is_old:
                    await self._refresh()
        if isinstance(self._result, StreamfleetError):
            raise self._result
        return self._result

    def invalidate(self) -> None:
        """Make the next `get` read again, even if a reading is in progress: something was changed."""
        self._changes += 1
        self._read_at_s = float("-inf")

    @property
    def _is_old(self) -> bool:
        return self._clock.monotonic() - self._read_at_s >= REUSE_S

    async def _refresh(self) -> None:
        changes = self._changes
        try:
            self._result = await self._read()
        except StreamfleetError as error:
            self._result = error
        if changes == self._changes:
            self._read_at_s = self._clock.monotonic()


class QueueReader:
    """Reads one queue for the page.

    Args:
        broker: returns the queue's broker.
    """

    def __init__(self, broker: Callable[[], Awaitable[OperatorBroker]]) -> None:
        self._broker = broker
        self._meter = RateMeter()
        self._heads: dict[str, Head] = {}

    async def read(self) -> dict[str, Any]:
        """Reads the queue, as the page shows it."""
        broker = await self._broker()
        snapshot = await take_snapshot(broker)
        ready = await broker.next_ready(SHOWN_NEXT)
        await self._read_heads(broker, ready)
        upcoming = {
            lane: [Next(stream_id, rank, self._heads.get(f"{lane}:{stream_id}")) for stream_id, rank in some]
            for lane, some in ready.items()
        }
        return overview(snapshot, self._meter.add(snapshot), upcoming)

    async def _read_heads(self, broker: OperatorBroker, ready: dict[Lane, list[tuple[str, int]]]) -> None:
        """Read the heads that are not cached: an entry never changes."""
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
