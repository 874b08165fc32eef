"""Whether this worker does any good: one whose requests all meet engine faults must not eat the queue."""

from __future__ import annotations

from streamfleet.worker.outcome import Finished, Outcome, Postponed

REST_S = 15.0


class Fitness:
    """Counts engine faults in a row; outcomes that say nothing about the engine (refused, expired, …) do not count.

    Args:
        most: so many in a row make the worker unfit. After a rest it tries one request at a time, until one shows that
            the engine works again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._faults = 0
        self._rests_until = 0.0
        self.last_fault = ""

    def saw(self, outcome: Outcome, now: float) -> None:
        """Take an outcome into account; `now` in monotonic seconds."""
        if isinstance(outcome, Finished) and outcome.engine_ok is not None:
            fault = None if outcome.engine_ok else f"the engine answered {outcome.http_status}"
        elif isinstance(outcome, Postponed):
            fault = outcome.reason
        else:
            return
        if fault is None:
            self._faults = 0
            return
        self._faults += 1
        self.last_fault = fault
        self._rests_until = now + REST_S

    @property
    def fit(self) -> bool:
        """Whether the engine is believed to work."""
        return self._faults < self._most

    def allowance(self, now: float) -> int | None:
        """Requests to hold at most now: None for no limit, 0 while it rests, then one to try the engine with."""
        if self.fit:
            return None
        return 1 if now >= self._rests_until else 0
