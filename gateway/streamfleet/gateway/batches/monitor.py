"""Watches Redis and the open batches for the metrics, whichever gateways run them.

`BatchMonitor.look` reads the open batches and sets gauges. It changes nothing in Redis.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence

from streamfleet.gateway import metrics
from streamfleet.gateway.batches.scheduler import Scheduler
from streamfleet.gateway.broker.batches import BatchBroker, OpenBatch

POLL_S = 3.0
MOST_BATCHES = 500
"""Most batches that one look reads, so that it stays cheap; more are counted as this many."""


class Progress:
    """Progress of the open batches, and when each last advanced. Pure.

    A gateway that has just started knows no earlier progress, and takes the first state that it sees for an advance.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[bytes | None, ...], float]] = {}
        self._moved_s = 0.0

    def stalled_s(self, batches: Sequence[OpenBatch], now_s: float) -> float:
        """Longest time any open batch has been stalled, in seconds; 0 if none is open.

        Args:
            batches: all open ones, as they are now. Batches that no gateway took yet wait for their turn, so they
                count as stalled only since the last moment when any batch advanced or ended.
            now_s: a monotonic clock.
        """
        now = {batch.id: batch for batch in batches}
        if any(each not in now or now[each].progress != progress for each, (progress, _) in self._seen.items()):
            self._moved_s = now_s
        self._seen = {batch.id: self._since(batch, now_s) for batch in batches}
        since = [self._seen[each][1] for each, batch in now.items() if batch.begun]
        since += [max(self._seen[each][1], self._moved_s) for each, batch in now.items() if not batch.begun]
        return now_s - min(since, default=now_s)

    def _since(self, batch: OpenBatch, now_s: float) -> tuple[tuple[bytes | None, ...], float]:
        before = self._seen.get(batch.id)
        return before if before is not None and before[0] == batch.progress else (batch.progress, now_s)


class BatchMonitor:
    """Sets the gauges of the open batches.

    Args:
        broker: knows the batches.
        scheduler: of this gateway.
    """

    def __init__(self, broker: BatchBroker, scheduler: Scheduler) -> None:
        self._broker, self._scheduler = broker, scheduler
        self._progress = Progress()

    async def look(self) -> None:
        """Set the gauges: to unknown if Redis does not answer, so that nobody takes old values for fresh ones."""
        metrics.BATCHES_RUNNING.set(self._scheduler.running)
        try:
            batches = await self._broker.open_batches(MOST_BATCHES)
        except Exception:
            metrics.REDIS_UP.set(0)
            metrics.BATCHES_OPEN.clear()
            metrics.BATCHES_STALLED.set(math.nan)
            raise
        metrics.REDIS_UP.set(1)
        counts = Counter(status_label(batch.status) for batch in batches)
        for status in metrics.BATCH_STATUSES:
            metrics.BATCHES_OPEN.labels(status).set(counts[status])
        metrics.BATCHES_STALLED.set(self._progress.stalled_s(batches, asyncio.get_running_loop().time()))


def status_label(status: str) -> str:
    """Returns the status of an open batch, for a label."""
    return status if status in metrics.BATCH_STATUSES else metrics.BATCH_ENDED
