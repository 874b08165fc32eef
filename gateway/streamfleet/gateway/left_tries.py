"""Requests whose callers left before an answer began, for SDKs that send the same again by themselves.

Redis has the ids of those that were left, in a list for equal requests, so the next try takes one over at any gateway,
and each is taken over once. The gateway whose caller left cancels what nobody has taken over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from streamfleet.common.clock import Clock
from streamfleet.gateway.broker.api_keys import GatewayBroker

LEFT_S = 10.0
"""Longest time until the next try: OpenAI's SDKs pause for 0.5 to 8 s."""
FORGOTTEN_MS = 60_000
"""Lifetime of a list, longer than `LEFT_S`: what is not in its list any more counts as taken over."""
MOST_LEFT = 1_000
"""Most requests of one tenant that a process keeps for a next try."""
LOOK_AGAIN_S = 0.2
"""A try that finds nothing looks once more: another gateway may just be learning that its caller left."""


class LeftTries:
    """Requests of one process that were left, and the way to those of all.

    Args:
        broker: stores their ids.
        clock: for the pauses.
        stopping: `Gateway.stopping`; then nothing is kept any more.
    """

    def __init__(self, broker: GatewayBroker, clock: Clock, stopping: asyncio.Future[None]) -> None:
        self._broker, self._clock, self._stopping = broker, clock, stopping
        self._kept: Counter[str | None] = Counter()

    async def keep(
        self, tenant: str | None, fingerprint: str, request_id: str, cancel: Callable[[], Awaitable[None]]
    ) -> None:
        """Let the next try take a request over; cancel it if none does in time, or if the tenant has left too many."""
        if self._kept[tenant] >= MOST_LEFT:
            await cancel()
            return
        self._kept[tenant] += 1
        pause = asyncio.ensure_future(self._clock.sleep(LEFT_S))
        try:
            await self._broker.leave_try(fingerprint, request_id, FORGOTTEN_MS)
            await asyncio.wait((pause, self._stopping), return_when=asyncio.FIRST_COMPLETED)
            if await self._broker.withdraw_try(fingerprint, request_id):
                await cancel()
        finally:
            pause.cancel()
            self._kept[tenant] -= 1
            self._kept += Counter()  # drops tenants without any

    async def take(self, fingerprint: str) -> str | None:
        """Id of an equal request that was left, for the try that takes it over; None if there is none."""
        found = await self._broker.take_try(fingerprint)
        if found is None:
            await self._clock.sleep(LOOK_AGAIN_S)
            found = await self._broker.take_try(fingerprint)
        return found
