"""The housekeeping part of the broker: what any one worker does for all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.errors import BrokerOutOfMemory
from streamfleet.common.records import Reclaimed


class HousekeepingBroker(BrokerBase):
    """Keep the queue moving, and forget what is gone."""

    async def lock_maintenance(self, worker: str, hold_ms: int) -> bool:
        """Whether this worker does the housekeeping for the next `hold_ms`.

        A full Redis has no room for the lock, yet it is the housekeeping that empties it: then everybody does it, which
        is only more work.
        """
        try:
            return bool(await self.connection.command("SET", self.keys.maintain, worker, "NX", "PX", hold_ms))
        except BrokerOutOfMemory:
            return True

    async def reclaim(self, lease_ms: int, max_deliveries: int, limit: int = 1000) -> Reclaimed:
        """Take back what was not renewed for `lease_ms`; give up on what was delivered `max_deliveries` times.

        Sent once: behind an outage that nobody could renew in, it would take healthy requests from their workers.
        """
        args = [self._config, lease_ms, max_deliveries, limit]
        return Reclaimed(*await self._with_groups(lambda: self.connection.script_once("reclaim", self._shared, args)))

    async def promote(self, limit: int = 1000) -> tuple[int, int | None]:
        """Bring delayed requests that are due back; how many, and in how many ms the next one is due."""
        args = [self._config, limit, self.limits.watchers]
        promoted, due = await self._with_groups(lambda: self.connection.script("promote", self._shared, args))
        return int(promoted), int(float(due)) if due else None

    async def expire(self, seen_ms: int | None = None, limit: int = 5000) -> tuple[int, int]:
        """End queued requests whose deadline has passed, `limit` looked at in each lane.

        Args:
            seen_ms: what an earlier call returned; nothing before it is looked at again but the first few.
            limit: how many ranks to look at in each lane at most.

        Returns:
            How many were ended, and the rank (epoch ms) up to which the lanes have been looked through.
        """
        args = [self._config, limit, "" if seen_ms is None else seen_ms]
        ended, seen = await self.connection.script("expire", self._shared, args)
        return int(ended), int(seen)

    async def check_in(self, worker: str, description: Mapping[str, Any]) -> int:
        """A worker's sign of life. Returns Redis's clock, epoch ms."""
        return int(
            await self.connection.script("check_in", self._shared, [self._config, worker, json.dumps(description)])
        )

    async def check_out(self, worker: str = "", silent_ms: int = 3_600_000) -> int:
        """Forget a worker that leaves, and those silent for `silent_ms`, where nothing of theirs is pending."""
        args = [self._config, worker, silent_ms]
        return int(await self._with_groups(lambda: self.connection.script("check_out", self._shared, args)))
