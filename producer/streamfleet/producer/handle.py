"""A request that was enqueued, in the caller's hand; and results in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from streamfleet.common.results import Result
from streamfleet.producer.mailbox import Mailbox
from streamfleet.producer.slots import Slot
from streamfleet.producer.status import StatusView


class Owner(Protocol):
    """What a handle needs of its client."""

    async def cancel(self, request_id: str) -> bool: ...

    async def status(self, request_id: str) -> StatusView: ...


@dataclass(frozen=True, slots=True)
class Handle:
    """One request.

    Attributes:
        id: the request id.
        existing: it was there before this call: the same id with the same body is the same request.
        entry: ``<lane>:<stream id>`` in Redis; empty when only its result is left.
    """

    id: str
    existing: bool
    entry: str
    slot: Slot = field(repr=False)
    mailbox: Mailbox = field(repr=False)
    owner: Owner = field(repr=False)

    async def result(self, timeout: float | None = None) -> Result:
        """How it ended, whatever that was: see `Result.raise_for_status`.

        Args:
            timeout: seconds; None waits for ever, also for a request that Redis lost in a failover.

        Raises:
            ResultTimeout: it has not ended in time; it goes on, and may be asked again.
        """
        return await self.mailbox.wait(self.slot, timeout)

    async def cancel(self) -> bool:
        """Cancel it, queued or running. False when it had ended before in another way."""
        return await self.owner.cancel(self.id)

    async def status(self) -> StatusView:
        """Where it is now."""
        return await self.owner.status(self.id)


class Arrivals:
    """Results of a growing set of requests, in the order in which they come."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._joined: dict[asyncio.Future[Result], list[Slot]] = {}
        self._done: list[tuple[asyncio.Future[Result], int]] = []
        self._some = asyncio.Event()

    def add(self, handles: Iterable[Handle]) -> None:
        """Wait for these too."""
        for handle in handles:
            future = self._mailbox.join(handle.slot)
            if future not in self._joined:
                self._joined[future] = []
                future.add_done_callback(self._arrived)
            self._joined[future].append(handle.slot)

    def __len__(self) -> int:
        """How many have not been taken yet."""
        return sum(len(slots) for slots in self._joined.values()) + sum(times for _, times in self._done)

    async def take(self, timeout: float | None = None) -> list[Result]:
        """What has come, at least one unless `timeout` seconds pass without any."""
        if not self._done:
            self._some.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._some.wait()
            except TimeoutError:
                return []
        done, self._done = self._done, []
        return [future.result() for future, times in done for _ in range(times)]

    def close(self) -> None:
        """Wait no more for what is left."""
        for future, slots in self._joined.items():
            future.remove_done_callback(self._arrived)
            for slot in slots:
                self._mailbox.leave(slot)
        self._joined.clear()

    def _arrived(self, future: asyncio.Future[Result]) -> None:
        slots = self._joined.pop(future)
        for slot in slots:
            self._mailbox.leave(slot)
        self._done.append((future, len(slots)))
        self._some.set()
