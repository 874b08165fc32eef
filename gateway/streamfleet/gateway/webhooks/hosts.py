"""Limits the webhooks that are sent to one host at a time, so that a slow receiver delays only itself.

`HostSlots` counts in memory only; each process has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class HostSlots:
    """Slots for each host; a host without webhooks needs no memory.

    Args:
        per_host: slots of one host.
        per_host_waiting: most webhooks that wait for a slot of one host.
        together: slots of all hosts together.
        waiting: most webhooks that wait, for all hosts together.
    """

    def __init__(self, per_host: int, per_host_waiting: int, together: int, waiting: int) -> None:
        self._per_host, self._most, self._most_waiting = per_host, per_host + per_host_waiting, waiting
        self._together = asyncio.Semaphore(together)
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._asking: dict[str, int] = {}

    def crowded(self, host: str) -> bool:
        """True if another webhook for this host would have to wait, and no more may wait, for this host or in total."""
        asking = self._asking.get(host, 0)
        waiting = sum(max(0, each - self._per_host) for each in self._asking.values())
        return asking >= self._most or (asking >= self._per_host and waiting >= self._most_waiting)

    @asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """Holds a slot of this host; slots are given in the order of the calls."""
        self._asking[host] = self._asking.get(host, 0) + 1
        slots = self._slots.setdefault(host, asyncio.Semaphore(self._per_host))
        try:
            async with slots, self._together:
                yield
        finally:
            self._asking[host] -= 1
            if not self._asking[host]:
                del self._asking[host], self._slots[host]
