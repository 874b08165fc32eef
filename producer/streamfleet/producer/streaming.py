"""Streams a request's tokens as they are generated; implements `Handle.stream` and `Client.stream`.

    async for chunk in (await fleet.enqueue(body, stream=True)).stream():
        print(chunk.text, end="")

Tokens are an early view; the result is authoritative. It is read if the last entry reports a failure, and if no tokens
have come for a while, because the last entry may be lost, or the request was never streamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.errors import (
    BrokerUnavailable,
    InvalidRequest,
    RequestFailed,
    RequestLost,
    ResultTimeout,
    StreamfleetError,
)
from streamfleet.common.protocol import Status
from streamfleet.common.results import Result
from streamfleet.producer.events import Chunk, Event, Missed, Restarted, Restarts, StreamBroken
from streamfleet.producer.feeds import Feed, Feeds
from streamfleet.producer.follower import BEGINNING, Entry, Follower, Place, ending_of, newest_run, place_of
from streamfleet.producer.handle import Handle
from streamfleet.producer.mailbox import Mailbox

__all__ = ["Chunk", "Event", "Missed", "Restarted", "Restarts", "StreamBroken"]

T = TypeVar("T")
RESULT_S = 10.0
NEWEST, AT_ONCE = 32, 256
MOST_UNREAD = 1_000
"""Largest number of unread items of all requests of `Streams` together; more tokens wait in Redis."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class Reading:
    """One reader of one request's tokens.

    Args:
        broker: the queue.
        feeds: source of tokens.
        mailbox: source of results.
        handle: the request.
        after: id of the last chunk that the reader has, or its number of chunks of the first run; None to start at the
            beginning.
        fresh: the request was just enqueued, so there is no earlier run to skip.

    Raises:
        InvalidRequest: `after` is not a chunk's id.
    """

    def __init__(
        self,
        broker: ProducerBroker,
        feeds: Feeds,
        mailbox: Mailbox,
        handle: Handle,
        after: str | int | None,
        *,
        fresh: bool = False,
    ) -> None:
        self._broker, self._feeds, self._mailbox, self._handle = broker, feeds, mailbox, handle
        self._fresh = fresh
        self._after = after if isinstance(after, int | None) else place_of(after)
        self._follower: Follower | None = None
        self._feed: Feed | None = None

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Yield events in order, in groups that arrived together, until the request has succeeded.

        Raises:
            RequestFailed: it ended in any other way.
            RequestLost: Redis lost it.
            ClientClosed: the client was closed, before or meanwhile.
        """
        self._mailbox.check()
        follower, position = await self._begin()
        feed = self._feeds.open(self._handle.id, position)
        self._follower, self._feed = follower, feed
        result: Result | None = None
        try:
            while follower.ending is None:
                self._mailbox.check()  # a feed inherited by a fork gets nothing
                if not await feed.come():
                    result = await self._result_or_tokens(feed)
                if result is not None:
                    break
                events = [event for entry in feed.take() for event in follower.read(*entry)]
                if events:
                    yield events
        finally:
            self._feeds.leave(feed)
        if result is not None:
            events = await self._rest(feed, follower, result)
            if events:
                yield events
        if follower.ending is not None and follower.ending.status != Status.SUCCEEDED:
            (result or await self._result(follower.ending.status)).raise_for_status()

    def straight(self, ready: Callable[[], bool], take: Callable[[str, list[str]], None]) -> None:
        """Forward in-order chunks immediately, for thousands of readers in one process.

        Only chunks that continue the run are forwarded, and only while the caller awaits `events`, which yields
        everything else in order.

        Args:
            ready: returns True if chunks can be taken now.
            take: called with the stream id of a group, and its chunks as JSON. `events` raises the errors of both.

        Raises:
            RuntimeError: `events` has not yielded yet.
        """
        follower = self._follower
        if follower is None or self._feed is None:
            raise RuntimeError("chunks can be handed over once events have come")

        def on_entry(entry: Entry) -> bool:
            chunks = follower.goes_on(entry[1]) if ready() else None
            if chunks is not None:
                take(entry[0], chunks)
            return chunks is not None

        self._feed.straight = on_entry

    async def _begin(self) -> tuple[Follower, str]:
        """The follower, and the stream id to read after."""
        if isinstance(self._after, Place):
            return Follower(self._after), self._after.before
        if self._fresh:
            return Follower(), BEGINNING
        newest = await self._waited_out(lambda: self._broker.newest_tokens(self._handle.id, NEWEST))
        return Follower(self._after, newest_run(newest)), BEGINNING

    async def _result_or_tokens(self, feed: Feed) -> Result | None:
        """Wait for the result or tokens; None if tokens come first. Raises RequestLost."""
        future = self._mailbox.join(self._handle.slot)
        coming = asyncio.ensure_future(feed.come(however_long=True))
        either: set[asyncio.Future[Any]] = {future, coming}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._mailbox.leave(self._handle.slot)
            coming.cancel()
        return future.result() if future.done() else None

    async def _rest(self, feed: Feed, follower: Follower, result: Result) -> list[Event]:
        """Read the remaining tokens of an ended request, to which none are added any more."""
        entries, events = feed.take(), []
        while True:
            events += [event for entry in entries for event in follower.read(*entry)]
            behind = {self._handle.id: entries[-1][0] if entries else feed.position}
            if follower.ending is not None:
                return events
            found = await self._waited_out(lambda behind=behind: self._broker.read_tokens(behind, AT_ONCE))  # type: ignore[misc]
            entries = found.get(self._handle.id, [])
            if not entries:
                return events + follower.end(ending_of(result))

    async def _result(self, status: str) -> Result:
        try:
            return await self._mailbox.wait(self._handle.slot, RESULT_S)
        except ResultTimeout:
            raise RequestFailed(self._handle.id, status, {"message": "its result is gone"}) from None

    async def _waited_out(self, work: Callable[[], Awaitable[T]]) -> T:
        """Result of `work`, retried while Redis cannot be reached."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await work()
            except BrokerUnavailable:
                await self._broker.connection.rest(pause_s)
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


