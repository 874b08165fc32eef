"""Reads tokens from Redis: one blocking read covers all token streams that a client's readers follow.

Entries go from the read into one `Feed` per reader; a full feed pauses the reading of its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.errors import BrokerUnavailable, ClientClosed, NotPermitted, StreamfleetError
from streamfleet.common.logs import Logger
from streamfleet.common.replies import id_order
from streamfleet.producer.follower import Entry

log = Logger(__name__)
BLOCK_MS = 5_000
MOST_WAITING = 64
"""Largest number of entries that wait for one reader; its stream is not read further until it takes them."""
ENTRIES_AT_ONCE, LEAST_AT_ONCE = 256, 4
PACE_S = 0.000_01
"""Pause between two reads, in seconds per stream, so that one read brings entries of many streams."""
UNBLOCKED_S = 0.01
QUIET_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class Feed:
    """New entries of one request's tokens, for one reader.

    Attributes:
        request_id: id of the request.
        position: stream id of the newest entry that was read.
        straight: callback that is offered each new entry at once, while the reader waits and no other entry does; it
            returns True if it took the entry. Its errors are raised to the reader.
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
        """Wait for entries; False if none has come for one or two `QUIET_S`.

        Args:
            however_long: wait without that limit.
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
        """Take the new entries. Raises the error that ended the feed."""
        full, entries = self.full, self._entries
        self._entries = []
        if self._error is not None and not entries:
            raise self._error
        if full:
            self._drained()
        return entries

    def give(self, entries: list[Entry], behind: str) -> None:
        """Accept entries read after the stream id `behind`, in order; entries that came before are skipped."""
        fresh = entries
        if self.position != behind:
            order = id_order(self.position)
            if order < id_order(behind):  # the feed was opened during this read, and would miss the entries before
                return
            fresh = [entry for entry in entries if id_order(entry[0]) > order]
        if fresh:
            self.position = fresh[-1][0]
            self._looks = 0
            self._entries += self._not_taken(fresh)
            if self._entries:
                self._wake(True)

    def fail(self, error: Exception) -> None:
        """End the feed with an error."""
        self._error = error
        self._wake(True)

    def look(self) -> None:
        """Timer tick: a reader that has waited for two ticks is woken without entries."""
        self._looks += 1
        if self._looks > 1:
            self._wake(False)

    def _not_taken(self, fresh: list[Entry]) -> list[Entry]:
        """Entries left after `straight`, which gets none while the reader has earlier ones: the order must be kept."""
        if self.straight is None or self._waiter is None or self._waiter.done():
            return fresh
        taken = 0
        try:
            while taken < len(fresh) and self.straight(fresh[taken]):
                taken += 1
        except Exception as error:  # noqa: BLE001 - told to this reader; the others continue
            self.fail(error)
            return []
        return fresh[taken:] if taken else fresh

    def _wake(self, some: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(some)


class Feeds:
    """All feeds of a client, read together over one separate connection.

    Args:
        open_broker: creates the broker for the reads, without patience; called at the first use.
    """

    def __init__(self, open_broker: Callable[[], ProducerBroker]) -> None:
        self._open_broker = open_broker
        self._broker: ProducerBroker | None = None
        self._reading: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._feeds: dict[str, list[Feed]] = {}
        self._changed = asyncio.Event()
        self._may_unblock = True
        self._pause_s = 0.0

    def open(self, request_id: str, position: str) -> Feed:
        """Open a feed of all entries after a stream id, existing and new."""
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
        """Remove a reader's feed."""
        feeds = self._feeds.get(feed.request_id, [])
        if feed in feeds:
            feeds.remove(feed)
        if not feeds:
            self._feeds.pop(feed.request_id, None)

    def _look(self) -> None:
        """Tick all feeds. One timer serves all, because a timer per wait would cost as much as the reading."""
        self._looking = None
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.look()
        if self._feeds:
            self._looking = asyncio.get_running_loop().call_later(QUIET_S, self._look)

    async def close(self) -> None:
        """Stop reading; the remaining readers get ClientClosed at once."""
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

    async def _read_forever(self, broker: ProducerBroker) -> None:
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
            except Exception as error:  # noqa: BLE001 - told to the readers; the next reader tries again
                self._fail_all(error)
                continue
            self._pause_s = 0.0
            for request_id, entries in found.items():
                for feed in self._feeds.get(request_id, ()):
                    feed.give(entries, positions[request_id])
            if found:
                await asyncio.sleep(PACE_S * len(positions))

    def _positions(self) -> dict[str, str]:
        """Position to continue from, for each request whose reader has room."""
        wanted = {}
        for request_id, feeds in self._feeds.items():
            if len(feeds) == 1:  # fast path of the usual case
                if not feeds[0].full:
                    wanted[request_id] = feeds[0].position
            elif hungry := [feed.position for feed in feeds if not feed.full]:
                wanted[request_id] = min(hungry, key=id_order)
        return wanted

    async def _read(self, broker: ProducerBroker, positions: Mapping[str, str]) -> dict[str, list[Entry]]:
        """New entries; empty as soon as the set of streams changes."""
        most = max(LEAST_AT_ONCE, ENTRIES_AT_ONCE // len(positions))
        reading = asyncio.ensure_future(broker.read_tokens(positions, most, BLOCK_MS))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({reading, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():  # it may end by itself; each interruption costs another read
                await asyncio.wait({reading}, timeout=PACE_S * len(positions))
            while not reading.done():
                await self._interrupt(broker, reading)
            return {} if reading.cancelled() else reading.result()
        finally:
            changed.cancel()
            if not reading.done():
                reading.cancel()
                await asyncio.wait({reading})

    async def _interrupt(self, broker: ProducerBroker, reading: asyncio.Future[dict[str, list[Entry]]]) -> None:
        """End the blocking read; entries on their way arrive with it, or with the next read."""
        if self._may_unblock:
            try:
                await broker.connection.unblock()
                await asyncio.wait({reading}, timeout=UNBLOCKED_S)
                return
            except NotPermitted:  # a producer's role: close the connection instead
                self._may_unblock = False
            except StreamfleetError as error:
                log.debug("tokens_not_unblocked", error=str(error))
        reading.cancel()
        await asyncio.wait({reading})

    async def _wait_out(self, broker: ProducerBroker, error: BrokerUnavailable) -> None:
        """Pause after a failed read. If one stream cannot be read, its readers get the error; the others continue."""
        if not self._pause_s:
            log.warning("waiting_for_redis", address=broker.connection.address, reason=str(error))
        for request_id in list(self._feeds):
            try:
                await broker.read_tokens({request_id: self._feeds[request_id][0].position}, 1)
            except BrokerUnavailable:
                break
            except Exception as refusal:  # noqa: BLE001 - told to this stream's readers
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
