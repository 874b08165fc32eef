"""Fault containment: poison isolation and circuit breaker, two rules that keep one fault from harming other requests.

Isolation looks at requests that were lost with a worker, the breaker at outcomes. The dispatcher tells them what starts
and ends, and each returns the most requests to hold. Pure.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from streamfleet.common.broker.types import Claim
from streamfleet.worker.execute import Executor
from streamfleet.worker.in_flight import InFlightRequest
from streamfleet.worker.outcome import Finished, Outcome, Postponed
from streamfleet.worker.pull import Puller

SHRINKS_BY = 4
UNREADY_FAILURES = 20
"""Faults in a row, without one success, that make a worker unready: no run of unlucky requests is so long, and a broken
engine reaches it within seconds."""
REST_S = 15.0
_MOST_TENANTS = 256


def least(*limits: int | None) -> int | None:
    """The smallest of several limits; None if there is none."""
    return min((limit for limit in limits if limit is not None), default=None)


class PoisonIsolation:
    """Limits the requests beside a suspect, which is a request that was lost with a worker before.

    A suspect may be the cause of that loss. A request that kills its worker takes down all requests beside it, and all
    of them come back with an attempt counted. If they ran together again and again, innocent requests would be given up
    with the guilty one. So company shrinks with each attempt, to a quarter each time, until a request runs alone on its
    last attempt: if it is given up then, it has killed a worker that ran nothing else. In a worker with few slots,
    company shrinks from the number of slots; otherwise innocent requests would share most of their attempts with the
    guilty one, and have none left for another fault.

    Attributes:
        limit: most requests to hold beside the suspects that run, or that room is made for; None for no limit.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._running: dict[InFlightRequest, int] = {}
        self._making_room: int | None = None

    def company(self, claim: Claim, slots: int, max_deliveries: int, *, suspect: bool = False) -> int | None:
        """Most requests that may run together with this one, itself included; None for no limit.

        Args:
            claim: the request, with the number of workers that it was lost with. A passing fault of an engine never
                makes it suspect; only a lost worker does.
            slots: most requests that this worker runs. The first lost worker does not reduce company from them, the
                second does.
            max_deliveries: most attempts of a request of its queue.
            suspect: true if it was lost with a remote server, not with a worker.
        """
        if claim.lost == 0 and not suspect:
            return None
        by_attempts = int(SHRINKS_BY ** max(0, max_deliveries - claim.lease.attempt))
        by_losses = int(slots // SHRINKS_BY ** (claim.lost - 1))
        return min(by_attempts, max(1, by_losses))

    def make_room(self, company: int) -> None:
        """Hold no more requests than `company`, until one starts: a suspect went back because more were running."""
        self._making_room = least(company, self._making_room)
        self._limit()

    def started(self, request: InFlightRequest, company: int | None) -> None:
        """Record that a request runs, and how many may run beside it."""
        self._making_room = None
        if company is not None:
            self._running[request] = company
        self._limit()

    def ended(self, request: InFlightRequest) -> bool:
        """Record that a request has ended. Returns True if it was a suspect."""
        was_suspect = self._running.pop(request, None) is not None
        if was_suspect:
            self._limit()
        return was_suspect

    def _limit(self) -> None:
        self.limit = least(self._making_room, *self._running.values())


class CircuitBreaker:
    """Counts engine faults since the last success: if all requests of a worker fail, it must not use up the queue.

    An engine's 500 shows that a request and an engine do not go together, not which of them is at fault. Three rules
    decide:

    - After a fault and until the next success nobody knows if the engine works, so a 500 then is no verdict on the
      request: it is tried again, with the attempt counted, best elsewhere. A broken engine thus fails one request, not
      the queue.
    - Of one request, only the first attempt's 500 counts against a fit worker. So a request that breaks every engine
      puts one worker in question at most, and not one worker after the other. A passing fault, such as a 503, counts at
      each attempt.
    - Faults make the worker unfit by themselves only if they are of several tenants, half of them of others than the
      one with the most, and of different bodies. Otherwise they may be one caller's doing, and a request of the
      worker's own, the probe, decides. Until then the worker goes on; where the engine refuses all probes, it goes on
      and counts anew.

    Outcomes that say nothing about the engine do not count. An unfit worker rests, and faults of requests that began
    before do not prolong that. Then it probes the engine until that succeeds. Where the engine refuses all probes, one
    request at a time is the probe, and each attempt counts: the worker rests again after faults of several tenants and
    bodies, or after `most` of one tenant, so that a tenant's requests do not keep those of others from being tried.

    Args:
        most: number of faults that makes the worker unfit, or has the engine probed.

    Attributes:
        fit: true if the engine is believed to work.
        in_question: true if a probe is to decide whether it works.
        last_fault: the engine's last fault; empty if there was none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._faults: Counter[bytes] = Counter()
        self._bodies: set[int] = set()
        self._doubted = self._tries_one = False
        self._rests_until = 0.0
        self.fit, self.in_question = True, False
        self.last_fault = ""

    def weigh(self, outcome: Outcome, claim: Claim, now: float) -> Outcome:
        """Record an outcome and return the one to write.

        Args:
            outcome: outcome of the run.
            claim: the request, with its tenant, its body and the number of its attempt.
            now: monotonic seconds.
        """
        if isinstance(outcome, Finished):
            if outcome.engine_ok:
                self._works()
            if outcome.engine_ok is not False:
                return outcome
        elif not isinstance(outcome, Postponed):
            return outcome
        doubted, self._doubted = self._doubted, True
        if isinstance(outcome, Postponed):
            self.last_fault = outcome.reason
            self._count(claim, now, enough=outcome.engine_hangs)
            return outcome
        self.last_fault = f"the engine answered {outcome.http_status}"
        if claim.lease.attempt == 1 or self._tries_one:
            self._count(claim, now)
        return Postponed(self.last_fault, said=_message(outcome.error), held=outcome.held) if doubted else outcome

    def _count(self, claim: Claim, now: float, *, enough: bool = False) -> None:
        if enough:
            self._rest(now)
        if not (self.fit or self._tries_one):
            return
        tenant = claim.fields.get(b"tenant", b"")
        self._faults[tenant if tenant in self._faults or len(self._faults) < _MOST_TENANTS else b""] += 1
        if len(self._bodies) < 2:  # more of them tell nothing more
            self._bodies.add(hash(claim.fields.get(b"body", b"")))
        faults = self._faults.total()
        of_others = faults - max(self._faults.values())
        of_several = of_others >= faults // 2 and len(self._bodies) > 1
        many = faults >= self._most
        if (of_several and (many or self._tries_one)) or (many and self._tries_one):
            self._rest(now)
        elif many:
            self.in_question = True

    def _works(self) -> None:
        self._count_anew()
        self._doubted = False
        self.fit = True

    def _count_anew(self) -> None:
        self._faults.clear()
        self._bodies.clear()
        self.in_question = False

    def _rest(self, now: float) -> None:
        self._count_anew()
        self.fit = self._tries_one = False
        self._rests_until = now + REST_S

    def wants_probe(self, now: float) -> bool:
        """True if the engine is to be probed: it is in question, or the rest is over."""
        return self.in_question or not (self.fit or self._tries_one or now < self._rests_until)

    def probed(self, works: bool | None, now: float) -> None:
        """Record the outcome of a probe: True if it succeeded, False if it failed, None if it says nothing."""
        if works:
            self._works()
        elif works is None:
            self._count_anew()
            self._tries_one = not self.fit
        elif self.in_question or not self.fit:  # else a request has succeeded meanwhile
            self._rest(now)

    @property
    def allowance(self) -> int | None:
        """Most requests to hold now: None for no limit, 0 for an unfit worker, 1 if only a request can try it."""
        return None if self.fit else int(self._tries_one)


class Containment:
    """Both rules, and what runs, for all queues of one engine: what a request does to it harms those of every queue.

    Attributes:
        isolation, breaker: the rules.
        slots: most requests that may run together, without the limit of a server that is busy or was away.
        running: number of requests that run.
        pullers: each is told the most requests to hold.
        probe: the task that probes the engine, or did so last.
        suspect: the executor of the queue whose request found the last fault of the engine; it probes its own model.
        engine_died: the reason, as soon as a request finds out that the engine is dead.
    """

    def __init__(self) -> None:
        self.isolation, self.breaker = PoisonIsolation(), CircuitBreaker(UNREADY_FAILURES)
        self.slots = self.running = 0
        self.pullers: list[Puller] = []
        self.probe: asyncio.Task[None] | None = None
        self.suspect: Executor | None = None
        self.engine_died: asyncio.Future[str] = asyncio.get_running_loop().create_future()


def _message(error: str) -> str:
    return str(json.loads(error)["error"]["message"])
