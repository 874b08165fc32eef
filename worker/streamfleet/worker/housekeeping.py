"""The housekeeping loop: every worker runs it, and a short lock in Redis lets one at a time work.

Each round reads and writes the queue's keys through the broker; it never touches the engine or this worker's requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import structlog

from streamfleet.common import metrics
from streamfleet.common.broker.housekeeping import ExpiryScan
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.clock import Clock
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.limits import QueueLimits
from streamfleet.common.settings import WorkerSettings
from streamfleet.worker.cancel_requests import CancelRequestProcessor
from streamfleet.worker.configuration import LeaseLength
from streamfleet.worker.failpoints import Point, hit
from streamfleet.worker.reclaim_guard import ReclaimGuard

log = structlog.get_logger(__name__)
TICK_S = 1.0
TURN_S = 0.9
ASKS_PER_S = 20
"""All workers together ask so often whose turn it is, however many they are: one turn is given away a second."""
SELDOM_S = 10.0
"""A worker asks at least so often: should the others leave all at once, their work is taken back so much later."""
STAGE_ENTRIES = 1_000
STAGE_ROUNDS = 50
RECLAIM_ROUNDS = 200
EXPIRE_ROUNDS = 200
FORGET_EVERY_S = 60.0
FORGET_PAUSE_MS = 55_000  # of the whole queue, not of one worker
FORGET_AT_ONCE = 500
FORGET_ROUNDS = 100
CANCELS_PER_TICK = 500
SILENT_LEASES = 6


class Housekeeper:
    """Reclaims, promotes, stages arrivals, cancels and ends due requests, and forgets dead workers.

    Args:
        broker: the queue.
        worker: this worker's name.
        settings: length of a lease, most attempts of a request, longest wait for the next one.
        clock: source of time.
        random: returns numbers in [0, 1), so that workers that started together do not ask together for ever.
    """

    def __init__(
        self,
        broker: WorkerBroker,
        worker: str,
        settings: WorkerSettings,
        clock: Clock,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._broker, self._worker, self._clock = broker, worker, clock
        self._lease = LeaseLength(settings.lease_ms)
        self._max_deliveries, self._retry_max_ms = settings.max_deliveries, settings.retry_max_ms
        self._reclaim_guard = ReclaimGuard(settings.lease_ms / 1000, TICK_S)
        self._cancels = CancelRequestProcessor(broker, self._heard)
        self._workers = 1
        self._random = random
        self._seen: ExpiryScan | None = None
        self._turn_ends_at = 0.0
        self._forget_at = 0.0  # at its first turn: short-lived workers would not come to a second one

    def configure(self, limits: QueueLimits) -> None:
        """Keep the queue by these limits from now on."""
        self._lease.change(limits.lease_ms, self._clock.monotonic())
        self._max_deliveries, self._retry_max_ms = limits.max_deliveries, limits.retry_max_ms

    def redis_is_asked(self) -> None:
        """Start the reclaim guard's clock: a worker asks Redis from now on, so silence counts from here."""
        self._reclaim_guard.looks_from(self._clock.monotonic())

    async def run(self) -> None:
        self.redis_is_asked()
        while True:
            pause_s = TICK_S
            try:
                mine = await self._acquire_lock()
                if mine or self._clock.monotonic() < self._turn_ends_at:
                    pause_s = await self._promote()
                else:
                    pause_s = asking_pause_s(self._workers, self._random())
                if mine:
                    await self.tick()
            except StreamfleetError as error:
                log.warning("housekeeping_failed", error=str(error))
            await self._clock.sleep(pause_s)

    async def _acquire_lock(self) -> bool:
        asked_at = self._clock.monotonic()
        self._lease_ms()
        turn = await self._broker.acquire_housekeeping_lock(
            self._worker, int(TURN_S * 1000), int(self._reclaim_guard.gap_s * 1000)
        )
        self._heard()
        self._read_clock(turn.now_ms, asked_at)
        self._workers = turn.workers
        if turn.mine:
            self._turn_ends_at = asked_at + TURN_S
            self._reclaim_guard.others_heard(turn.unbroken_ms / 1000, asked_at)
        return turn.mine

    def _lease_ms(self) -> int:
        """Length of the lease to reclaim by; the reclaim guard gets it too."""
        now = self._clock.monotonic()
        lease_ms = self._lease.longest_ms(now)
        self._reclaim_guard.lease_is(lease_ms / 1000, now)
        return lease_ms

    def _heard(self) -> None:
        self._reclaim_guard.heard(self._clock.monotonic())

    async def tick(self) -> None:
        """Run one round of housekeeping."""
        lease_ms = self._lease_ms()
        if self._reclaim_guard.may_reclaim(self._clock.monotonic()):
            await self._reclaim(lease_ms)
        await self._stage()
        await self._expire()
        # By time, not by turns: in a large fleet many minutes may pass between two turns of a worker.
        if self._clock.monotonic() >= self._forget_at:
            self._forget_at = self._clock.monotonic() + FORGET_EVERY_S
            await self._forget()
        self._heard()
        await self._cancels.process(CANCELS_PER_TICK)  # last: producers write the entries that are read there

    async def _reclaim(self, lease_ms: int) -> None:
        for _ in range(RECLAIM_ROUNDS):
            hit(Point.BEFORE_RECLAIM)
            latest_ms = self._reclaim_guard.latest_ms(self._clock.monotonic())
            reclaimed = await self._broker.reclaim(lease_ms, self._max_deliveries, latest_ms=latest_ms)
            hit(Point.AFTER_RECLAIM)
            found = {"ready": reclaimed.ready, "dead": reclaimed.dead, "ended": reclaimed.ended}
            if not any(found.values()):
                return
            for outcome, number in found.items():
                metrics.RECLAIMED.labels(outcome).inc(number)
            metrics.of(metrics.DEAD_LETTERS, metrics.Reason.DELIVERIES).inc(reclaimed.dead)
            log.warning("reclaimed", **found)

    async def _expire(self) -> None:
        for _ in range(EXPIRE_ROUNDS):
            ended, self._seen = await self._broker.expire(self._seen)
            _count_expired(ended)
            if not self._seen.more:
                return

    async def _forget(self) -> None:
        """Forget workers and releases that are gone, and dead letters whose retention is over."""
        for _ in range(FORGET_ROUNDS):
            silent_ms = self._lease_ms() * SILENT_LEASES
            gone = await self._broker.deregister(silent_ms=silent_ms, limit=FORGET_AT_ONCE, pause_ms=FORGET_PAUSE_MS)
            if gone < FORGET_AT_ONCE:
                break
        for _ in range(FORGET_ROUNDS):
            if await self._broker.retain(FORGET_AT_ONCE) == 0:
                break
        await self._broker.forget_own_libraries()

    async def _promote(self) -> float:
        """Return due retries to their lanes; returns the seconds until more are due."""
        _, next_ms = await self._broker.promote(most_delay_ms=self._retry_max_ms)
        self._heard()
        return TICK_S if next_ms is None else min(TICK_S, max(0.01, next_ms / 1000))

    async def _stage(self) -> None:
        """Stage arrivals even while every engine is full: an urgent one must not wait behind a backlog."""
        for _ in range(STAGE_ROUNDS):
            pulled = await self._broker.pull(self._worker, 0, stage_entries=STAGE_ENTRIES)
            _count_expired(pulled.dropped)  # a pull with no room ends only arrivals that expired before staging
            if pulled.staged == 0:
                return
            await asyncio.sleep(0)

    def _read_clock(self, redis_ms: int, asked_at: float) -> None:
        now = self._clock.monotonic()
        if stepped_s := self._reclaim_guard.read_clock(redis_ms, asked_at, now):
            log.warning("redis_clock_stepped", by_s=round(stepped_s, 3))
            self._forget_at = now + FORGET_EVERY_S  # all workers seem silent until their next heartbeat


def _count_expired(requests: int) -> None:
    metrics.EXPIRED.inc(requests)
    metrics.of(metrics.DEAD_LETTERS, metrics.Reason.DEADLINE).inc(requests)


def asking_pause_s(workers: int, random: float) -> float:
    """Seconds until a worker asks again whose turn it is.

    Args:
        workers: number of workers that are alive.
        random: a number in [0, 1).
    """
    fair_s = min(SELDOM_S, workers / ASKS_PER_S)
    return TICK_S if fair_s <= TICK_S else fair_s * (0.5 + random)
