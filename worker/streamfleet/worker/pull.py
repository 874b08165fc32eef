"""The pulling loop: claims as many requests as the engine has room for, and waits cheaply in between.

Admission tells the room. Claims come from Redis through the broker, and leave as in-flight requests to the dispatcher,
when the batching policy says so. The dispatcher may limit how many requests to hold. A worker that is full of patient
requests goes on listening for others, while it waits for room.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence

import structlog

from streamfleet.common import metrics
from streamfleet.common.broker.types import Hint, Home, Role, Rooms
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.clock import Clock
from streamfleet.common.errors import BrokerOutOfMemory, BrokerUnavailable, SettingsError, StreamfleetError
from streamfleet.common.protocol import LANES, Lane
from streamfleet.worker.admission import Admission
from streamfleet.worker.engine.base import Partial
from streamfleet.worker.failpoints import Point, hit
from streamfleet.worker.giving_way import URGENT
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from streamfleet.worker.service_times import Judge
from streamfleet.worker.turns import Turns

log = structlog.get_logger(__name__)
WAIT_MS = 5_000
AT_ONCE = 128  # while Redis gives out the next part, the previous one is on its way into the engine
FIRST_AT_ONCE = 32  # of an idle worker, whose engine waits meanwhile
WAITER_MS = 40_000  # waiters are woken; five hundred of them must not poll all the time
WATCHER_MS = 7_000
RECONNECT_S = 0.5
UNBLOCK_AGAIN_S = 0.02
HANDED_MS = 1_000  # a watch that was handed over ends soon, because its worker may be dead
STEPS_TO_ANSWER = 3
"""Event-loop ticks to yield before the next wait is sent: by then a new request has gone to the engine, and its result,
if that was there at once, to Redis."""
KEPT_S = 2.0
LOOK_AGAIN_S = 1.0  # while room is made for a large request, a smaller and more urgent one may come


class Puller:
    """Pulls while there is room, until stopped.

    Args:
        broker: the queue.
        worker: this worker's name.
        admission: tells the room, and its policy when to start what was pulled.
        in_flight: gets the claims.
        clock: source of claim times.
        turns: gives this puller its turns beside those of other queues on the same engine; None if there are none.

    Attributes:
        credit: room for further requests at the last look.
    """

    def __init__(
        self,
        broker: WorkerBroker,
        worker: str,
        admission: Admission,
        in_flight: InFlight,
        clock: Clock,
        turns: Turns | None = None,
    ) -> None:
        self._broker, self._worker, self._admission = broker, worker, admission
        self._in_flight, self._clock, self._turns = in_flight, clock, turns
        self._judge = Judge(admission.times, clock.monotonic())
        self.credit = 0
        self._hints: list[Hint] = []
        self._may_watch = self._owing = False
        self._listens_for: tuple[Role, list[Lane]] = (Role.NONE, [])
        self._listener: asyncio.Task[None] | None = None
        self._start = uuid.uuid4().hex[:12]  # its prefix cache is empty
        self._soonest_ms: int | None = None
        self._used_up: frozenset[Lane] = frozenset()  # lanes whose room the last pull has used up
        self._most: int | None = None
        self._look_again_at = 0.0
        self._stopping = False
        self._idle = True
        self._blocked = False
        self._unblocking: asyncio.Task[None] | None = None

    async def run(self, start: Callable[[InFlightRequest], None]) -> None:
        """Pull until `stop`, and call `start` with each request; entries of a last blocking read are put back."""
        while not self._stopping:
            try:
                await self._round(start)
            except (BrokerUnavailable, BrokerOutOfMemory) as error:
                log.warning("redis_away", error=str(error))
                await self._reconnect()
        await self._leave()

    async def stop(self) -> None:
        """Stop pulling; a blocking wait ends at once."""
        self._stopping = True
        self._in_flight.changed.set()
        await self._unblock()

    def allow(self, most: int | None) -> None:
        """Set the most requests to hold: None for no limit, 0 to pull nothing; a blocking wait then ends soon."""
        if most == self._most:
            return
        self._most = most
        self._in_flight.changed.set()
        if most == 0:
            self._unblocking = asyncio.create_task(self._unblock())

    async def _unblock(self) -> None:
        while self._blocked:
            # Repeated until it works: the read may not have reached the server yet.
            with contextlib.suppress(BrokerUnavailable):
                await self._broker.unblock()
            await asyncio.sleep(UNBLOCK_AGAIN_S)

    async def _round(self, start: Callable[[InFlightRequest], None]) -> None:
        self._in_flight.changed.clear()
        rooms, role, pulled = self._rooms(), Role.NONE, list[InFlightRequest]()
        if max(rooms) == 0:
            await self._stop_listening()
        if max(rooms) > 0 or self._owing:
            role, pulled = await self._pull_in_turn(rooms)
        for request in self._admission.policy.gather(pulled, self._clock.monotonic()):
            start(request)
        for _ in range(STEPS_TO_ANSWER if role is not Role.NONE else 0):
            await asyncio.sleep(0)
        rooms = self._rooms()
        self.credit = rooms[-1]
        metrics.CREDIT.set(self.credit)
        if self._stopping:
            return
        if max(rooms) > 0 and role is not Role.NONE:
            lanes = [lane for lane, room in zip(LANES, rooms, strict=True) if room > 0]
            if self._used_up.isdisjoint(lanes):  # else requests have ended since, and what was left there may run
                await self._wait(role, lanes)
        elif max(rooms) <= 0 and not self._owing:
            await self._wait_for_room()

    def _rooms(self) -> tuple[int, ...]:
        """Number of requests to pull now, for each lane; see `Admission.rooms`."""
        if self._stopping:
            return (0,) * len(LANES)
        rooms = self._admission.rooms(self._awaited_tokens(), self._clock.monotonic())
        if self._most is None:
            return rooms
        most = max(0, self._most - self._in_flight.load().requests)
        return tuple(min(room, most) for room in rooms)

    def _awaited_tokens(self) -> int:
        """KV tokens of a request for which room is made; 0 after `LOOK_AGAIN_S`, so that other requests are seen."""
        now = self._clock.monotonic()
        if not self._in_flight.awaited_tokens:
            self._look_again_at = now + LOOK_AGAIN_S
        elif now >= self._look_again_at:
            self._in_flight.awaited_tokens = 0
        return self._in_flight.awaited_tokens

    @property
    def shares(self) -> Sequence[int]:
        """Guaranteed picks per mille of each lane."""
        return self._broker.limits.shares

    @property
    def has_room(self) -> bool:
        """True if it would pull requests now."""
        return max(self._rooms()) > 0

    async def head(self) -> tuple[Lane, float] | None:
        """Lane and rank of the first request that waits; None if none does."""
        return await self._broker.head()

    async def _pull_in_turn(self, rooms: tuple[int, ...]) -> tuple[Role, list[InFlightRequest]]:
        if self._may_watch:  # if there is no room, the next round pulls, and so gives the watch back
            self._may_watch, self._soonest_ms, self._used_up = False, HANDED_MS, frozenset()
            return Role.WATCHER, []
        if self._turns is None or max(rooms) == 0:
            return await self._pull(rooms)
        async with self._turns.turn(self) as turn:
            rooms = tuple(map(turn.part, self._rooms()))  # others had their turns meanwhile
            if max(rooms) == 0 and not self._owing:
                return Role.NONE, []
            role, pulled = await self._pull(rooms)
            turn.taken = len(pulled)
            return role, pulled

    async def _pull(self, rooms: tuple[int, ...]) -> tuple[Role, list[InFlightRequest]]:
        hints, self._hints = self._hints, []
        asked_at = self._clock.monotonic()
        at_once, self._idle = FIRST_AT_ONCE if self._idle else AT_ONCE, False
        hit(Point.BEFORE_PULL)
        try:
            pulled = await self._broker.pull(
                self._worker,
                Rooms(
                    [min(room, at_once) for room in rooms],
                    self._admission.owed,
                    self._admission.free,
                ),
                hints,
                owing=self._owing,
                watch_ms=WATCHER_MS,
                needs=self._judge.needs(asked_at) if self._broker.limits.judge_deadlines == "on" else None,
                home=Home(self._start, self._held()),
            )
        except (BrokerUnavailable, BrokerOutOfMemory):
            self._hints = hints + self._hints
            raise
        hit(Point.AFTER_PULL)
        self._may_watch = False  # the pull ended a watch that was handed over before it
        self._judge.pulled(pulled.ready, pulled.dropped, asked_at)
        self._soonest_ms = pulled.soonest_ms if pulled.role is Role.WATCHER else None
        took = len(pulled.claims)
        self._used_up = frozenset(lane for lane, room in zip(LANES, rooms, strict=True) if room <= took)
        # A worker that waits or was woken owes the queue a pull, even if its room is gone by then: only a pull ends its
        # wait, puts back the entries that it was given, and wakes another worker in its place.
        self._owing = pulled.role is not Role.NONE or bool(self._hints)
        self._admission.claimed({claim.lease.lane for claim in pulled.claims}, asked_at)
        demand = self._admission.expected
        requests = [
            InFlightRequest(claim, asked_at, pulled.now_ms, demand, number >= rooms[claim.lease.lane.number - 1])
            for number, claim in enumerate(pulled.claims)
        ]
        for request in requests:
            self._in_flight.add(request)
        await self._find_kept([request for request in requests if request.claim.kept])
        for request in requests:
            lane = request.claim.lease.lane
            metrics.of(metrics.CLAIMED, lane).inc()
            metrics.QUEUED.labels(lane).observe(max(0, pulled.now_ms - request.enqueued_ms) / 1000)
            if request.claim.passed_ms is not None:
                metrics.PASSED_OVER.labels(lane).observe(request.claim.passed_ms / 1000)
        return pulled.role, requests

    def _held(self) -> int:
        """Number of requests that this worker holds; while it has no free slot, an urgent one counts twice.

        All full workers hold about as many. The one with the fewest urgent requests hears of the next one first: most
        urgent requests run in the place of a patient one, which goes on later.
        """
        held = self._in_flight.load().requests
        return held if self._admission.free else held + self._in_flight.active_in(URGENT)

    async def _find_kept(self, requests: Sequence[InFlightRequest]) -> None:
        """Find the output of earlier runs of requests; without it they begin anew.

        So does the last try: that output may be what the others failed at.
        """
        requests = [each for each in requests if each.lease.attempt < self._broker.limits.max_deliveries]
        if not requests:
            return
        with contextlib.suppress(StreamfleetError, TimeoutError):
            async with asyncio.timeout(KEPT_S):
                outputs = await self._broker.kept([request.claim.kept for request in requests])
                for request, output in zip(requests, outputs, strict=True):
                    request.resume = None if output is None else Partial.decode(output)

    async def _wait(self, role: Role, lanes: list[Lane]) -> None:
        """Wait until there may be work in these lanes; beside it for room, if there is none for the others."""
        if len(lanes) < len(LANES):
            await self._listen(role, lanes)
            await self._wait_for_room()
            return
        beside = self._listener is not None
        await self._stop_listening()
        if beside or self._hints:
            return  # it may have heard of something since the pull
        self._blocked = self._idle = True
        try:
            await self._hear(role, lanes)
        finally:
            self._blocked = False

    async def _hear(self, role: Role, lanes: list[Lane]) -> None:
        longest_ms = WAIT_MS if role is Role.WATCHER else WAITER_MS
        timeout_ms = min(longest_ms, self._admission.policy.wait_ms(self._clock.monotonic()) or longest_ms)
        if self._soonest_ms is not None:
            timeout_ms = min(timeout_ms, self._soonest_ms + 1)
        if role is Role.WATCHER:
            heard = await self._broker.watch(timeout_ms, lanes)
            self._hints += heard  # behind the wait: a pull takes the list away meanwhile
        else:
            self._may_watch = await self._broker.wait(timeout_ms, self._worker)

    async def _listen(self, role: Role, lanes: list[Lane]) -> None:
        """Go on hearing of requests in the background; what is heard ends a wait for room."""
        listens_for = role, lanes if role is Role.WATCHER else []
        if self._listener is not None and (self._listener.done() or listens_for != self._listens_for):
            await self._stop_listening()
        if self._listener is None:
            self._listens_for = listens_for
            self._listener = asyncio.create_task(self._hear_beside(role, lanes))

    async def _hear_beside(self, role: Role, lanes: list[Lane]) -> None:
        try:
            await self._hear(role, lanes)
        except BrokerUnavailable:
            return  # the next pull finds out, and waits for Redis
        except SettingsError:
            self._in_flight.changed.set()  # `_stop_listening` raises it
            raise
        self._in_flight.changed.set()

    async def _stop_listening(self) -> None:
        while self._listener is not None and not self._listener.done():
            with contextlib.suppress(BrokerUnavailable):
                await self._broker.unblock()
            await asyncio.wait({self._listener}, timeout=UNBLOCK_AGAIN_S)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.result()

    async def _wait_for_room(self) -> None:
        wait_ms = self._admission.policy.wait_ms(self._clock.monotonic())
        wait_s = None if wait_ms is None else wait_ms / 1000
        if self._in_flight.awaited_tokens:
            wait_s = min(wait_s or LOOK_AGAIN_S, LOOK_AGAIN_S)
        try:
            async with asyncio.timeout(wait_s):
                await self._in_flight.changed.wait()
        except TimeoutError:
            pass

    async def _reconnect(self) -> None:
        """Wait for Redis, then hand back requests that were claimed for this worker in an answer that was lost."""
        while not self._stopping:
            try:
                await self._broker.connection.ping()
                back = await self._broker.disown(self._worker, self._in_flight.leases())
                if back:
                    log.warning("handed_back_unknown", requests=back)
                return
            except BrokerUnavailable:
                await self._clock.sleep(RECONNECT_S)

    async def _leave(self) -> None:
        try:
            await self._stop_listening()
            if self._owing or self._hints:
                await self._pull((0,) * len(LANES))
            await self._broker.disown(self._worker, self._in_flight.leases())
        except (BrokerUnavailable, BrokerOutOfMemory) as error:
            log.warning("left_without_redis", error=str(error))
