"""A broker with the verbs of every role, for tests that play all of them."""

from __future__ import annotations

from streamfleet.common.broker.housekeeping import ExpiryScan
from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.operator.broker import OperatorBroker


class Broker(ProducerBroker, WorkerBroker, OperatorBroker):
    """One queue on one Redis, with all its operations."""

    async def before_reclaiming(self, most_delay_ms: int | None = None) -> tuple[int, int | None]:
        """Do what the housekeeping does before it reclaims. Returns what `return_delayed` does."""
        returned = await self.return_delayed(most_delay_ms=most_delay_ms)
        await self.tend_watchers()
        await self.tidy_homes()
        return returned

    async def after_staging(self, seen: ExpiryScan | None = None, limit: int = 1000) -> tuple[int, ExpiryScan]:
        """Do what the housekeeping does once it has staged. Returns what `expire` does."""
        await self.rank_anew()
        expired = await self.expire(seen, limit)
        await self.tidy_tenants()
        await self.measure_pace()
        return expired
