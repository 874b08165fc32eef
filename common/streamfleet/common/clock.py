"""Time, as something that can be handed in."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What the loops ask of time; tests hand in one that they move by hand."""

    def now_ms(self) -> int:
        """Wall clock, epoch milliseconds. For display and for talking to people, never for deciding a deadline."""
        ...

    def monotonic(self) -> float:
        """Seconds that only ever go forward."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
