"""The operators' commands to a running fleet: pause and resume lanes, drain a worker."""

from __future__ import annotations

import json
from collections.abc import Sequence

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.replies import number

MOST_NOTICES = 10_000


class SteeringBroker(BrokerBase):
    """Pause, resume, drain."""

    async def pause(self, lanes: Sequence[Lane] = LANES) -> list[Lane]:
        """Stop workers from taking requests of these lanes. Returns the lanes that were not paused before."""
        return await self._pause(lanes, "1")

    async def resume(self, lanes: Sequence[Lane] = LANES) -> list[Lane]:
        """Continue these lanes. Returns the lanes that were paused."""
        return await self._pause(lanes, "0")

    async def paused(self) -> dict[Lane, int]:
        """The paused lanes, and the start of each pause (epoch ms; 0 if it cannot be read)."""
        found = await self._look("HMGET", self.keys.sched, *(f"paused:{lane.number}" for lane in LANES))
        return {lane: max(0, number(since)) for lane, since in zip(LANES, found, strict=True) if since is not None}

    async def drain(self, worker: str) -> None:
        """Tell a worker to finish its requests and stop; told twice, it hands them back."""
        await self._ask(self.keys.cancels, MOST_NOTICES, "drain", worker)

    async def _pause(self, lanes: Sequence[Lane], on: str) -> list[Lane]:
        args = [self._config, json.dumps([lane.number for lane in lanes]), on]
        changed = await self.connection.script("pause", self._shared, args)
        return [lane for lane, did in zip(lanes, changed, strict=True) if did]
