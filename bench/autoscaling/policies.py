"""Policies for the number of workers: the formula for autoscalers, and the ones it is compared with. Pure.

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
"""Time after which outstanding work should be done, also without a deadline."""
LEAD_S = 60.0
"""Work that would be done less than this before its deadline is late: a worker helps only once it has started."""
CATCH_UP_S = 120.0
"""Time in which late work should be caught up with."""
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
    """State that an autoscaler sees.

    Attributes:
        ready: number of workers that take requests.
        slots: slots of each of them.
        running, outstanding: number of requests.
        work_s: outstanding work divided by throughput; None while that is unknown.
        pressure_s: deadline pressure, the largest of all lanes; None if no waiting request has a deadline.
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
    """Workers that carry the running requests, with some spare capacity."""
    return view.running / view.slots / BUSY_SHARE


def kept(view: View) -> float:
    """The same, but at most the present number: full engines show that there is work, not that it is late."""
    return min(float(view.ready), busy(view))


def backlog(view: View) -> float:
    """Workers that finish the outstanding work in `CLEAR_S`."""
    return 0.0 if view.work_s is None else view.ready * view.work_s / CLEAR_S


def pressure(view: View) -> float:
    """Workers that catch up with the late work in `CATCH_UP_S`."""
    return 0.0 if view.pressure_s is None else view.ready * (1 + (view.pressure_s + LEAD_S) / CATCH_UP_S)


def by_deadlines(view: View) -> float:
    """The policy that streamfleet proposes."""
    return max(kept(view), backlog(view), pressure(view), float(view.outstanding > 0))


def by_pending(view: View) -> float:
    """Workers by the entries that workers hold, as KEDA's scaler for Redis Streams counts them by default."""
    return max(busy(view), float(view.outstanding > 0))


def fixed(workers: int) -> Policy:
    """A constant number of workers."""
    return lambda _: float(workers)


POLICIES: Mapping[str, Policy] = {"deadlines": by_deadlines, "pending": by_pending}


@dataclass
class Scaler:
    """Turns a wanted number of workers into an actual one: tolerance, bounds, and a delay before scaling down.

    Attributes:
        policy: computes the wanted number.
        least, most: bounds of the number of workers.
    """

    policy: Policy
    least: int = LEAST
    most: int = MOST
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def workers(self, now_s: float, having: int, view: View) -> int:
        """Returns the number of workers from now on.

        Args:
            now_s: time in seconds.
            having: number of workers that are ready or starting.
            view: state that the policy sees.
        """
        wish = self.policy(view)
        near = having > 0 and abs(wish / having - 1) <= TOLERANCE
        wanted = min(self.most, max(self.least, having if near else math.ceil(wish)))
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - STABLE_S:
            self._wanted.popleft()
        return max(wanted, min(having, max(number for _, number in self._wanted)))
