"""How many workers there should be: the formula for autoscalers, and what it is held against. Pure.

Each trigger gives a number of workers, and the largest counts, as with the triggers of a KEDA ScaledObject or the
metrics of a HorizontalPodAutoscaler.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

BUSY_SHARE = 0.8
"""Share of the workers' slots that should be taken; where less is, workers go."""
CLEAR_S = 600.0
"""What is outstanding should be done after so long, also without a deadline."""
LEAD_S = 60.0
"""What would be done less than this before its deadline counts as late: a worker helps only once it has started."""
CATCH_UP_S = 120.0
"""What is late should be caught up with in so long."""
MOST = 40
LEAST = 1
STEP_S = 15.0
"""The HorizontalPodAutoscaler looks so often."""
TOLERANCE = 0.1
"""It leaves alone what is off by less: its default."""
STABLE_S = 300.0
"""It goes down to the largest number wanted in so long: well beyond the time that a model takes to load."""


@dataclass(frozen=True, slots=True)
class View:
    """What an autoscaler sees.

    Attributes:
        ready: workers that take requests.
        slots: of each of them.
        running, outstanding: requests.
        work_s: what is outstanding, divided by the throughput; None while that is not known.
        pressure_s: deadline pressure, the largest of all lanes; None where nothing that waits has a deadline.
    """

    ready: int
    slots: int
    running: int
    outstanding: int
    work_s: float | None
    pressure_s: float | None


Policy = Callable[[View], float]
"""Workers wanted, before it is rounded up."""


def busy(view: View) -> float:
    """As many as carry what runs, with room to spare."""
    return view.running / view.slots / BUSY_SHARE


def kept(view: View) -> float:
    """The same, but never more than there are: full engines say that there is work, not that it is late."""
    return min(float(view.ready), busy(view))


def backlog(view: View) -> float:
    """As many as do what is outstanding in `CLEAR_S`."""
    return 0.0 if view.work_s is None else view.ready * view.work_s / CLEAR_S


def pressure(view: View) -> float:
    """As many as catch up in `CATCH_UP_S` with what would be late."""
    return 0.0 if view.pressure_s is None else view.ready * (1 + (view.pressure_s + LEAD_S) / CATCH_UP_S)


def by_deadlines(view: View) -> float:
    """What streamfleet proposes."""
    return max(kept(view), backlog(view), pressure(view), float(view.outstanding > 0))


def by_pending(view: View) -> float:
    """By the entries that workers hold, as KEDA's scaler for Redis Streams counts them by default."""
    return max(busy(view), float(view.outstanding > 0))


def fixed(workers: int) -> Policy:
    """Always as many."""
    return lambda _: float(workers)


POLICIES: Mapping[str, Policy] = {"deadlines": by_deadlines, "pending": by_pending}


@dataclass
class Scaler:
    """What stands between wanting and having: tolerance, bounds, and patience on the way down.

    Attributes:
        policy: what is wanted.
        least, most: bounds.
    """

    policy: Policy
    least: int = LEAST
    most: int = MOST
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def workers(self, now_s: float, having: int, view: View) -> int:
        """How many there are to be from now on.

        Args:
            now_s: seconds.
            having: workers that are ready or on their way.
            view: what is seen.
        """
        wish = self.policy(view)
        near = having > 0 and abs(wish / having - 1) <= TOLERANCE
        wanted = min(self.most, max(self.least, having if near else math.ceil(wish)))
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - STABLE_S:
            self._wanted.popleft()
        return max(wanted, min(having, max(number for _, number in self._wanted)))
