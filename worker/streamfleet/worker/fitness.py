"""Whether this worker does any good: one whose requests all meet engine faults must not eat the queue.

An engine's 500 says that a request and an engine do not go together, not whose fault that is. Two rules decide:

- Between another fault and the next success nobody knows whether the engine works, so a 500 is no verdict on the
  request: it is tried again, counted, best elsewhere. A broken engine thus fails one request for good, not the queue.
- Of one request, only the first try's 500 speaks against a worker. A request that breaks every engine takes part in the
  fall of one worker at most; it cannot make them unfit one after the other.
"""

from __future__ import annotations

import json

from streamfleet.worker.outcome import Finished, Outcome, Postponed

REST_S = 15.0


class Fitness:
    """Counts engine faults since the last success; outcomes that say nothing about the engine do not count.

    Args:
        most: so many make the worker unfit. After a rest it tries one request at a time, until one succeeds.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._faults = 0
        self._doubted = False
        self._rests_until = 0.0
        self.last_fault = ""

    def weigh(self, outcome: Outcome, attempt: int, now: float) -> Outcome:
        """Take an outcome into account; what is to become of its request.

        Args:
            outcome: as the engine left it.
            attempt: which of the request's tries it was, from 1.
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
        """Whether the engine is believed to work."""
        return self._faults < self._most

    def allowance(self, now: float) -> int | None:
        """Requests to hold at most now: None for no limit, 0 while it rests, then one to try the engine with."""
        if self.fit:
            return None
        return 1 if now >= self._rests_until else 0


def _message(error: str) -> str:
    return str(json.loads(error)["error"]["message"])
