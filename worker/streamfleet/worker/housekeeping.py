"""The housekeeping loop: every worker runs it, and a short lock in Redis lets one at a time work.

Each round reads and writes the queue's keys through the broker; it never touches the engine or this worker's requests.
While no lane has an entry, most of a round's work is done in every fourth round only.

`CancelRequestProcessor` cancels requests on behalf of producers, whose Redis role may only add to a stream: it reads
the stream of cancel requests, cancels each, and removes it.

`ReclaimGuard` tells silent workers from a silent Redis, and from a step of Redis's clock. While Redis is away nobody
can renew, so afterwards every lease looks as if its worker had been silent. The same happens when Redis's wall clock
steps forward, because Redis measures idle times by it. Reclaiming then would restart healthy requests, and count an
attempt each time. It is pure: the caller passes all times, in monotonic seconds.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from streamfleet.common import metrics
from streamfleet.common.broker.housekeeping import ExpiryScan, Turn
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.clock import Clock
from streamfleet.common.errors import StreamfleetError, UnknownRequest
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import BEFORE_IT_COMES, is_request_id
from streamfleet.worker import complete
from streamfleet.worker.configuration import LeaseLength
from streamfleet.worker.failpoints import Point, hit
from streamfleet.worker.mending import Mender
from streamfleet.worker.services.homes import keep_homes
from streamfleet.worker.services.pace import measure_pace
from streamfleet.worker.services.tenants import keep_tenants
from streamfleet.worker.services.turn import Service, take_turn

log = structlog.get_logger(__name__)
SERVICES: tuple[Service, ...] = (keep_homes, keep_tenants, measure_pace)
TICK_S = 1.0
TURN_S = 0.9
IDLE_TURNS = 4
"""On a queue without entries, the work of so many turns is done in one; so damage is still mended within 10 s."""
ASKS_PER_S = 20
"""All workers together ask so often whose turn it is, however many they are: one turn is given away a second."""
HELD_UP_S = 2.0
SELDOM_S = 10.0
"""A worker asks at least so often: should the others leave all at once, their work is taken back so much later."""
STAGE_ROUNDS = 400
RECLAIM_ROUNDS = 200
EXPIRE_ROUNDS = 200
FORGET_EVERY_S = 60.0
FORGET_PAUSE_MS = 55_000  # of the whole queue, not of one worker
FORGET_AT_ONCE = 500
FORGET_ROUNDS = 100
CANCELS_PER_TICK = 500
SILENT_LEASES = 6
AT_ONCE = 16
SMALL_BYTES = 65_536
NEVER_SEEN, MOST_UNKNOWN = "the queue has never seen its id", 4
"""Most ids at once that the queue may have never seen: all of it is looked through for each of them."""
MILLISECONDS = re.compile(r"[1-9][0-9]{0,15}")


class Housekeeper:
    """Reclaims, returns delayed requests, stages arrivals, cancels and ends due requests, and forgets dead workers.

    Args:
        broker: the queue.
        worker: this worker's name.
        limits: length of a lease, most attempts of a request, longest wait for the next one.
        clock: source of time.
        random: returns numbers in [0, 1), so that workers that started together do not ask together for ever.
    """

    def __init__(
        self,
        broker: WorkerBroker,
        worker: str,
        limits: QueueLimits,
        clock: Clock,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._broker, self._worker, self._clock = broker, worker, clock
        self._lease = LeaseLength(limits.lease_ms)
        self._max_deliveries = limits.max_deliveries
        self._reclaim_guard = ReclaimGuard(limits.lease_ms / 1000, TICK_S)
        self._mender = Mender(broker, clock)
        self._cancels = CancelRequestProcessor(broker, self._heard)
        self._workers = 1
        self._random = random
        self._seen: ExpiryScan | None = None
        self._turn_ends_at = 0.0
        self._forget_at = 0.0  # at its first turn: short-lived workers would not come to a second one

    def configure(self, limits: QueueLimits) -> None:
        """Keep the queue by these limits from now on."""
        self._lease.change(limits.lease_ms, self._clock.monotonic())
        self._max_deliveries = limits.max_deliveries

    def redis_is_asked(self) -> None:
        """Start the reclaim guard's clock: a worker asks Redis from now on, so silence counts from here."""
        self._reclaim_guard.looks_from(self._clock.monotonic())

    async def run(self) -> None:
        self.redis_is_asked()
        while True:
            pause_s = TICK_S
            try:
                pause_s = await self._mending_meanwhile(self._round())
            except StreamfleetError as error:
                log.warning("housekeeping_failed", error=str(error))
            await self._clock.sleep(pause_s)

    async def _mending_meanwhile(self, work: Coroutine[Any, Any, float]) -> float:
        """Do it. A key of another type holds it up, and all other workers: such keys are looked for meanwhile."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=HELD_UP_S))[0]:
                await self._mender.mend_types(sets=True)
            return task.result()
        finally:
            task.cancel()

    async def _round(self) -> float:
        """Ask for the turn, and use it. Returns the seconds until it is to be asked for again."""
        turn = await self._acquire_lock()
        turns, pause_s = turns_of_work(turn), TICK_S
        if turn.mine:
            await self._mender.mend_types()
        if not (turn.mine or self._clock.monotonic() < self._turn_ends_at):
            pause_s = asking_pause_s(self._workers, self._random())
        elif turns:
            pause_s = await self._return_delayed()
        if turn.mine:
            await self.tick(turn.number, turns)
        return pause_s

    async def _acquire_lock(self) -> Turn:
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
        return turn

    def _lease_ms(self) -> int:
        """Length of the lease to reclaim by; the reclaim guard gets it too."""
        now = self._clock.monotonic()
        lease_ms = self._lease.longest_ms(now)
        self._reclaim_guard.lease_is(lease_ms / 1000, now)
        return lease_ms

    def _heard(self) -> None:
        self._reclaim_guard.heard(self._clock.monotonic())

    async def tick(self, number: int = 0, turns: int = 1) -> None:
        """Run one round of housekeeping.

        Args:
            number: number of the turn.
            turns: how many turns' work it does; with 0 only what cannot wait.
        """
        if turns:
            lease_ms = self._lease_ms()
            if self._reclaim_guard.may_reclaim(self._clock.monotonic()):
                await self._reclaim(lease_ms)
            await self._stage()
        await self._broker.tend_waiting(self._worker)
        for before in range(turns):
            await self._mender.tick(number - before)
        if turns:
            await self._expire()
            await take_turn(self._broker, SERVICES)
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
        """Forget workers that are gone, and dead letters whose retention is over."""
        for _ in range(FORGET_ROUNDS):
            silent_ms = self._lease_ms() * SILENT_LEASES
            gone = await self._broker.deregister(silent_ms=silent_ms, limit=FORGET_AT_ONCE, pause_ms=FORGET_PAUSE_MS)
            if gone < FORGET_AT_ONCE:
                break
        for _ in range(FORGET_ROUNDS):
            if await self._broker.retain(FORGET_AT_ONCE) == 0:
                break

    async def _return_delayed(self) -> float:
        """Return due retries to their lanes; returns the seconds until more are due."""
        _, next_ms = await self._broker.return_delayed(most_delay_ms=complete.RETRY_MAX_MS)
        self._heard()
        return TICK_S if next_ms is None else min(TICK_S, max(0.01, next_ms / 1000))

    async def _stage(self) -> None:
        """Stage arrivals even while every engine is full: an urgent one must not wait behind a backlog."""
        for _ in range(STAGE_ROUNDS):
            pulled = await self._broker.stage(self._worker)
            _count_expired(pulled.dropped)  # arrivals that had expired before
            if pulled.staged == 0:
                return
            await asyncio.sleep(0)

    def _read_clock(self, redis_ms: int, asked_at: float) -> None:
        now = self._clock.monotonic()
        if stepped_s := self._reclaim_guard.read_clock(redis_ms, asked_at, now):
            log.warning("redis_clock_stepped", by_s=round(stepped_s, 3))
            self._forget_at = now + FORGET_EVERY_S  # all workers seem silent until their next heartbeat


def _count_expired(requests: int) -> None:
    metrics.of(metrics.DEAD_LETTERS, metrics.Reason.DEADLINE).inc(requests)


def asking_pause_s(workers: int, random: float) -> float:
    """Seconds until a worker asks again whose turn it is.

    Args:
        workers: number of workers that are alive.
        random: a number in [0, 1).
    """
    fair_s = min(SELDOM_S, workers / ASKS_PER_S)
    return TICK_S if fair_s <= TICK_S else fair_s * (0.5 + random)


def turns_of_work(turn: Turn) -> int:
    """Number of turns whose work is to be done in this one: none in most turns of a queue without entries."""
    if turn.entries:
        return 1
    # 0: turns begin anew, perhaps because the clock was set back, and then nothing waits.
    return 0 if turn.number % IDLE_TURNS and turn.unbroken_ms else IDLE_TURNS


class CancelRequestProcessor:
    """Processes the cancel requests of one queue.

    Args:
        broker: the queue.
        heard: called after each answer of Redis, because many cancels take time.
    """

    def __init__(self, broker: WorkerBroker, heard: Callable[[], None] = lambda: None) -> None:
        self._broker, self._heard = broker, heard

    async def process(self, most: int) -> int:
        """Process up to `most` entries, oldest first; one that cannot be an id is dropped. Returns their number.

        An entry is removed after its cancel. If a worker dies in between, the second cancel changes nothing.
        """
        seen, unknown, chunk = 0, 0, 1
        while seen < most:
            asks = await self._broker.cancel_requests(min(chunk, most - seen))
            for stream_id, request_id, before in asks:
                if reason := await self._cancel(request_id, before):
                    log.warning("cancel_request_unusable", entry=stream_id, reason=reason)
                await self._broker.drop_cancel_request(stream_id)
                self._heard()
                seen, unknown = seen + 1, unknown + bool(before or reason == NEVER_SEEN)
                if unknown == MOST_UNKNOWN:
                    return seen
            if len(asks) < chunk:
                break
            # A producer can add entries of megabytes, so many of those are never read together.
            small = sum(len(request_id) for _, request_id, _ in asks) < SMALL_BYTES
            chunk = min(chunk * 2, AT_ONCE) if small else 1
        return seen

    async def _cancel(self, request_id: str, before: str) -> str:
        """Cancel one request. Returns the reason if that is impossible, else an empty string."""
        if not is_request_id(request_id):
            return "no request can have its id"
        if before and not MILLISECONDS.fullmatch(before):
            return f"{BEFORE_IT_COMES} must be milliseconds in decimal digits"
        try:
            await self._broker.cancel(request_id, before_ms=int(before) if before else None)
        except UnknownRequest:
            return NEVER_SEEN
        except StreamfleetError:
            raise
        except Exception as error:  # noqa: BLE001 - logged: one odd entry would stop all housekeeping for ever
            return f"what Redis holds of it cannot be read: {type(error).__name__}"
        return ""


class ReclaimGuard:
    """Holds reclaiming back until Redis has answered, and its clock has run evenly, for one lease.

    Args:
        lease_s: length of a lease; its worker renews it well within that.
        tick_s: usual interval between two answers of Redis.

    Attributes:
        gap_s: a silence of more than this is an outage.
    """

    def __init__(self, lease_s: float, tick_s: float) -> None:
        self._tick_s = tick_s
        self._set_lease(lease_s)
        self._heard_at: float | None = None
        self._heard_since = 0.0
        self._unbroken_s = self._asked_at = 0.0
        self._sighted: tuple[float, float, float] | None = None
        self._uneven_until = 0.0

    def _set_lease(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self.gap_s = max(lease_s / 2, 2 * self._tick_s)
        self._step_s = lease_s / 8  # with four renewals per lease, a lease is safe from several such steps

    def lease_is(self, lease_s: float, now: float) -> None:
        """Set the length of a lease. A silence that was short for a longer one may be an outage for this one, so a
        shorter lease begins anew for all."""
        if lease_s < self._lease_s:
            self._uneven_until = max(self._uneven_until, now + lease_s)
        if lease_s != self._lease_s:
            self._set_lease(lease_s)

    def heard(self, now: float) -> None:
        """Record an answer of Redis."""
        if self._heard_at is None or now - self._heard_at > self.gap_s:
            self._heard_since = now
        self._heard_at = now

    def looks_from(self, now: float) -> None:
        """Record that Redis is asked from now on; only the first call counts, and silence is measured from it."""
        if self._heard_at is None:
            self.heard(now)

    def others_heard(self, unbroken_s: float, asked_at: float) -> None:
        """Record for how long, up to `asked_at`, the workers together have heard from Redis without a gap.

        In a large fleet each worker asks rarely, so that its own view alone always looks like an outage.
        """
        self._unbroken_s, self._asked_at = unbroken_s, asked_at

    def read_clock(self, redis_ms: int, asked_at: float, answered_at: float) -> float:
        """Record that Redis's clock showed `redis_ms`, epoch ms, at a moment between `asked_at` and `answered_at`.

        Returns:
            Seconds by which it has stepped since the last reading, at least; 0 if it ran evenly.
        """
        least, most = redis_ms / 1000 - answered_at, redis_ms / 1000 - asked_at  # bounds of its lead over our clock
        before = self._sighted
        stepped_s = 0.0 if before is None else max(least - before[1], 0.0) + min(most - before[0], 0.0)
        uneven = abs(stepped_s) > self._step_s
        if uneven:
            self._uneven_until = answered_at + self._lease_s
        # A reading is kept for a lease, so that small steps add up; not for longer, because clocks drift apart.
        if before is None or uneven or answered_at - before[2] > self._lease_s:
            self._sighted = least, most, answered_at
        return stepped_s if uneven else 0.0

    def latest_ms(self, now: float) -> int | None:
        """Latest time that Redis's clock may show now unless it has stepped, epoch ms; None if it was never read."""
        return None if self._sighted is None else int((self._sighted[1] + self._step_s + now) * 1000)

    def may_reclaim(self, now: float) -> bool:
        """True if an idle lease must be its worker's fault."""
        if self._heard_at is None or now < self._uneven_until:
            return False
        others = self._unbroken_s >= self._lease_s and now - self._asked_at <= self.gap_s
        return others or now - self._heard_since >= self._lease_s
