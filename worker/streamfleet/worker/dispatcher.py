"""Dispatcher of the requests in the engine: each runs in a task of its own, from its start to its outcome.

Requests come in through `start`, from the puller. Their outcomes go to the completer, the batching policy and the
circuit breaker. Nothing here touches Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from streamfleet.common import metrics
from streamfleet.common.clock import Clock
from streamfleet.worker.circuit_breaker import CircuitBreaker
from streamfleet.worker.complete import Completer
from streamfleet.worker.counting import how_it_ended
from streamfleet.worker.execute import Executor
from streamfleet.worker.in_flight import InFlight, InFlightRequest, StopReason
from streamfleet.worker.outcome import HandedBack, Outcome, Postponed
from streamfleet.worker.poison_isolation import company, least
from streamfleet.worker.pull import Puller

log = structlog.get_logger(__name__)


class Dispatcher:
    """Starts requests as far as that is useful, and hands back the others without a try.

    It starts nothing after it is closed or the engine has died; no more than an unfit worker may try; and no more
    together than the suspects among them allow.

    Args:
        executor: runs one request to its outcome.
        completer: gets the outcomes.
        in_flight: told when the engine is done with a request.
        breaker: gets every outcome.
        clock: source of run times.
        max_deliveries: most attempts of a request.
        slots: returns the most requests that this worker holds; None if unknown.
        observe: called with every started request, its outcome, and the time of the outcome, in monotonic seconds.
    """

    def __init__(
        self,
        executor: Executor,
        completer: Completer,
        in_flight: InFlight,
        breaker: CircuitBreaker,
        clock: Clock,
        max_deliveries: int,
        slots: Callable[[], int] | None = None,
        observe: Callable[[InFlightRequest, Outcome, float], None] = lambda _request, _outcome, _now: None,
    ) -> None:
        self._executor, self._completer, self._in_flight = executor, completer, in_flight
        self._breaker, self._clock, self._max_deliveries = breaker, clock, max_deliveries
        self._slots, self._observe = slots, observe
        self._tasks: dict[InFlightRequest, asyncio.Task[None]] = {}
        metrics.RUNNING.set_function(lambda: len(self._tasks))
        self._company: dict[InFlightRequest, int] = {}
        self._closed = False
        self._was_fit = True
        self._making_room: int | None = None
        self._puller: Puller | None = None
        self.engine_died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._broke: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def feed_from(self, puller: Puller) -> None:
        """Set the puller, which is told how many requests to hold."""
        self._puller = puller

    async def run(self) -> None:
        """Wait until a request's task fails, then raise its error: otherwise its lease is renewed for ever."""
        await self._broke

    def start(self, request: InFlightRequest) -> None:
        """Start a request, or hand it back without a try."""
        if self._closed or not self._fits(request):
            self._hand_back(request, in_turn=True)
            self._limit_pulls()
            return
        self._tasks[request] = asyncio.create_task(self._execute(request))
        if self._nothing_special and request.claim.lost == 0:
            return
        self._making_room = None
        if (limit := self._company_of(request)) is not None:
            self._company[request] = limit
        self._limit_pulls()

    def close(self) -> None:
        """Start nothing from now on."""
        self._closed = True

    def heed_breaker(self) -> None:
        """Pull as much as the circuit breaker allows.

        A worker that has just become unfit hands back its work at once: other engines may work, and here it would only
        fail.
        """
        fit, was_fit, self._was_fit = self._breaker.fit, self._was_fit, self._breaker.fit
        self._limit_pulls()
        if fit == was_fit or self._closed:
            return
        held = len(self._in_flight.active())
        log.warning("fitness_changed", fit=fit, last_fault=self._breaker.last_fault, handed_back=0 if fit else held)
        if not fit:
            self._stop_all(StopReason.RELEASED)

    def release_waiting(self, slots: int) -> None:
        """Hand back requests that only wait in front of the engine: another worker may have a free slot."""
        for request in self._in_flight.active():
            slots -= request.demand.sequences
            if request not in self._tasks:
                self._hand_back(request)
            elif slots < 0:
                request.stop(StopReason.RELEASED)

    async def idle(self) -> None:
        """Wait until nothing runs."""
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    async def stop(self, reason: StopReason, within_s: float) -> None:
        """Stop all running requests; those that never started go back without a try."""
        self._stop_all(reason)
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()), timeout=within_s)

    def _stop_all(self, reason: StopReason) -> None:
        for request in self._in_flight.active():
            if request in self._tasks:
                request.stop(reason)
            else:
                self._hand_back(request)

    @property
    def _nothing_special(self) -> bool:
        """True for a fit worker without suspects: nothing limits it, and nobody has to be told."""
        return self._was_fit and self._breaker.fit and not self._company and self._making_room is None

    def _fits(self, request: InFlightRequest) -> bool:
        """True if the request may run beside the running ones.

        A suspect that may not run goes back: waiting here, it could be lost with this worker without a try. But room is
        made for
        it, by pulling nothing until it would fit; otherwise a busy fleet would never run it.
        """
        if self._nothing_special and request.claim.lost == 0:
            return True
        together = len(self._tasks) + 1
        limit = self._company_of(request)
        if limit is not None and together > limit:
            self._making_room = least(limit, self._making_room)
            log.info(
                "making_room_for_a_suspect", entry=request.lease.entry, attempt=request.lease.attempt, beside=limit
            )
        most = self._most()
        return most is None or together <= most

    def _company_of(self, request: InFlightRequest) -> int | None:
        return company(request.claim, self._max_deliveries, None if self._slots is None else self._slots())

    def _most(self) -> int | None:
        """Most requests to hold now; None for no limit."""
        suspects = min(self._company.values(), default=None)
        return least(self._breaker.allowance(self._clock.monotonic()), suspects, self._making_room)

    def _limit_pulls(self) -> None:
        if self._puller is not None and not self._closed:
            self._puller.allow(self._most())

    def _hand_back(self, request: InFlightRequest, *, in_turn: bool = False) -> None:
        self._in_flight.done(request)
        self._completer.put(request, HandedBack(in_turn))

    async def _execute(self, request: InFlightRequest) -> None:
        try:
            started = self._clock.monotonic()
            outcome = await self._executor.execute(request)
            now = self._clock.monotonic()
            self._observe(request, outcome, now)
            outcome = self._breaker.weigh(outcome, request.lease.attempt, now)
            if request.trace is not None:
                request.trace.done(outcome, now)
            self._done(request, outcome)
            metrics.of(metrics.RUN, request.lease.lane, how_it_ended(outcome)).observe(now - started)
        except Exception as error:  # noqa: BLE001 - raised by `run`, which ends the worker
            if not self._broke.done():
                self._broke.set_exception(error)

    def _done(self, request: InFlightRequest, outcome: Outcome) -> None:
        if isinstance(outcome, Postponed) and outcome.engine_died:
            self._declare_dead(outcome.reason)
        self._tasks.pop(request, None)
        alone = self._company.pop(request, None) is None
        self._in_flight.done(request)
        self._completer.put(request, outcome)
        if not (alone and self._nothing_special):
            self.heed_breaker()

    def _declare_dead(self, reason: str) -> None:
        # Done before the room of this request is seen: a dead engine would fail request after request at once.
        self.close()
        if self._puller is not None:
            self._puller.allow(0)
        if not self.engine_died.done():
            self.engine_died.set_result(reason)