class Streams:
    """Tokens and results of a growing set of requests, taken as they arrive; as `Arrivals`, with tokens.

    Args:
        read: creates the reader of a request's tokens.
    """

    def __init__(self, read: Callable[[Handle], Reading]) -> None:
        self._read = read
        self._tasks: set[asyncio.Task[None]] = set()
        self._unread: list[tuple[str, Event | Result] | RequestLost] = []
        self._error: BaseException | None = None
        self._left = 0
        self._some, self._room = asyncio.Event(), asyncio.Event()

    def add(self, handles: Iterable[Handle]) -> None:
        """Add requests to follow."""
        for handle in handles:
            self._left += 1
            task = asyncio.get_running_loop().create_task(self._follow(handle))
            self._tasks.add(task)
            task.add_done_callback(self._followed)

    def __len__(self) -> int:
        """Number of requests whose result has not been taken yet."""
        return self._left

    def wake(self) -> None:
        """As `Arrivals.wake`."""
        self._some.set()

    async def take(self, timeout: float | None = None) -> Sequence[tuple[str, Event | Result] | RequestLost]:
        """Wait for events and results, each request's result last; empty after `timeout` seconds, or `wake`.

        Raises:
            ClientClosed, SettingsError: as `Arrivals.take`.
        """
        if not self._unread and self._error is None:
            self._some.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._some.wait()
        if self._error is not None:
            raise self._error
        came, self._unread = self._unread, []
        self._room.set()
        self._left -= sum(isinstance(each, RequestLost) or isinstance(each[1], Result) for each in came)
        return came

    def close(self) -> None:
        """Stop following all requests."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, handle: Handle) -> None:
        # Errors of the tokens are ignored, because the result, or its error, is authoritative.
        with suppress(StreamfleetError):
            async with aclosing(self._read(handle).events()) as groups:
                async for events in groups:
                    await self._give([(handle.id, event) for event in events])
        try:
            await self._give([(handle.id, await handle.result())])
        except RequestLost as lost:
            await self._give([lost])

    async def _give(self, items: Sequence[tuple[str, Event | Result] | RequestLost]) -> None:
        while len(self._unread) >= MOST_UNREAD:
            self._room.clear()
            await self._room.wait()
        self._unread += items
        self._some.set()

    def _followed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            self._some.set()


async def stream(reading: Reading, request_id: str, restarts: Restarts) -> AsyncGenerator[Event, None]:
    """Yield a reader's events one by one."""
    async with aclosing(reading.events()) as groups:
        async for events in groups:
            for event in checked(events, request_id, restarts):
                yield event


def check_restarts(restarts: object) -> None:
    """Raise InvalidRequest unless the value is one of `Restarts`."""
    if restarts not in ("raise", "tell"):
        raise InvalidRequest(f"must be 'raise' or 'tell', not {restarts!r}", "restarts")


def checked(events: Iterable[Event], request_id: str, restarts: Restarts) -> Iterator[Event]:
    """Yield the events; raise at a restart or gap if `restarts` is ``raise``.

    Raises:
        StreamBroken: a restart or a gap.
    """
    for event in events:
        if restarts == "raise" and not isinstance(event, Chunk):
            raise StreamBroken(request_id, event)
        yield event
