"""Tokens from Redis: one blocking read of all streams that a client's readers follow, however many those are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from streamfleet.common.broker import Broker
from streamfleet.common.errors import BrokerUnavailable, ClientClosed, NotPermitted, StreamfleetError
from streamfleet.common.replies import id_order
from streamfleet.producer.follower import Entry

log = structlog.get_logger(__name__)
BLOCK_MS = 5_000
MOST_WAITING = 64
"""Entries that wait for one reader; its stream is not read on before it has taken them."""
ENTRIES_AT_ONCE, LEAST_AT_ONCE = 256, 4
PACE_S = 0.000_01
"""Seconds between two reads for each stream: of a thousand, one read then brings what came for many."""
UNBLOCKED_S = 0.01
QUIET_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class Feed:
    """What came of one request's tokens for one reader.

    Attributes:
        request_id: whose tokens.
        position: stream id of the newest entry that came.
        straight: is offered each entry in the moment in which it comes, while its reader waits and nothing else does;
            says whether it took it. What it raises, the reader is told.
    """

    def __init__(self, request_id: str, position: str, drained: Callable[[], None]) -> None:
        self.request_id, self.position = request_id, position
        self.straight: Callable[[Entry], bool] | None = None
        self._drained = drained
        self._entries: list[Entry] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._looks = 0

    @property
    def full(self) -> bool:
        return len(self._entries) >= MOST_WAITING

    async def come(self, *, however_long: bool = False) -> bool:
        """Wait until there is something to take; False when nothing has come for a while, one or two `QUIET_S`.

        Args:
            however_long: wait on in that case.
        """
        while not self._entries and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                if not await self._waiter and not however_long:
                    return False
            finally:
                self._waiter = None
        return True

    def take(self) -> list[Entry]:
        """What has come since. Raises why nothing more will come."""
        full, entries = self.full, self._entries
        self._entries = []
        if self._error is not None and not entries:
            raise self._error
        if full:
            self._drained()
        return entries

    def give(self, entries: list[Entry], behind: str) -> None:
        """All entries behind a stream id, in their order, as far as they go; those that came before are passed over."""
        fresh = entries
        if self.position != behind:
            order = id_order(self.position)
            if order < id_order(behind):  # it was opened while that was read, and would miss what stands before
                return
            fresh = [entry for entry in entries if id_order(entry[0]) > order]
        if fresh:
            self.position = fresh[-1][0]
            self._looks = 0
            self._entries += self._not_taken(fresh)
            if self._entries:
                self._wake(True)

    def fail(self, error: Exception) -> None:
        """Nothing more will come."""
        self._error = error
        self._wake(True)

    def look(self) -> None:
        """Time passes: a reader that has waited through two looks is told that it is quiet."""
        self._looks += 1
        if self._looks > 1:
            self._wake(False)

    def _not_taken(self, fresh: list[Entry]) -> list[Entry]:
        """What is left for the reader: what comes must not overtake what it has not taken or not dealt with yet."""
        if self.straight is None or self._waiter is None or self._waiter.done():
            return fresh
        taken = 0
        try:
            while taken < len(fresh) and self.straight(fresh[taken]):
                taken += 1
        except Exception as error:  # noqa: BLE001 - one reader's matter: the others are read on for
            self.fail(error)
            return []
        return fresh[taken:] if taken else fresh

    def _wake(self, some: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(some)


class Feeds:
    """All feeds of a client, read together over a connection of their own.

    Args:
        open_broker: makes the broker that they are read with, without patience; called at the first use.
    """

    def __init__(self, open_broker: Callable[[], Broker]) -> None:
        self._open_broker = open_broker
        self._broker: Broker | None = None
        self._reading: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._feeds: dict[str, list[Feed]] = {}
        self._changed = asyncio.Event()
        self._may_unblock = True
        self._pause_s = 0.0

    def open(self, request_id: str, position: str) -> Feed:
        """A feed of what stands behind a stream id, and of what comes."""
        feed = Feed(request_id, position, self._changed.set)
        self._feeds.setdefault(request_id, []).append(feed)
        self._changed.set()
        if self._reading is None or self._reading.done():
            self._broker = self._broker or self._open_broker()
            self._reading = asyncio.get_running_loop().create_task(self._read_forever(self._broker))
        if self._looking is None:
            self._look()
        return feed

    def leave(self, feed: Feed) -> None:
        """A reader goes; its feed gets nothing more."""
        feeds = self._feeds.get(feed.request_id, [])
        if feed in feeds:
            feeds.remove(feed)
        if not feeds:
            self._feeds.pop(feed.request_id, None)

    def _look(self) -> None:
        """One timer for all: one for each wait of each reader would cost as much as the reading."""
        self._looking = None
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.look()
        if self._feeds:
            self._looking = asyncio.get_running_loop().call_later(QUIET_S, self._look)

    async def close(self) -> None:
        """Stop reading; whoever still reads gets ClientClosed at once."""
        self._fail_all(ClientClosed("the client was closed while this was streamed; the request goes on"))
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})
        if self._looking is not None:
            self._looking.cancel()
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.close()

    async def _read_forever(self, broker: Broker) -> None:
        while True:
            self._changed.clear()
            positions = self._positions()
            if not positions:
                await self._changed.wait()
                continue
            try:
                found = await self._read(broker, positions)
            except BrokerUnavailable as error:
                await self._wait_out(broker, error)
                continue
            except Exception as error:  # noqa: BLE001 - whoever reads is told; the next one tries again
                self._fail_all(error)
                continue
            self._pause_s = 0.0
            for request_id, entries in found.items():
                for feed in self._feeds.get(request_id, ()):
                    feed.give(entries, positions[request_id])
            if found:
                await asyncio.sleep(PACE_S * len(positions))

    def _positions(self) -> dict[str, str]:
        """Where to read on, for each request that a reader has room for more of."""
        wanted = {}
        for request_id, feeds in self._feeds.items():
            if len(feeds) == 1:  # nearly always, and there may be thousands
                if not feeds[0].full:
                    wanted[request_id] = feeds[0].position
            elif hungry := [feed.position for feed in feeds if not feed.full]:
                wanted[request_id] = min(hungry, key=id_order)
        return wanted

    async def _read(self, broker: Broker, positions: Mapping[str, str]) -> dict[str, list[Entry]]:
        """What came, or nothing as soon as other streams are to be read."""
        most = max(LEAST_AT_ONCE, ENTRIES_AT_ONCE // len(positions))
        reading = asyncio.ensure_future(broker.read_tokens(positions, most, BLOCK_MS))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({reading, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():  # it may end by itself, and each interruption costs another read
                await asyncio.wait({reading}, timeout=PACE_S * len(positions))
            while not reading.done():
                await self._interrupt(broker, reading)
            return {} if reading.cancelled() else reading.result()
        finally:
            changed.cancel()
            if not reading.done():
                reading.cancel()
                await asyncio.wait({reading})

    async def _interrupt(self, broker: Broker, reading: asyncio.Future[dict[str, list[Entry]]]) -> None:
        """End the blocking read; what it was just being given comes with it, or with the next one."""
        if self._may_unblock:
            try:
                await broker.unblock()
                await asyncio.wait({reading}, timeout=UNBLOCKED_S)
                return
            except NotPermitted:  # a producer's role: then its connection is given up instead
                self._may_unblock = False
            except StreamfleetError as error:
                log.debug("tokens_not_unblocked", error=str(error))
        reading.cancel()
        await asyncio.wait({reading})

    async def _wait_out(self, broker: Broker, error: BrokerUnavailable) -> None:
        """Redis is away, or one stream cannot be read: that one's readers are told, so that the others read on."""
        if not self._pause_s:
            log.warning("waiting_for_redis", address=broker.connection.address, reason=str(error))
        for request_id in list(self._feeds):
            try:
                await broker.read_tokens({request_id: self._feeds[request_id][0].position}, 1)
            except BrokerUnavailable:
                break
            except Exception as refusal:  # noqa: BLE001 - whatever is wrong with it is its readers' matter
                text = f"the tokens of request {request_id} cannot be read: {type(refusal).__name__}: {refusal}"
                self._fail(request_id, StreamfleetError(text))
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause_s * 2))
        await asyncio.sleep(self._pause_s)

    def _fail(self, request_id: str, error: Exception) -> None:
        for feed in self._feeds.pop(request_id, []):
            feed.fail(error)

    def _fail_all(self, error: Exception) -> None:
        for request_id in list(self._feeds):
            self._fail(request_id, error)
