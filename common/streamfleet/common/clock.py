"""Clocks that are passed in, so that tests can control time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Clock that the loops use; tests pass one that they move by hand."""

    def now_ms(self) -> int:
        """Wall clock, epoch milliseconds. For display only, never to decide a deadline."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # asked several times for each request

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
