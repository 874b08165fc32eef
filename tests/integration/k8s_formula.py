"""The formula of the autoscalers: four numbers of workers, of which the largest counts. Pure.

The queries of k8s/components/autoscaling-* say the same in Prometheus's words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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


def kept(view: View) -> float:
    """Workers that carry the running requests with some spare capacity, but at most the present number.

    Full engines show that there is work, not that it is late.
    """
    return min(float(view.ready), view.running / view.slots / BUSY_SHARE)


def backlog(view: View) -> float:
    """Workers that finish the outstanding work in `CLEAR_S`."""
    return 0.0 if view.work_s is None else view.ready * view.work_s / CLEAR_S


def pressure(view: View) -> float:
    """Workers that catch up with the late work in `CATCH_UP_S`."""
    return 0.0 if view.pressure_s is None else view.ready * (1 + (view.pressure_s + LEAD_S) / CATCH_UP_S)


PARTS: Mapping[str, Callable[[View], float]] = {
    "kept": kept,
    "backlog": backlog,
    # Below 0, where there is time to spare, it asks for nobody.
    "pressure": lambda view: max(0.0, pressure(view)),
    "outstanding": lambda view: float(view.outstanding > 0),
}
"""Each number by its trigger's name."""


def wanted(view: View) -> float:
    """Workers wanted, before the number is rounded up."""
    return max(part(view) for part in PARTS.values())
