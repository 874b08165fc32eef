"""The requests in the engine: each runs in a task of its own, from its launch to its outcome.

Flights come in through `launch`, from the puller. Their outcomes go to the completer, the batching policy and the
circuit breaker. Nothing here touches Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from streamfleet.common import metrics
from streamfleet.common.clock import Clock
from streamfleet.worker.complete import Completer
from streamfleet.worker.counting import how_it_ended
from streamfleet.worker.execute import Executor
from streamfleet.worker.fitness import Fitness
from streamfleet.worker.flights import Fate, Flight, Flights
from streamfleet.worker.outcome import HandedBack, Outcome, Postponed
from streamfleet.worker.pull import Puller
from streamfleet.worker.suspects import company, least

log = structlog.get_logger(__name__)


class Running:
    """Launches flights as far as that is useful, and hands back the others without a try.

    It launches nothing after it is closed or the engine has died; no more than an unfit worker may try; and no more
    together than the suspects among them allow.

    Args:
        executor: runs one flight to its outcome.
        completer: gets the outcomes.
        flights: gets the flights that landed.
        fitness: gets every outcome.
        clock: source of run times.
        max_deliveries: most attempts of a request.
        slots: returns the most requests that this worker holds; None if unknown.
        observe: called with every launched flight, its outcome, and the time of the outcome, in monotonic seconds.
    """

    def __init__(
        self,
        executor: Executor,
        completer: Completer,
        flights: Flights,
        fitness: Fitness,
        clock: Clock,
        max_deliveries: int,
        slots: Callable[[], int] | None = None,
        observe: Callable[[Flight, Outcome, float], None] = lambda _flight, _outcome, _now: None,
    ) -> None:
        self._executor, self._completer, self._flights = executor, completer, flights
        self._fitness, self._clock, self._max_deliveries = fitness, clock, max_deliveries
        self._slots, self._observe = slots, observe
        self._tasks: dict[Flight, asyncio.Task[None]] = {}
        metrics.RUNNING.set_function(lambda: len(self._tasks))
        self._company: dict[Flight, int] = {}
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
        """Wait until a flight's task fails, then raise its error: otherwise its lease is renewed for ever."""
        await self._broke

    def launch(self, flight: Flight) -> None:
        """Start a flight, or hand it back without a try."""
        if self._closed or not self._fits(flight):
            self._hand_back(flight, in_turn=True)
            self._limit_pulls()
            return
        self._tasks[flight] = asyncio.create_task(self._fly(flight))
        if self._nothing_special and flight.claim.lost == 0:
            return
        self._making_room = None
        if (limit := self._company_of(flight)) is not None:
            self._company[flight] = limit
        self._limit_pulls()

    def close(self) -> None:
        """Launch nothing from now on."""
        self._closed = True

    def heed_fitness(self) -> None:
        """Pull as much as the worker's fitness allows.

        A worker that has just become unfit hands back its work at once: other engines may work, and here it would only
        fail.
        """
        fit, was_fit, self._was_fit = self._fitness.fit, self._was_fit, self._fitness.fit
        self._limit_pulls()
        if fit == was_fit or self._closed:
            return
        held = len(self._flights.active())
        log.warning("fitness_changed", fit=fit, last_fault=self._fitness.last_fault, handed_back=0 if fit else held)
        if not fit:
            self._stop_all(Fate.RELEASED)

    def release_waiting(self, slots: int) -> None:
        """Hand back requests that only wait in front of the engine: another worker may have a free slot."""
        for flight in self._flights.active():
            slots -= flight.demand.sequences
            if flight not in self._tasks:
                self._hand_back(flight)
            elif slots < 0:
                flight.stop(Fate.RELEASED)

    async def idle(self) -> None:
        """Wait until nothing runs."""
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    async def stop(self, fate: Fate, within_s: float) -> None:
        """Stop all running requests; those that never started go back without a try."""
        self._stop_all(fate)
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()), timeout=within_s)

    def _stop_all(self, fate: Fate) -> None:
        for flight in self._flights.active():
            if flight in self._tasks:
                flight.stop(fate)
            else:
                self._hand_back(flight)

    @property
    def _nothing_special(self) -> bool:
        """True for a fit worker without suspects: nothing limits it, and nobody has to be told."""
        return self._was_fit and self._fitness.fit and not self._company and self._making_room is None

    def _fits(self, flight: Flight) -> bool:
        """True if the flight may run beside the running ones.

        A suspect that may not run goes back: waiting here, it could be lost with this worker without a try. But room is
        made for
        it, by pulling nothing until it would fit; otherwise a busy fleet would never run it.
        """
        if self._nothing_special and flight.claim.lost == 0:
            return True
        together = len(self._tasks) + 1
        limit = self._company_of(flight)
        if limit is not None and together > limit:
            self._making_room = least(limit, self._making_room)
            log.info("making_room_for_a_suspect", entry=flight.lease.entry, attempt=flight.lease.attempt, beside=limit)
        most = self._most()
        return most is None or together <= most

    def _company_of(self, flight: Flight) -> int | None:
        return company(flight.claim, self._max_deliveries, None if self._slots is None else self._slots())

    def _most(self) -> int | None:
        """Most requests to hold now; None for no limit."""
        suspects = min(self._company.values(), default=None)
        return least(self._fitness.allowance(self._clock.monotonic()), suspects, self._making_room)

    def _limit_pulls(self) -> None:
        if self._puller is not None and not self._closed:
            self._puller.allow(self._most())

    def _hand_back(self, flight: Flight, *, in_turn: bool = False) -> None:
        self._flights.land(flight)
        self._completer.put(flight, HandedBack(in_turn))

    async def _fly(self, flight: Flight) -> None:
        try:
            started = self._clock.monotonic()
            outcome = await self._executor.execute(flight)
            now = self._clock.monotonic()
            self._observe(flight, outcome, now)
            outcome = self._fitness.weigh(outcome, flight.lease.attempt, now)
            if flight.trace is not None:
                flight.trace.landed(outcome, now)
            self._land(flight, outcome)
            metrics.of(metrics.RUN, flight.lease.lane, how_it_ended(outcome)).observe(now - started)
        except Exception as error:  # noqa: BLE001 - raised by `run`, which ends the worker
            if not self._broke.done():
                self._broke.set_exception(error)

    def _land(self, flight: Flight, outcome: Outcome) -> None:
        if isinstance(outcome, Postponed) and outcome.engine_died:
            self._declare_dead(outcome.reason)
        self._tasks.pop(flight, None)
        alone = self._company.pop(flight, None) is None
        self._flights.land(flight)
        self._completer.put(flight, outcome)
        if not (alone and self._nothing_special):
            self.heed_fitness()

    def _declare_dead(self, reason: str) -> None:
        # Done before the room of this flight is seen: a dead engine would fail request after request at once.
        self.close()
        if self._puller is not None:
            self._puller.allow(0)
        if not self.engine_died.done():
            self.engine_died.set_result(reason)
