"""The client for scripts and services without an event loop: runs the asynchronous client on a background thread.

Each opening has a `Client` and a thread of its own. `close` cancels that thread's main task, which closes
the client and ends all calls. One lock guards `close` and the passing of calls, so no call goes to a thread that ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from streamfleet.common.errors import ClientClosed, NotReplicated, StreamfleetError
from streamfleet.common.results import Result
from streamfleet.common.settings_queue import QueueSettings
from streamfleet.producer.ask import Ask, Options
from streamfleet.producer.client import Client
from streamfleet.producer.events import Chunk, Event, Restarts
from streamfleet.producer.handle import Handle
from streamfleet.producer.status import StatusView
from streamfleet.producer.streaming import check_restarts, checked
from streamfleet.producer.window import Asks, Run

T = TypeVar("T")
CLOSED_MEANWHILE = "the client was closed by another thread"


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
        return self.client.status(self.id, self.handle.tenant, self.handle.rank_ms)


class SyncClient:
    """`Client` without await: same names, arguments and errors; safe to share between threads.

    It opens at its first use, or as a context manager. After it is closed, every call raises ClientClosed until `open`
    or `with` opens it again. A server that forks its workers must use it only after the fork: in a process that was
    forked while it was open, every call raises ClientClosed.

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
        self._lock = threading.RLock()  # reentrant: a generator may be collected while its thread holds the lock
        self._closed = False
        self._background: _Background | None = None
        self._process = os.getpid()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connect, unless connected.

        Raises:
            BrokerUnavailable: no server answers at the address.
            ClientClosed: it was closed meanwhile, or opened by the process that forked this one.
        """
        self._opened(again=True)

    def close(self) -> None:
        """Close the client; enqueued requests continue.

        Calls in progress in other threads end with ClientClosed at once; its docstring tells about requests that were
        just being enqueued. Only `open` or `with` opens the client again. In a forked process this does nothing.
        """
        if self._inherited:
            return
        with self._lock:
            background, self._background, self._closed = self._background, None, True
        if background is not None:
            background.stop()

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
        # In groups, because each crossing between the threads costs more than the rest of a result.
        groups = self._client._groups([handle.handle for handle in handles], timeout)  # noqa: SLF001
        try:
            while (results := self._run(_next(groups))) is not None:
                yield from results
        finally:
            self._leave(lambda: _close(groups))

    def run_many(self, asks: Asks, concurrency: int = 100) -> Iterator[Result]:
        """As `Client.run_many`. The calling thread iterates over `asks`."""
        self._opened()
        yield from self._each_of(self._client.run(asks, concurrency))

    def stream_many(self, asks: Asks, concurrency: int = 100) -> Iterator[tuple[str, Event | Result]]:
        """As `Client.stream_many`. The calling thread iterates over `asks`."""
        self._opened()
        yield from self._each_of(self._client.streaming_run(asks, concurrency))

    def _each_of(self, run: Run[T]) -> Iterator[T]:
        came: list[T] = []
        try:
            while True:
                while chunk := run.chunk():
                    self._run(run.submit(chunk))
                yield from came
                if run.over:
                    return
                came = self._run(run.take())
        finally:
            self._leave(run.close)

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
        self._opened()
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
            self._leave(lambda: _close(groups))

    def result(self, request_id: str, timeout: float | None = None) -> Result:
        """As `Client.result`."""
        return self._run(self._client.result(request_id, timeout))

    def cancel(self, request_id: str, before_it_comes: timedelta | None = None) -> bool:
        """As `Client.cancel`."""
        return self._run(self._client.cancel(request_id, before_it_comes))

    def status(self, request_id: str, tenant: str | None = None, rank_ms: int | None = None) -> StatusView:
        """As `Client.status`."""
        return self._run(self._client.status(request_id, tenant, rank_ms))

    @contextlib.contextmanager
    def _our_handles(self) -> Iterator[None]:
        """Replace handles in errors by synchronous handles."""
        try:
            yield
        except StreamfleetError as error:
            error.accepted = [SyncHandle(handle, self) for handle in error.accepted]
            if isinstance(error, NotReplicated):
                error.unconfirmed = [SyncHandle(handle, self) for handle in error.unconfirmed]
            raise

    @property
    def _inherited(self) -> bool:
        """True if the parent process opened it before the fork; its thread exists only there."""
        return self._background is not None and self._process != os.getpid()

    def _opened(self, *, again: bool = False) -> _Background:
        """The background thread, started if there is none; after `close`, only if `again` is true."""
        if self._inherited:
            raise ClientClosed(
                f"this client was opened by process {self._process}: open one of its own in this process, {os.getpid()}"
            )
        with self._lock:
            background = self._background
            starts = background is None
            if background is None:
                if self._closed and not again:
                    raise ClientClosed("the client was closed: `open` or `with` opens it again")
                if self._closed:
                    self._client = self._client.another()
                self._closed, self._process = False, os.getpid()
                background = self._background = _Background(self._client)
                background.start()
        try:
            background.opened.result()
        except BaseException as error:
            # Ctrl-C in one thread ends only an opening that this thread began.
            if starts or isinstance(error, Exception):
                with self._lock:
                    if self._background is background:
                        self._background = None
                background.stop()
            raise
        return background

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = self._hand_over(self._opened(), work)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed(CLOSED_MEANWHILE) from None
        except BaseException:
            # Ctrl-C in the calling thread must also stop the work on the background thread.
            future.cancel()
            raise

    def _hand_over(self, background: _Background, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._lock:
            if background is not self._background:
                raise ClientClosed(CLOSED_MEANWHILE)
            return asyncio.run_coroutine_threadsafe(work, background.loop)

    def _leave(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close on the background thread without waiting; the garbage collector may call this in any thread."""
        background = self._background
        if background is None or self._inherited or not background.opened.done():
            return
        work = close()
        try:
            self._hand_over(background, work)
        except ClientClosed:
            work.close()


class _Background(threading.Thread):
    """The thread and the event loop of one opening.

    Attributes:
        opened: done when the client is open; else holds the error.
        loop: event loop of its calls, once it is open.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(name="streamfleet-client", daemon=True)
        self.opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.loop = asyncio.new_event_loop()
        self._client = client
        self._serving: concurrent.futures.Future[asyncio.Task[Any]] = concurrent.futures.Future()

    def run(self) -> None:
        try:
            # The runner cancels all remaining calls at its end.
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._serve())
        except asyncio.CancelledError:
            self._not_opened(ClientClosed(CLOSED_MEANWHILE))
        except BaseException as error:
            if not self._not_opened(error):
                raise

    def stop(self) -> None:
        """End all calls, the client and the thread. Several threads may call this."""
        task = self._serving.result()
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.loop.call_soon_threadsafe(task.cancel)
        self.join()

    async def _serve(self) -> None:
        self._serving.set_result(asyncio.current_task())  # type: ignore[arg-type]
        async with self._client:
            self.opened.set_result(None)
            await asyncio.get_running_loop().create_future()

    def _not_opened(self, error: BaseException) -> bool:
        if self.opened.done():
            return False
        self.opened.set_exception(error)
        return True


async def _next(groups: AsyncGenerator[list[T], None]) -> list[T] | None:
    return await anext(groups, None)


async def _close(groups: AsyncGenerator[list[T], None]) -> None:
    await groups.aclose()
