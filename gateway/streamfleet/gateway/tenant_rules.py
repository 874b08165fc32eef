"""Weights and limits of tenants, from API keys into the queues of this gateway.

Each key that lets a request in passes here. The values that it names are written where `streamfleet tenants set` writes
its own. Redis keeps the newest of all, so a gateway may write the same values again at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from streamfleet.common.broker.types import TenantRule
from streamfleet.common.clock import Clock
from streamfleet.gateway.api_keys import KeyRecord
from streamfleet.gateway.queues import Queues

AGAIN_S = 60.0
"""Time after which values are written again, in case a failover has lost them, or the writing failed."""


class TenantRules:
    """Writes what keys name, in the background.

    Args:
        names: queues of this gateway.
        queues: their clients.
        clock: for the time of the next writing.
        run: runs something in the background, and logs its failure.
    """

    def __init__(
        self,
        names: Sequence[str],
        queues: Queues,
        clock: Clock,
        run: Callable[[Coroutine[Any, Any, object], str], None],
    ) -> None:
        self._names, self._queues, self._clock, self._run = names, queues, clock, run
        self._written: dict[str, tuple[int, float]] = {}
        """By id of the key: when its values were given, and when they are written again."""

    def follow(self, record: KeyRecord) -> None:
        """Write the values that a key names, unless that was done lately."""
        rule, now_s = record.rule, self._clock.monotonic()
        if rule is None:
            return
        since_ms, again_s = self._written.get(record.id, (0, 0.0))
        if rule.set_ms == since_ms and now_s < again_s:
            return
        self._written[record.id] = (rule.set_ms, now_s + AGAIN_S)
        self._run(self._write(record.tenant, rule), "set a tenant's weight and limit")

    async def _write(self, tenant: str, rule: TenantRule) -> None:
        for name in self._names:
            await (await self._queues.client(name)).broker.set_tenant(tenant, rule)
