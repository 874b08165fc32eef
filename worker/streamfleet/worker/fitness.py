"""Whether this worker does any good: one whose requests all meet engine faults must not eat the queue."""

from __future__ import annotations

from streamfleet.worker.outcome import Finished, Outcome, Postponed

REST_S = 15.0


class Fitness:
    """Counts engine faults in a row.

    Args:
        most: so many in a row without one request finished make the worker unfit; after a rest it may try one more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._faults = 0
        self._unfit_since: float | None = None
        self.last_fault = ""

    def saw(self, outcome: Outcome, now: float) -> None:
        """Take an outcome into account; `now` in monotonic seconds."""
        if isinstance(outcome, Finished):
            self._faults, self._unfit_since = 0, None
        elif isinstance(outcome, Postponed):
            self._faults += 1
            self.last_fault = outcome.reason
            if self._faults >= self._most:
                self._unfit_since = now

    def fit(self, now: float) -> bool:
        """Whether to take requests now."""
        return self._unfit_since is None or now - self._unfit_since >= REST_S
