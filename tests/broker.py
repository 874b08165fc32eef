"""A broker with the verbs of every role, for tests that play all of them."""

from __future__ import annotations

import structlog.testing

from streamfleet.common.broker.housekeeping import ExpiryScan
from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.protocol import LANES
from streamfleet.operator.broker import OperatorBroker

try:
    from streamfleet.worker.housekeeping import SERVICES
    from streamfleet.worker.services.turn import Service, take_turn
except ImportError:  # bench.scripts plays earlier commits, whose scripts did all of it
    SERVICES = ()


class Broker(ProducerBroker, WorkerBroker, OperatorBroker):
    """One queue on one Redis, with all its operations."""

    async def after_staging(self, seen: ExpiryScan | None = None, limit: int = 1000) -> tuple[int, ExpiryScan]:
        """Do what the housekeeping does once it has staged. Returns what `expire` does."""
        await self.tend_waiting()
        await self.reconcile()
        expired = await self.expire(seen, limit)
        await self.serve()
        return expired

    async def reconcile(self, *, whole: bool = False) -> None:
        """Do what the housekeeping does about keys that do not fit. `whole`: examine each entry, too."""
        await self.compare(None, True)
        for lane in LANES:
            while (await self.go_on(lane))[0]:
                pass
            after = ""
            while whole and (after := (await self.examine(lane, after, True))[0]):
                pass

    async def serve(self, *services: Service) -> None:
        """A turn of some services of the housekeeping, all if none is named; their errors are raised."""
        with structlog.testing.capture_logs() as logs:
            await take_turn(self, services or SERVICES)
        assert not logs, logs
