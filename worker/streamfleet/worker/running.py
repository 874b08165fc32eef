"""The requests in the engine: each a task of its own, from its launch to its outcome."""

from __future__ import annotations

import asyncio

from streamfleet.common import metrics
from streamfleet.common.clock import Clock
from streamfleet.worker.complete import Completer
from streamfleet.worker.execute import Executor
from streamfleet.worker.fitness import Fitness
from streamfleet.worker.flights import Fate, Flight, Flights
from streamfleet.worker.outcome import HandedBack, Postponed
from streamfleet.worker.pull import Puller


class Running:
    """Launches flights until it is closed or the engine is found dead; hands back what comes later.

    Args:
        executor: takes one flight to its outcome.
        completer: gets the outcomes.
        flights: flights land here.
        fitness: told of every outcome.
        clock: for run times.
    """

    def __init__(
        self, executor: Executor, completer: Completer, flights: Flights, fitness: Fitness, clock: Clock
    ) -> None:
        self._executor, self._completer, self._flights = executor, completer, flights
        self._fitness, self._clock = fitness, clock
        self._tasks: dict[Flight, asyncio.Task[None]] = {}
        self._closed = False
        self._puller: Puller | None = None
        self.engine_died: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def feed_from(self, puller: Puller) -> None:
        """Where flights come from, to be told how many may come."""
        self._puller = puller

    def launch(self, flight: Flight) -> None:
        """Start a flight, or hand it back untried if nothing is to start any more."""
        if self._closed:
            self._hand_back(flight)
            return
        self._tasks[flight] = asyncio.create_task(self._fly(flight))
        metrics.RUNNING.set(len(self._tasks))

    def close(self) -> None:
        """Launch nothing from now on."""
        self._closed = True

    def heed_fitness(self) -> None:
        """Pull as much as the worker is fit for."""
        if self._puller is not None and not self._closed:
            self._puller.allow(self._fitness.allowance(self._clock.monotonic()))

    def release_waiting(self, slots: int) -> None:
        """What only waits in front of the engine goes back at once: another worker may have a free slot."""
        for flight in self._flights.active():
            slots -= flight.demand.sequences
            if flight not in self._tasks:
                self._hand_back(flight)
            elif slots < 0:
                flight.stop(Fate.RELEASED)

    async def idle(self) -> None:
        """Returns once nothing runs."""
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    async def stop(self, fate: Fate, within_s: float) -> None:
        """Stop everything that runs; what never started goes back untried."""
        for flight in self._flights.active():
            if flight in self._tasks:
                flight.stop(fate)
            else:
                self._hand_back(flight)
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()), timeout=within_s)

    def _hand_back(self, flight: Flight) -> None:
        self._flights.land(flight)
        self._completer.put(flight, HandedBack())

    async def _fly(self, flight: Flight) -> None:
        started = self._clock.monotonic()
        outcome = await self._executor.execute(flight)
        now = self._clock.monotonic()
        self._fitness.saw(outcome, now)
        if isinstance(outcome, Postponed) and outcome.engine_died:
            self._declare_dead(outcome.reason)
        self._tasks.pop(flight, None)
        self._flights.land(flight)
        metrics.RUNNING.set(len(self._tasks))
        metrics.RUN.labels(flight.lease.lane).observe(now - started)
        self._completer.put(flight, outcome)
        self.heed_fitness()

    def _declare_dead(self, reason: str) -> None:
        # Before the room that this flight frees is seen: a dead engine would fail request after request in no time.
        self.close()
        if self._puller is not None:
            self._puller.allow(0)
        if not self.engine_died.done():
            self.engine_died.set_result(reason)
