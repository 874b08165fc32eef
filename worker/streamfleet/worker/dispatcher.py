"""Dispatcher of the requests in the engine: each runs in a task of its own, from its start to its outcome.

Requests come in through `start`, from the puller; their outcomes go to the completer. The two rules of fault
containment limit what runs together and what the puller may hold. Nothing here touches Redis.
"""

from __future__ import annotations

import asyncio
from contextvars import Context

import structlog

from streamfleet.common import metrics
from streamfleet.common.clock import Clock
from streamfleet.common.limits import QueueLimits
from streamfleet.worker.complete import Completer
from streamfleet.worker.containment import Containment, least
from streamfleet.worker.counting import how_it_ended
from streamfleet.worker.execute import Executor
from streamfleet.worker.in_flight import InFlight, InFlightRequest, StopReason
from streamfleet.worker.outcome import Finished, HandedBack, Outcome, Postponed
from streamfleet.worker.pull import Puller

log = structlog.get_logger(__name__)
PROBE_S = 30.0


class Dispatcher:
    """Starts requests as far as that is useful, and hands back the others without a try.

    It starts nothing after it is closed or the engine has died; no more than an unfit worker may try; and no more
    together than the suspects among them allow.

    Args:
        puller: told how many requests to hold.
        executor: runs one request to its outcome, and probes the engine.
        completer: gets the outcomes.
        in_flight: told when the engine is done with a request.
        limits: most attempts of a request.
        clock: source of run times.
        containment: what the dispatchers of all queues of the engine have in common; None if this is the only one.

    Attributes:
        engine_died: the reason, as soon as a request finds out that the engine is dead.
    """

    def __init__(
        self,
        puller: Puller,
        executor: Executor,
        completer: Completer,
        in_flight: InFlight,
        limits: QueueLimits,
        clock: Clock,
        containment: Containment | None = None,
    ) -> None:
        self._executor, self._completer = executor, completer
        self._in_flight, self._clock = in_flight, clock
        shared = self._shared = containment or Containment()
        shared.pullers.append(puller)
        self._isolation, self._breaker, self.engine_died = shared.isolation, shared.breaker, shared.engine_died
        self.configure(limits)
        self._was_fit = True
        self._closed = False
        self._tasks: dict[InFlightRequest, asyncio.Task[None]] = {}
        self._probe: asyncio.Task[None] | None = None
        metrics.RUNNING.set_function(lambda: shared.running)
        self._broke: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def configure(self, limits: QueueLimits) -> None:
        """Isolate suspects by these limits from now on."""
        self._max_deliveries = limits.max_deliveries

    @property
    def fit(self) -> bool:
        """True if the engine is there, and believed to work."""
        return self._breaker.fit and not self._executor.unready

    @property
    def why_unfit(self) -> str:
        """Reason why the engine does not work."""
        if self._breaker.fit:
            return self._executor.unready or "its server has just come back"
        return self._executor.unready or f"every request fails: {self._breaker.last_fault}"

    async def run(self) -> None:
        """Wait until a request's task fails, then raise its error: otherwise its lease is renewed for ever."""
        await self._broke

    def start(self, request: InFlightRequest) -> None:
        """Start a request, or hand it back without a try."""
        unlimited = self._unlimited and request.claim.lost == 0 and not self._executor.suspects(request)
        company = None if unlimited else self._company(request)
        stopped = self._closed or self.engine_died.done()
        if stopped or not (unlimited or self._fits(request, company)):
            self._hand_back(request, in_turn=True)
            self._limit_pulls()
            return
        self._tasks[request] = asyncio.create_task(self._execute(request))
        self._shared.running += 1
        if not unlimited:
            self._isolation.started(request, company)
            self._limit_pulls()

    def _company(self, request: InFlightRequest) -> int | None:
        suspect = self._executor.suspects(request)
        return self._isolation.company(request.claim, self._shared.slots, self._max_deliveries, suspect=suspect)

    def close(self) -> None:
        """Start nothing from now on."""
        self._closed = True
        if self._probe is not None:
            self._probe.cancel()

    def heed_breaker(self) -> None:
        """Pull as much as the circuit breaker allows, and probe the engine if it wants that.

        A worker that has just become unfit hands back its work at once: other engines may work, and here it would only
        fail.
        """
        fit, was_fit, self._was_fit = self._breaker.fit, self._was_fit, self._breaker.fit
        self._limit_pulls()
        if self._closed:
            return
        probes = self._shared.probe is not None and not self._shared.probe.done()
        if not probes and self._breaker.wants_probe(self._clock.monotonic()):
            apart = Context()  # its log lines name no request
            self._shared.probe = self._probe = asyncio.create_task(self._probe_engine(), context=apart)
        if fit == was_fit:
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

    def hand_over(self) -> None:
        """Hand back what another worker can go on with; the rest goes on here."""
        for request in self._in_flight.active():
            if request in self._tasks and request.asked is not None and request.asked.continuable:
                request.stop(StopReason.RELEASED)

    async def idle(self) -> None:
        """Wait until nothing runs."""
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    async def stop(self, reason: StopReason, within_s: float) -> None:
        """Stop all running requests; those that never started go back without a try."""
        self._stop_all(reason)
        tasks = {*self._tasks.values(), *([self._probe] if self._probe is not None else [])}
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)

    def _stop_all(self, reason: StopReason) -> None:
        for request in self._in_flight.active():
            if request in self._tasks:
                request.stop(reason)
            else:
                self._hand_back(request)

    @property
    def _unlimited(self) -> bool:
        """True for a fit worker without suspects: nothing limits it, and nobody has to be told."""
        fit = self._was_fit and self._breaker.fit and self._executor.allowance is None
        return fit and self._isolation.limit is None

    def _fits(self, request: InFlightRequest, company: int | None) -> bool:
        """True if the request may run beside the running ones.

        A suspect that may not run goes back: waiting here, it could be lost with this worker without a try. But room is
        made for it, by pulling nothing until it would fit; otherwise a busy fleet would never run it.
        """
        together = self._shared.running + 1
        if company is not None and together > company:
            self._isolation.make_room(company)
            log.info(
                "making_room_for_a_suspect", entry=request.lease.entry, attempt=request.lease.attempt, beside=company
            )
        most = self._most()
        return most is None or together <= most

    def _most(self) -> int | None:
        """Most requests to hold now; None for no limit."""
        if self.engine_died.done():
            return 0
        return least(self._breaker.allowance, self._isolation.limit, self._executor.allowance)

    def _limit_pulls(self) -> None:
        if not self._closed:
            for puller in self._shared.pullers:
                puller.allow(self._most())

    def _hand_back(self, request: InFlightRequest, *, in_turn: bool = False) -> None:
        self._in_flight.done(request)
        self._completer.put(request, HandedBack(in_turn))

    async def _execute(self, request: InFlightRequest) -> None:
        try:
            started = self._clock.monotonic()
            outcome = await self._executor.execute(request)
            now = self._clock.monotonic()
            if isinstance(outcome, Postponed) or (isinstance(outcome, Finished) and outcome.engine_ok is False):
                self._shared.suspect = self._executor
            outcome = self._breaker.weigh(outcome, request.claim, now)
            if request.trace is not None:
                request.trace.done(outcome, now)
            self._done(request, outcome)
            metrics.RUN.labels(request.lease.lane, how_it_ended(outcome)).observe(now - started)
        except Exception as error:  # noqa: BLE001 - raised by `run`, which ends the worker
            if not self._broke.done():
                self._broke.set_exception(error)

    def _done(self, request: InFlightRequest, outcome: Outcome) -> None:
        if isinstance(outcome, Postponed) and outcome.engine_died:
            self._declare_dead(outcome.reason)
        if self._tasks.pop(request, None) is not None:
            self._shared.running -= 1
        was_suspect = self._isolation.ended(request)
        self._in_flight.done(request)
        if isinstance(outcome, HandedBack) and outcome.after_ms and not self._closed:
            # Its lease is kept meanwhile; where this worker ends, the lease goes back with all others.
            left_s = request.late_at - self._clock.monotonic()
            wait_s = max(0.0, min(outcome.after_ms / 1000, left_s))
            asyncio.get_running_loop().call_later(wait_s, self._completer.put, request, outcome)
        else:
            self._completer.put(request, outcome)
        if was_suspect or self._breaker.in_question or not self._unlimited:
            self.heed_breaker()

    async def _probe_engine(self) -> None:
        works: bool | None
        try:
            async with asyncio.timeout(PROBE_S):
                works = await (self._shared.suspect or self._executor).probe()
        except TimeoutError:
            works = None if self._breaker.fit else False  # the engine of a fit worker may just be full
        log.info("engine_probed", works=works, last_fault=self._breaker.last_fault)
        self._breaker.probed(works, self._clock.monotonic())
        self.heed_breaker()

    def _declare_dead(self, reason: str) -> None:
        # Done before the room of this request is seen: a dead engine would fail request after request at once.
        self.close()
        for puller in self._shared.pullers:
            puller.allow(0)
        if not self.engine_died.done():
            self.engine_died.set_result(reason)
