"""Handles of enqueued requests, and sets of requests whose results are taken as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractContextManager
from typing import Literal, Protocol, overload

from streamfleet.common.errors import RequestLost
from streamfleet.common.results import Result
from streamfleet.producer.events import Chunk, Event, Restarts
from streamfleet.producer.mailbox import Mailbox
from streamfleet.producer.slots import Slot
from streamfleet.producer.status import StatusView


class Owner(Protocol):
    """Methods of the client that a handle calls."""

    async def cancel(self, request_id: str) -> bool: ...

    async def status(self, request_id: str, tenant: str | None = None, rank_ms: int | None = None) -> StatusView: ...

    def follow(self, handle: Handle, after: str | None, restarts: Restarts) -> AsyncGenerator[Event, None]: ...


class Handle:
    """One enqueued request.

    Attributes:
        id: the request id.
        existing: the request existed before this call: the same id with the same body is the same request.
        entry: ``<lane>:<stream id>`` in Redis; empty if only its result is left.
        tenant: its tenant, empty for none; None if it is not known.
        rank_ms: its deadline, or what stands for one, epoch ms, if it has a tenant; None if it is not known.
    """

    __slots__ = ("_generation", "_mailbox", "_owner", "_slot", "entry", "existing", "id", "rank_ms", "tenant")

    def __init__(
        self,
        request_id: str,
        existing: bool,
        entry: str,
        mailbox: Mailbox,
        generation: int | None,
        owner: Owner,
        tenant: str | None = None,
        rank_ms: int | None = None,
    ) -> None:
        """`generation` is the mailbox's from before enqueueing; None if the mailbox gets no notification of it."""
        self.id = request_id
        self.existing = existing
        self.entry = entry
        self._mailbox = mailbox
        self._generation = generation
        self._owner = owner
        self.tenant = tenant
        self.rank_ms = rank_ms
        self._slot: Slot | None = None

    def __repr__(self) -> str:
        return f"Handle(id={self.id!r}, existing={self.existing!r}, entry={self.entry!r})"

    @property
    def slot(self) -> Slot:
        """The mailbox's state of this request, created at the first wait."""
        if self._slot is None:
            self._slot = self._mailbox.slot(self.id, self._generation, self.entry)
        return self._slot

    def awaited(self) -> AbstractContextManager[asyncio.Future[Result]]:
        """The future of its result, to await inside `with`. Never cancel it, because others may wait for it too."""
        return self._mailbox.awaited(self.slot)

    async def result(self, timeout: float | None = None) -> Result:
        """Wait for the result, of success or failure: see `Result.raise_for_status`.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            RequestLost: Redis lost it, in a failover or otherwise; enqueueing it again with its id is safe.
            ResultTimeout: it has not ended in time; it continues, and may be awaited again.
            ClientClosed: the client was closed, before or meanwhile; the request continues.
        """
        return await self._mailbox.wait(self.slot, timeout)

    @overload
    def stream(self, after: str | None = None, restarts: Literal["raise"] = "raise") -> AsyncGenerator[Chunk, None]: ...

    @overload
    def stream(self, after: str | None = None, *, restarts: Literal["tell"]) -> AsyncGenerator[Event, None]: ...

    @overload
    def stream(self, after: str | None = None, restarts: Restarts = "raise") -> AsyncGenerator[Event, None]: ...

    def stream(self, after: str | None = None, restarts: Restarts = "raise") -> AsyncGenerator[Event, None]:
        """Yield its chunks as they are generated, from the first on; for a request enqueued with `stream=True`.

        An asynchronous generator: close it (contextlib.aclosing) when leaving early. It ends when the request has
        succeeded; if the request is not streamed, without chunks. There may be many readers, also late ones.

        Args:
            after: id of a chunk, to continue after it.
            restarts: raise at a restart or gap, or yield it among the chunks.

        Raises:
            StreamBroken: with `restarts="raise"`: the earlier chunks are void, or chunks are missing.
            RequestFailed: it ended without success; raised as soon as that is known.
            RequestLost, ClientClosed: as `result`.
            InvalidRequest: `after` is not a chunk's id.
        """
        return self._owner.follow(self, after, restarts)

    async def cancel(self) -> bool:
        """Cancel the request, queued or running. False if it had already ended in another way."""
        return await self._owner.cancel(self.id)

    async def status(self) -> StatusView:
        """Current state of the request."""
        return await self._owner.status(self.id, self.tenant, self.rank_ms)


class Arrivals:
    """Results of a growing set of requests, taken as they arrive."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._joined: dict[asyncio.Future[Result], list[Slot]] = {}
        self._done: list[asyncio.Future[Result]] = []
        self._left = 0
        self._some = asyncio.Event()

    def add(self, handles: Iterable[Handle]) -> None:
        """Add requests to wait for."""
        for handle in handles:
            slot = handle.slot
            future = self._mailbox.join(slot)
            self._left += 1
            slots = self._joined.get(future)
            if slots is None:
                self._joined[future] = [slot]
                future.add_done_callback(self._arrived)
            else:
                slots.append(slot)

    def __len__(self) -> int:
        """Number of requests whose result has not been taken yet."""
        return self._left

    def wake(self) -> None:
        """Make `take` return at once, even without results."""
        self._some.set()

    async def take(self, timeout: float | None = None) -> list[Result | RequestLost]:
        """Wait for results, or for errors of lost requests; empty after `timeout` seconds, or `wake`.

        Raises:
            ClientClosed: the client was closed, before or meanwhile.
            SettingsError: Redis refuses the user.
        """
        self._mailbox.check()
        if not self._done:
            self._some.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._some.wait()
            except TimeoutError:
                return []
        done, self._done = self._done, []
        self._left -= len(done)
        return [_taken(future) for future in done]

    def close(self) -> None:
        """Stop waiting for the remaining requests."""
        for future in (*self._done, *self._joined):
            if future.done() and not future.cancelled():
                future.exception()  # read it, so that asyncio does not warn
        for future, slots in self._joined.items():
            future.remove_done_callback(self._arrived)
            for slot in slots:
                self._mailbox.leave(slot)
        self._left -= sum(map(len, self._joined.values()))
        self._joined.clear()

    def _arrived(self, future: asyncio.Future[Result]) -> None:
        # Empty if `close` was called after this callback was scheduled.
        for slot in self._joined.pop(future, ()):
            self._mailbox.leave(slot)
            self._done.append(future)
        self._some.set()


def _taken(future: asyncio.Future[Result]) -> Result | RequestLost:
    error = future.exception()
    return error if isinstance(error, RequestLost) else future.result()
