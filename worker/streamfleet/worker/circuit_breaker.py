"""Circuit breaker of a worker: if all its requests meet engine faults, it must not use up the queue.

An engine's 500 shows that a request and an engine do not go together, not which of them is at fault. Two rules decide:

- After a fault and until the next success nobody knows if the engine works, so a 500 then is no verdict on the request:
  it is tried again, with the attempt counted, best elsewhere. A broken engine thus fails one request, not the queue.
- Of one request, only the first attempt's 500 counts against a worker. So a request that breaks every engine helps to
  make one worker unfit at most, and not one worker after the other.
"""

from __future__ import annotations

import json

from streamfleet.worker.outcome import Finished, Outcome, Postponed

REST_S = 15.0


class CircuitBreaker:
    """Counts engine faults since the last success; outcomes that say nothing about the engine do not count.

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


def _message(error: str) -> str:
    return str(json.loads(error)["error"]["message"])
