"""How fast a queue moves, and how late what waits in it will be at that speed. Pure.

**Throughput** is measured from the counters between looks: requests that succeeded or failed, per second, over the
last two minutes, but only between looks at both of which something was waiting. A fleet that waits for work does not
show how fast it could be. Where nothing ended in that time, it counts as if one request had: a fleet that stands still
gets a longer queue of work with every look, and not an infinite one. The last value stays until there is a newer one.

**Deadline pressure** of a lane: the largest estimated lateness, in seconds, of the requests that wait in it, in order,
with a deadline. Lateness is when a request will have run (all that waits in more urgent lanes, what waits before it in
its own, and itself, divided by the throughput), less the time until its deadline. Positive: so many seconds of work too
many are queued ahead of a deadline, which will be missed unless the fleet gets faster. Negative: so much time is to
spare at the tightest point. Requests without a deadline count as work, and have no lateness.

Not every request is looked at, but 17 places of each lane, spread evenly from its first to its last. So a peak between
two of them is understated, by the time that a sixteenth of the lane takes at most.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.records import Ranked

PLACES = 17
WINDOW_MS = 120_000
LEAST_MS = 1_000
NO_DEADLINE_MS = 8 * 10**15
"""Ranks beyond this stand for none at all."""


@dataclass(frozen=True, slots=True)
class _Look:
    now_ms: int
    answered: int
    waiting: bool


class Throughput:
    """Requests per second while there was something to do; None while that is not known yet."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()
        self.per_second: float | None = None

    def saw(self, now_ms: int, answered: int, *, waiting: bool) -> float | None:
        """Take a look into account.

        Args:
            now_ms: Redis's clock.
            answered: requests that ever succeeded or failed.
            waiting: whether any was waiting for a worker.

        Returns:
            Requests per second, as of now.
        """
        self._looks.append(_Look(now_ms, answered, waiting))
        while len(self._looks) > 2 and self._looks[0].now_ms < now_ms - WINDOW_MS:
            self._looks.popleft()
        ended = milliseconds = 0
        for before, after in itertools.pairwise(self._looks):
            took_ms, more = after.now_ms - before.now_ms, after.answered - before.answered
            # Neither counters that began anew nor a clock that was set back say anything about speed.
            if before.waiting and after.waiting and took_ms > 0 and more >= 0:
                ended, milliseconds = ended + more, milliseconds + took_ms
        if milliseconds >= LEAST_MS:
            self.per_second = max(ended, 1) * 1000 / milliseconds
        return self.per_second


def places(waiting: int) -> list[int]:
    """Which places of a ready set of this length to look at; as many for a long one as for a short one."""
    return [step * max(0, waiting - 1) // (PLACES - 1) for step in range(PLACES)]


def deadline_ms(ranked: Ranked, patience_ms: int) -> int | None:
    """The deadline of a request, epoch ms; None where its rank is not one, but comes from patience."""
    if ranked.rank_ms > NO_DEADLINE_MS or ranked.rank_ms == ranked.enqueued_ms + patience_ms:
        return None
    return ranked.rank_ms


def slack_s(ranked: Sequence[Ranked], patience_ms: int, now_ms: int) -> dict[Lane, float]:
    """Seconds until the nearest deadline of each lane, negative when it has passed; no lane without a deadline."""
    found: dict[Lane, float] = {}
    for each in ranked:
        due_ms = deadline_ms(each, patience_ms)
        if due_ms is not None:
            slack = (due_ms - now_ms) / 1000
            found[each.lane] = min(slack, found.get(each.lane, slack))
    return found


def pressure_s(
    ranked: Sequence[Ranked], waiting: Mapping[Lane, int], patience_ms: int, now_ms: int, per_second: float
) -> dict[Lane, float]:
    """Deadline pressure of each lane that has a deadline, in seconds.

    Args:
        ranked: some places of the ready sets.
        waiting: how many wait in each lane.
        patience_ms: how a request without a deadline ranks, after its enqueueing.
        now_ms: Redis's clock, epoch ms.
        per_second: the throughput, more than 0.
    """
    ahead = {lane: sum(waiting[other] for other in LANES if other.rank < lane.rank) for lane in LANES}
    found: dict[Lane, float] = {}
    for each in ranked:
        due_ms = deadline_ms(each, patience_ms)
        if due_ms is not None:
            done_in_s = (ahead[each.lane] + each.place + 1) / per_second
            late_s = done_in_s - (due_ms - now_ms) / 1000
            found[each.lane] = max(late_s, found.get(each.lane, late_s))
    return found
