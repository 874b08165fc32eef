"""The client for scripts and services without an event loop: the asynchronous one on a background thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from streamfleet.common.errors import NotReplicated, StreamfleetError
from streamfleet.common.results import Result
from streamfleet.common.settings import QueueSettings
from streamfleet.producer.ask import Ask, Options
from streamfleet.producer.client import Client
from streamfleet.producer.events import Chunk, Event, Restarts
from streamfleet.producer.handle import Handle
from streamfleet.producer.status import StatusView
from streamfleet.producer.streaming import check_restarts, checked

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SyncHandle:
    """One request: `Handle` without await. Attributes, arguments and errors are the same."""

    handle: Handle
    client: SyncClient = field(repr=False)

    @property
    def id(self) -> str:
        return self.handle.id

    @property
    def existing(self) -> bool:
        return self.handle.existing

    @property
    def entry(self) -> str:
        return self.handle.entry

    def result(self, timeout: float | None = None) -> Result:
        return self.client._run(self.handle.result(timeout))  # noqa: SLF001 - the other half of one class

    @overload
    def stream(self, after: str | None = None, restarts: Literal["raise"] = "raise") -> Iterator[Chunk]: ...

    @overload
    def stream(self, after: str | None = None, *, restarts: Literal["tell"]) -> Iterator[Event]: ...

    @overload
    def stream(self, after: str | None = None, restarts: Restarts = "raise") -> Iterator[Event]: ...

    def stream(self, after: str | None = None, restarts: Restarts = "raise") -> Iterator[Event]:
        """As `Handle.stream`."""
        return self.client._stream(self.handle, after, restarts)  # noqa: SLF001 - the other half of one class

    def cancel(self) -> bool:
        return self.client.cancel(self.id)

    def status(self) -> StatusView:
        return self.client.status(self.id)


class SyncClient:
    """`Client` without await: same names, arguments and errors; safe to share between threads.

    Opens at its first use, or as a context manager. In a server that forks, use it first after the fork.

    Args:
        url, queue, settings, patience_s, notify: as `Client`.
    """

    def __init__(
        self,
        url: str | None = None,
        queue: str | None = None,
        *,
        settings: QueueSettings | None = None,
        patience_s: float | None = 5.0,
        notify: bool = True,
    ) -> None:
        self._client = Client(url, queue, settings=settings, patience_s=patience_s, notify=notify)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connect, if that was not done yet.

        Raises:
            BrokerUnavailable: nobody answers at the address.
        """
        with self._lock:
            if self._loop is not None:
                return
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="streamfleet-client", daemon=True)
            thread.start()
            try:
                _result_of(self._client.__aenter__(), loop)
            except BaseException:
                _stop(loop, thread)
                raise
            self._loop, self._thread = loop, thread

    def close(self) -> None:
        """Leave; requests that were enqueued go on. A later use opens it again."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            try:
                _result_of(self._client.close(), loop)
            finally:
                _stop(loop, thread)

    def enqueue(self, body: Mapping[str, Any], **options: Unpack[Options]) -> SyncHandle:
        """As `Client.enqueue`."""
        with self._our_handles():
            return SyncHandle(self._run(self._client.enqueue(body, **options)), self)

    def enqueue_many(self, asks: Iterable[Ask | Mapping[str, Any]]) -> list[SyncHandle]:
        """As `Client.enqueue_many`."""
        with self._our_handles():
            return [SyncHandle(handle, self) for handle in self._run(self._client.enqueue_many(list(asks)))]

    def as_completed(self, handles: Iterable[SyncHandle], timeout: float | None = None) -> Iterator[Result]:
        """As `Client.as_completed`."""
        # In groups: each crossing between the threads costs more than all else about a result.
        groups = self._client._groups([handle.handle for handle in handles], timeout)  # noqa: SLF001
        try:
            while (results := self._run(_next(groups))) is not None:
                yield from results
        finally:
            self._run(_close(groups))

    @overload
    def stream(
        self, request_id: str, after: str | None = None, restarts: Literal["raise"] = "raise"
    ) -> Iterator[Chunk]: ...

    @overload
    def stream(self, request_id: str, after: str | None = None, *, restarts: Literal["tell"]) -> Iterator[Event]: ...

    @overload
    def stream(self, request_id: str, after: str | None = None, restarts: Restarts = "raise") -> Iterator[Event]: ...

    def stream(self, request_id: str, after: str | None = None, restarts: Restarts = "raise") -> Iterator[Event]:
        """As `Client.stream`."""
        self.open()
        return self._stream(self._client.handle(request_id), after, restarts)

    def _stream(self, handle: Handle, after: str | None, restarts: Restarts) -> Iterator[Event]:
        check_restarts(restarts)
        groups = self._client.reading(handle, after).events()
        return self._each(groups, handle.id, restarts)

    def _each(self, groups: AsyncGenerator[list[Event], None], request_id: str, restarts: Restarts) -> Iterator[Event]:
        try:
            while (events := self._run(_next(groups))) is not None:
                yield from checked(events, request_id, restarts)
        finally:
            self._run(_close(groups))

    def result(self, request_id: str, timeout: float | None = None) -> Result:
        """As `Client.result`."""
        return self._run(self._client.result(request_id, timeout))

    def cancel(self, request_id: str) -> bool:
        """As `Client.cancel`."""
        return self._run(self._client.cancel(request_id))

    def status(self, request_id: str) -> StatusView:
        """As `Client.status`."""
        return self._run(self._client.status(request_id))

    @contextlib.contextmanager
    def _our_handles(self) -> Iterator[None]:
        """In the errors too."""
        try:
            yield
        except StreamfleetError as error:
            error.accepted = [SyncHandle(handle, self) for handle in error.accepted]
            if isinstance(error, NotReplicated):
                error.unconfirmed = [SyncHandle(handle, self) for handle in error.unconfirmed]
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self.open()
        except BaseException:
            work.close()
            raise
        loop = self._loop
        if loop is None:
            work.close()
            raise RuntimeError("the client was closed by another thread")
        return _result_of(work, loop)


def _result_of(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        # Ctrl-C in the calling thread: the background thread must not go on for nobody.
        future.cancel()
        raise


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _next(groups: AsyncGenerator[list[T], None]) -> list[T] | None:
    return await anext(groups, None)


async def _close(groups: AsyncGenerator[list[T], None]) -> None:
    await groups.aclose()
