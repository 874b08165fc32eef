"""State of the operators' page in one process: its connections to the queues, and its cached readings of them.

`routes` asks for brokers, clients and readings here. The page has connections of its own, so that a slow look delays no
request. All viewers share one reading of a queue, for a second: a hundred viewers cost Redis as much as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from streamfleet.common.clock import Clock
from streamfleet.common.errors import SettingsError, StreamfleetError
from streamfleet.common.protocol import Lane, stream_ms
from streamfleet.common.settings import QueueSettings
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.errors import LIMITED, ApiError, retry_after
from streamfleet.gateway.queues import Queues
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.json_view import queue_object
from streamfleet.operator.rates import RateMeter
from streamfleet.operator.request_location import own_id
from streamfleet.operator.snapshot import NO_DEADLINE_MS, take_snapshot
from streamfleet.operator.texts import line, line_or_none
from streamfleet.producer.client import Client

REUSE_S = 1.0
SHOWN_NEXT = 5
MOST_BYTES = 1_048_576
"""Most bytes of next entries in one reading: an entry contains its body."""
MOST_HEADS, MOST_WORKERS = 512, 200


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
        self._heads: dict[str, dict[str, Any]] = {}

    async def read(self) -> dict[str, Any]:
        """Reads the queue, as the page shows it."""
        broker = await self._broker()
        snapshot = await take_snapshot(broker)
        ready = await broker.next_ready(SHOWN_NEXT)
        await self._read_heads(broker, ready)
        values = queue_object(snapshot, self._meter.add(snapshot))
        for lane in values["lanes"]:
            lane["next"] = [self._next(lane["lane"], *each, snapshot.now_ms) for each in ready.get(lane["lane"], ())]
        return values | {"workers": values["workers"][:MOST_WORKERS], "workers_total": len(snapshot.workers)}

    def _next(self, lane: Lane, stream_id: str, rank_ms: int, now_ms: int) -> dict[str, Any]:
        """An entry that runs soon, as far as its head was read."""
        entry = f"{lane}:{stream_id}"
        return {
            "entry": entry,
            "waited_s": max(0.0, (now_ms - stream_ms(stream_id)) / 1000),
            "left_s": None if rank_ms > NO_DEADLINE_MS else (rank_ms - now_ms) / 1000,
            **self._heads.get(entry, {"id": None, "tenant": None, "bytes": None}),
        }

    async def _read_heads(self, broker: OperatorBroker, ready: Mapping[Lane, Sequence[tuple[str, int]]]) -> None:
        """Read the heads that are not cached: an entry never changes."""
        size = 0
        for lane, some in ready.items():
            missing = [stream_id for stream_id, _ in some if f"{lane}:{stream_id}" not in self._heads]
            async for stream_id, fields in broker.entries_of(lane, missing):
                entry = f"{lane}:{stream_id}"
                self._heads[entry] = {
                    "id": line(own_id(entry, fields)),
                    "tenant": line_or_none(fields.get(b"tenant")),
                    "bytes": len(fields.get(b"body", b"")),
                }
                size += len(fields.get(b"body", b""))
                if size > MOST_BYTES:
                    break
        while len(self._heads) > MOST_HEADS:
            del self._heads[next(iter(self._heads))]


MOST_SEARCHES = 4
"""Searches at once: each may read megabytes from Redis."""
BUSY_S = 1


class UiSession:
    """The page's connections and readings. Sends nothing before somebody opens the page.

    Args:
        queue: Redis settings.
        settings: hold the page's own Redis URL, if it has one.
        clock: for the age of a reading.

    Raises:
        SettingsError: the page's Redis URL cannot be read.
    """

    def __init__(self, queue: QueueSettings, settings: GatewaySettings, clock: Clock) -> None:
        self._queues = Queues(ui_settings(queue, settings))
        self._clock = clock
        self._readings: dict[str, CachedReading] = {}
        self._searches = 0

    async def client(self, queue: str) -> Client:
        """Returns the page's own client of a queue. Raises BrokerUnavailable."""
        return await self._queues.client(queue)

    async def broker(self, queue: str) -> OperatorBroker:
        """Returns an operator's broker on that client's connection. Raises BrokerUnavailable."""
        return OperatorBroker.of((await self._queues.client(queue)).broker)

    def reading(self, queue: str) -> CachedReading:
        """Returns the reading of a queue that all viewers share."""
        if queue not in self._readings:
            self._readings[queue] = CachedReading(QueueReader(lambda: self.broker(queue)).read, self._clock)
        return self._readings[queue]

    @contextmanager
    def search_slot(self) -> Iterator[None]:
        """Holds one of the slots for searches.

        Raises:
            ApiError: all slots are taken.
        """
        if self._searches >= MOST_SEARCHES:
            text = "too many searches run at once; try again"
            raise ApiError(429, text, "searching", LIMITED, headers=retry_after(BUSY_S))
        self._searches += 1
        try:
            yield
        finally:
            self._searches -= 1

    async def close(self) -> None:
        """Close the page's connections."""
        await self._queues.close()


def ui_settings(queue: QueueSettings, settings: GatewaySettings) -> QueueSettings:
    """Returns the queue's settings with the page's own Redis URL, if there is one.

    Raises:
        SettingsError: the page's Redis URL cannot be parsed.
    """
    if not settings.gateway_ui_redis_url.get_secret_value():
        return queue
    separate = queue.model_copy(update={"redis_url": settings.gateway_ui_redis_url})
    try:
        OperatorBroker.open(separate)
    except SettingsError as error:
        raise SettingsError(f"STREAMFLEET_GATEWAY_UI_REDIS_URL: {error}") from None
    return separate
