"""Runs many requests with a bounded number outstanding; each is read from its source when there is room.

`Window` splits the source into script calls, and holds back requests that a full lane refused. `streamfleet batch` runs
a file through it; `Run` runs an iterable for `Client.run_many` and `Client.stream_many`. A `Run` has no loop of its
own: the client calls its steps, so `SyncClient` can read the caller's iterable in the caller's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from streamfleet.common.broker.types import Submission
from streamfleet.common.errors import InvalidRequest, RequestLost
from streamfleet.producer.ask import Ask
from streamfleet.producer.handle import Handle
from streamfleet.producer.sender import MAX_BYTES, MAX_COUNT, Outcome, conflict, size

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
TICK_S = 0.5
"""Seconds after which a full lane is tried again."""
Submit: TypeAlias = Callable[[Sequence[Submission]], Awaitable[list[Outcome]]]
Asks: TypeAlias = Iterable[Ask | Mapping[str, object]]
AsyncAsks: TypeAlias = AsyncIterable[Ask | Mapping[str, object]]


class Waiting(Protocol[R_co]):
    """A set of awaited requests: `Arrivals` or `Streams`."""

    def add(self, handles: Iterable[Handle]) -> None: ...

    def __len__(self) -> int: ...

    async def take(self, timeout: float | None = None) -> Sequence[R_co | RequestLost]: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


class Window(Generic[T]):
    """Enqueues requests, within a bound on the number outstanding.

    Args:
        submit: sends one call, as `Client.submit`.
        waiting: gets the handles of accepted requests.
        most: largest number of outstanding requests.
        following: returns the caller's own value and the next request; None if there is none now.

    Attributes:
        lane_full: a full lane refused requests of the last call, which are held back.
    """

    def __init__(
        self, submit: Submit, waiting: Waiting[object], most: int, following: Callable[[], tuple[T, Submission] | None]
    ) -> None:
        self._submit, self._waiting, self._most, self._following = submit, waiting, most, following
        self._held: deque[tuple[T, Submission]] = deque()
        self.lane_full = False

    @property
    def holds(self) -> bool:
        """True if requests were read from the source and are not enqueued yet."""
        return bool(self._held)

    def chunk(self) -> list[tuple[T, Submission]]:
        """The requests of the next call, within the room, the bounds of a call, and the source."""
        chunk: list[tuple[T, Submission]] = []
        filled = 0
        while len(chunk) < min(self._most - len(self._waiting), MAX_COUNT):
            request = self._held.popleft() if self._held else self._following()
            if request is None:
                break
            filled += size(request[1])
            if chunk and filled > MAX_BYTES:
                self._held.appendleft(request)
                break
            chunk.append(request)
        return chunk

    async def submit(self, chunk: Sequence[tuple[T, Submission]]) -> list[tuple[T, Handle | None]]:
        """Enqueue requests. Those that a full lane refused are held back; the others are returned.

        Returns:
            The caller's value and the handle of each; None if the id belongs to another request.
        """
        outcomes = await self._submit([submission for _, submission in chunk])
        put_in: list[tuple[T, Handle | None]] = []
        full: list[tuple[T, Submission]] = []
        for request, (handle, code) in zip(chunk, outcomes, strict=True):
            if code.full:
                full.append(request)
            else:
                put_in.append((request[0], handle))
        self._held.extendleft(reversed(full))
        self.lane_full = bool(full)
        self._waiting.add(handle for _, handle in put_in if handle is not None)
        return put_in


class Run(Generic[R]):
    """One `Client.run_many` or `Client.stream_many`.

    If the source fails, or one of its requests is refused, nothing more is read from it; the error is raised after all
    enqueued requests have ended.

    Args:
        submit: sends one call, as `Client.submit`.
        waiting: set of awaited requests.
        asks: the requests.
        concurrency: largest number of outstanding requests.
        prepare: checks and encodes a request.

    Raises:
        InvalidRequest: `concurrency` is not a whole number above 0.
    """

    def __init__(
        self,
        submit: Submit,
        waiting: Waiting[R],
        asks: Asks | AsyncAsks,
        concurrency: int,
        prepare: Callable[[object], Submission],
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise InvalidRequest(f"must be a whole number above 0, not {concurrency!r}", "concurrency")
        self._waiting, self._prepare = waiting, prepare
        self._window: Window[str] = Window(submit, waiting, concurrency, self._following)
        self._source: Iterator[object] | _ReadAhead = (
            _ReadAhead(asks, min(concurrency, MAX_COUNT), waiting.wake)
            if isinstance(asks, AsyncIterable)
            else iter(asks)
        )
        self._number = 0
        self._ended = False
        self._error: Exception | None = None
        self._lost: list[str] = []
        self._full = False

    @property
    def over(self) -> bool:
        """True if all requests were enqueued and have ended. Raises the source's error, and RequestLost."""
        if len(self._waiting) or self._window.holds or not self._ended:
            return False
        lost = RequestLost(*dict.fromkeys(self._lost)) if self._lost else None
        if self._error is not None:
            raise self._error from lost
        if lost is not None:
            raise lost
        return True

    def chunk(self) -> list[tuple[str, Submission]]:
        """Requests to `submit` next; empty when `take` is next."""
        return [] if self._full else self._window.chunk()

    async def submit(self, chunk: Sequence[tuple[str, Submission]]) -> None:
        for request_id, handle in await self._window.submit(chunk):
            if handle is None:
                self._end(conflict(request_id))
        self._full = self._window.lane_full

    async def take(self) -> list[R]:
        """Wait for results; empty when `chunk` is next."""
        came = await self._waiting.take(TICK_S if self._full else None)
        self._full = False
        self._lost += [each.id for each in came if isinstance(each, RequestLost)]
        return [each for each in came if not isinstance(each, RequestLost)]

    async def close(self) -> None:
        """Stop waiting; enqueued requests continue."""
        if isinstance(self._source, _ReadAhead):
            self._source.close()
        self._waiting.close()

    def _following(self) -> tuple[str, Submission] | None:
        if self._ended:
            return None
        self._number += 1
        try:
            ask = next(self._source)
            if ask is None and isinstance(self._source, _ReadAhead):
                self._number -= 1
                return None
            submission = self._prepare(ask)
        except StopIteration:
            self._end(None)
        except InvalidRequest as error:
            self._end(InvalidRequest(f"{error.message} (request {self._number})", error.param, error.code))
        except Exception as error:  # noqa: BLE001 - the caller's iterable: raised to the caller after all results
            self._end(error)
        else:
            return submission.id, submission
        return None

    def _end(self, error: Exception | None) -> None:
        self._ended = True
        self._error = self._error or error


class _ReadAhead:
    """Reads an asynchronous iterable in a separate task, so that results need not wait for it.

    Args:
        asks: the iterable.
        most: largest number of items to read ahead.
        wake: called at a new item, and at the end.
    """

    def __init__(self, asks: AsyncAsks, most: int, wake: Callable[[], None]) -> None:
        self._asks, self._most, self._wake = asks, most, wake
        self._read: deque[object] = deque()
        self._taken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __next__(self) -> object | None:
        """The next item; None while there is none."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read_on())
            self._task.add_done_callback(lambda _: self._wake())
        self._taken.set()
        if self._read:
            return self._read.popleft()
        if self._task.done():
            self._task.result()
            raise StopIteration
        return None

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _read_on(self) -> None:
        async for ask in self._asks:
            self._read.append(ask)
            self._wake()
            while len(self._read) >= self._most:
                self._taken.clear()
                await self._taken.wait()
