"""A request that was enqueued, in the caller's hand; and results in the order in which they come."""

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
    """What a handle needs of its client."""

    async def cancel(self, request_id: str) -> bool: ...

    async def status(self, request_id: str) -> StatusView: ...

    def follow(self, handle: Handle, after: str | None, restarts: Restarts) -> AsyncGenerator[Event, None]: ...


class Handle:
    """One request.

    Attributes:
        id: the request id.
        existing: it was there before this call: the same id with the same body is the same request.
        entry: ``<lane>:<stream id>`` in Redis; empty when only its result is left.
    """

    __slots__ = ("_mailbox", "_mark", "_owner", "_slot", "entry", "existing", "id")

    def __init__(
        self, request_id: str, existing: bool, entry: str, mailbox: Mailbox, mark: int | None, owner: Owner
    ) -> None:
        """`mark` is `Mailbox.mark` of before it was enqueued; None where the mailbox will hear nothing of it."""
        self.id = request_id
        self.existing = existing
        self.entry = entry
        self._mailbox = mailbox
        self._mark = mark
        self._owner = owner
        self._slot: Slot | None = None

    def __repr__(self) -> str:
        return f"Handle(id={self.id!r}, existing={self.existing!r}, entry={self.entry!r})"

    @property
    def slot(self) -> Slot:
        """What the client remembers of it: nothing before it is waited for."""
        if self._slot is None:
            self._slot = self._mailbox.slot(self.id, self._mark, self.entry)
        return self._slot

    def awaited(self) -> AbstractContextManager[asyncio.Future[Result]]:
        """The future of its result, to be waited for inside `with`; others may wait for it too: never cancel it."""
        return self._mailbox.awaited(self.slot)

    async def result(self, timeout: float | None = None) -> Result:
        """How it ended, whatever that was: see `Result.raise_for_status`.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            RequestLost: Redis lost it, in a failover or otherwise; enqueueing it again with its id is safe.
            ResultTimeout: it has not ended in time; it goes on, and may be asked again.
            ClientClosed: the client was closed, before or meanwhile; the request goes on.
        """
        return await self._mailbox.wait(self.slot, timeout)

    @overload
    def stream(self, after: str | None = None, restarts: Literal["raise"] = "raise") -> AsyncGenerator[Chunk, None]: ...

    @overload
    def stream(self, after: str | None = None, *, restarts: Literal["tell"]) -> AsyncGenerator[Event, None]: ...

    @overload
    def stream(self, after: str | None = None, restarts: Restarts = "raise") -> AsyncGenerator[Event, None]: ...

    def stream(self, after: str | None = None, restarts: Restarts = "raise") -> AsyncGenerator[Event, None]:
        """Its chunks while they come, from the first one on; for a request that was enqueued with `stream=True`.

        An asynchronous generator: close it (contextlib.aclosing) when leaving early. It ends when the request has
        succeeded: at once, and without chunks, where it is not streamed. There may be many readers, late ones too.

        Args:
            after: id of a chunk, to go on behind it.
            restarts: what becomes of a restart or a gap: raised, or given among the chunks.

        Raises:
            StreamBroken: with `restarts="raise"`: what was given so far does not count, or chunks are missing.
            RequestFailed: it ended without success, at the first step that finds out.
            RequestLost, ClientClosed: as of `result`.
            InvalidRequest: `after` is the id of no chunk.
        """
        return self._owner.follow(self, after, restarts)

    async def cancel(self) -> bool:
        """Cancel it, queued or running. False when it had ended before in another way."""
        return await self._owner.cancel(self.id)

    async def status(self) -> StatusView:
        """Where it is now."""
        return await self._owner.status(self.id)


class Arrivals:
    """Results of a growing set of requests, in the order in which they come."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._joined: dict[asyncio.Future[Result], list[Slot]] = {}
        self._done: list[asyncio.Future[Result]] = []
        self._left = 0
        self._some = asyncio.Event()

    def add(self, handles: Iterable[Handle]) -> None:
        """Wait for these too."""
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
        """How many have not been taken yet."""
        return self._left

    def wake(self) -> None:
        """Let `take` return, with nothing if nothing has come."""
        self._some.set()

    async def take(self, timeout: float | None = None) -> list[Result | RequestLost]:
        """What has come, or never will because Redis lost it; nothing after `timeout` seconds, or `wake`.

        Raises:
            ClientClosed: the client was closed, before or meanwhile.
            SettingsError: Redis refuses its user.
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
        """Wait no more for what is left."""
        for future in (*self._done, *self._joined):
            if future.done() and not future.cancelled():
                future.exception()  # read, so that nobody complains that it never was
        for future, slots in self._joined.items():
            future.remove_done_callback(self._arrived)
            for slot in slots:
                self._mailbox.leave(slot)
        self._left -= sum(map(len, self._joined.values()))
        self._joined.clear()

    def _arrived(self, future: asyncio.Future[Result]) -> None:
        # Nothing if `close` came between the result and this call, which was on its way by then.
        for slot in self._joined.pop(future, ()):
            self._mailbox.leave(slot)
            self._done.append(future)
        self._some.set()


def _taken(future: asyncio.Future[Result]) -> Result | RequestLost:
    error = future.exception()
    return error if isinstance(error, RequestLost) else future.result()
