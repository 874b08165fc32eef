"""Estimated lateness of a queue's waiting requests. Pure.

**Deadline pressure** of a lane: the largest estimated lateness, in seconds, of its staged requests with a deadline.
Lateness is the time until a request will be taken (the requests waiting in more urgent lanes, those before it in its
own lane, and itself, divided by the throughput: the pace of the queue), minus the time until its deadline. Positive:
a deadline will be missed by so many seconds unless the fleet gets faster. Negative: the time to spare at the tightest
point. Requests without a deadline count as work, and have no lateness.

Only 17 places of each lane are read, spread evenly from its first to its last. A peak between two of them is
understated, at most by the time that a sixteenth of the lane takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamfleet.common.protocol import Lane
from streamfleet.operator.snapshot import LaneView


def pressure_s(lanes: Sequence[LaneView], per_second: float) -> dict[Lane, float]:
    """Deadline pressure of each lane that has a deadline, in seconds.

    Args:
        lanes: all lanes, most urgent first.
        per_second: the throughput, more than 0.
    """
    found: dict[Lane, float] = {}
    ahead = 0
    for lane in lanes:
        if lane.deadlines:
            found[lane.lane] = max((ahead + place + 1) / per_second - left_s for place, left_s in lane.deadlines)
        ahead += lane.staged
    return found
