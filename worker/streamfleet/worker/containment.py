"""Fault containment: poison isolation and circuit breaker, two rules that keep one fault from harming other requests.

Isolation looks at requests that were lost with a worker, the breaker at outcomes. The dispatcher tells them what starts
and ends, and each returns the most requests to hold. Pure.
"""

from __future__ import annotations

import asyncio
import json

from streamfleet.common.broker.types import Claim
from streamfleet.worker.in_flight import InFlightRequest
from streamfleet.worker.outcome import Finished, Outcome, Postponed
from streamfleet.worker.pull import Puller

SHRINKS_BY = 4
REST_S = 15.0


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

    def company(self, claim: Claim, slots: int, max_deliveries: int) -> int | None:
        """Most requests that may run together with this one, itself included; None for no limit.

        Args:
            claim: the request, with the number of workers that it was lost with. A passing fault of an engine never
                makes it suspect; only a lost worker does.
            slots: most requests that this worker runs. The first lost worker does not reduce company from them, the
                second does.
            max_deliveries: most attempts of a request of its queue.
        """
        if claim.lost == 0:
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

    An engine's 500 shows that a request and an engine do not go together, not which of them is at fault. Two rules
    decide:

    - After a fault and until the next success nobody knows if the engine works, so a 500 then is no verdict on the
      request: it is tried again, with the attempt counted, best elsewhere. A broken engine thus fails one request, not
      the queue.
    - Of one request, only the first attempt's 500 counts against a worker. So a request that breaks every engine helps
      to make one worker unfit at most, and not one worker after the other.

    Outcomes that say nothing about the engine do not count.

    Args:
        most: number of faults that makes the worker unfit. After a rest it tries one request at a time, until one
        succeeds.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._faults = 0
        self._doubted = False
        self._rests_until = 0.0
        self.last_fault = ""

    def weigh(self, outcome: Outcome, attempt: int, now: float) -> Outcome:
        """Record an outcome and return the one to write.

        Args:
            outcome: outcome of the run.
            attempt: number of the request's attempt, from 1.
            now: monotonic seconds.
        """
        if isinstance(outcome, Finished):
            if outcome.engine_ok:
                self._faults, self._doubted = 0, False
            if outcome.engine_ok is not False:
                return outcome
        elif not isinstance(outcome, Postponed):
            return outcome
        doubted, self._doubted = self._doubted, True
        self._rests_until = now + REST_S
        if isinstance(outcome, Postponed):
            self._count(self._most if outcome.engine_hangs else 1, outcome.reason)
            return outcome
        self._count(1 if attempt == 1 else 0, f"the engine answered {outcome.http_status}")
        return Postponed(self.last_fault, said=_message(outcome.error)) if doubted else outcome

    def _count(self, faults: int, reason: str) -> None:
        self._faults += faults
        self.last_fault = reason

    @property
    def fit(self) -> bool:
        """True if the engine is believed to work."""
        return self._faults < self._most

    def allowance(self, now: float) -> int | None:
        """Most requests to hold now: None for no limit, 0 during the rest, then 1 to try the engine."""
        if self.fit:
            return None
        return 1 if now >= self._rests_until else 0


class Containment:
    """Both rules, and what runs, for all queues of one engine: what a request does to it harms those of every queue.

    Args:
        unready_failures: see `CircuitBreaker`.

    Attributes:
        isolation, breaker: the rules.
        running: number of requests that run.
        pullers: each is told the most requests to hold.
        engine_died: the reason, as soon as a request finds out that the engine is dead.
    """

    def __init__(self, unready_failures: int) -> None:
        self.isolation, self.breaker = PoisonIsolation(), CircuitBreaker(unready_failures)
        self.running = 0
        self.pullers: list[Puller] = []
        self.engine_died: asyncio.Future[str] = asyncio.get_running_loop().create_future()


def _message(error: str) -> str:
    return str(json.loads(error)["error"]["message"])
