"""How many webhooks one host may have at a time: a slow receiver waits for itself, and not the others for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class HostSlots:
    """Slots for each host; a host without webhooks costs nothing.

    Args:
        per_host: how many at once.
        per_host_waiting: how many more may wait for their turn.
        together: how many at once, all hosts together.
        waiting: how many may wait for their host, all hosts together.
    """

    def __init__(self, per_host: int, per_host_waiting: int, together: int, waiting: int) -> None:
        self._per_host, self._most, self._most_waiting = per_host, per_host + per_host_waiting, waiting
        self._together = asyncio.Semaphore(together)
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._asking: dict[str, int] = {}

    def crowded(self, host: str) -> bool:
        """Whether one more for this host would have to wait, and nobody may wait any more, for it or for any host."""
        asking = self._asking.get(host, 0)
        waiting = sum(max(0, each - self._per_host) for each in self._asking.values())
        return asking >= self._most or (asking >= self._per_host and waiting >= self._most_waiting)

    @asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """A slot of this host, in the order of asking."""
        self._asking[host] = self._asking.get(host, 0) + 1
        slots = self._slots.setdefault(host, asyncio.Semaphore(self._per_host))
        try:
            async with slots, self._together:
                yield
        finally:
            self._asking[host] -= 1
            if not self._asking[host]:
                del self._asking[host], self._slots[host]
