"""Clocks for tests: one that stands still until it is moved, and one that runs ahead of the machine's."""

from __future__ import annotations

import asyncio

from streamfleet.common.clock import SystemClock


class HandClock:
    """Time that a test moves.

    Args:
        epoch_ms: wall clock (epoch ms) at second 0.

    Attributes:
        seconds: the monotonic time.
    """

    def __init__(self, epoch_ms: int = 0) -> None:
        self.seconds = 100.0
        self._epoch_ms = epoch_ms

    def now_ms(self) -> int:
        return self._epoch_ms + round(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


class ClockAhead(SystemClock):
    """The machine's clock, moved on by as much as a test says."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s
