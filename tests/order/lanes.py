"""The order, part 1: which lane is next, what patient lanes leave free, and what gives way to an urgent request.

Lanes are 1 critical, 2 high, 3 normal, 4 low. The line to the worker's admission (streamfleet.worker.admission): the
order gets how many slots there are and what runs in them. How much of a KV cache a request needs, when a lane borrows a
reserve, how many are prefetched and how long a run will take is admission. Who listens, and who is woken, is no order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

LANES = (1, 2, 3, 4)
PATIENT = (3, 4)
SHARES = (0, 0, 100, 50)
FULL, MOST_CREDIT = 1000, 2000  # a credit is full, and is at most, so many picks per mille
SECOND_PART = 8
MOST_INTERRUPTIONS = 3
RUNS_BEFORE_DEADLINE = 2
READ_AGAIN = 0.1


@dataclass
class Shares:
    """Credits of lanes, by number - 1. Each pick gives every lane that waits its share; a full credit goes first."""

    shares: Sequence[int] = SHARES
    credit: list[int] = field(default_factory=lambda: [0] * len(LANES))

    def choose(
        self, wanted: int, waiting: Sequence[int], rooms: Sequence[int], owed: Sequence[int], taken: int = 0
    ) -> list[int]:
        """Returns how many to pick from each lane, and changes the credits.

        Args:
            wanted: most picks.
            waiting: how many wait in each lane, 0 where it is paused.
            rooms: each lane is open until the worker has taken so many, of all lanes together.
            owed: the same for a lane that is owed a pick.
            taken: how many the worker has taken in this pull before.
        """
        left, picks = list(waiting), [0] * len(LANES)
        for number in range(taken, taken + wanted):
            chosen = self._best(left, rooms, owed, number)
            if chosen is None:
                break
            for lane, share in enumerate(self.shares):  # rule: saves_up_while_it_waits
                self.credit[lane] = min(self.credit[lane] + share, MOST_CREDIT) if left[lane] else 0
            self.credit[chosen] = max(0, self.credit[chosen] - FULL)
            left[chosen] -= 1
            picks[chosen] += 1
        return picks

    def _best(self, waiting: Sequence[int], rooms: Sequence[int], owed: Sequence[int], taken: int) -> int | None:
        top = share = None
        before = 0  # how many wait in open lanes before this one
        for lane, number in enumerate(waiting):
            if not number:
                continue
            is_open = taken < rooms[lane]
            full = self.credit[lane] >= FULL
            if not is_open and top is not None and taken < owed[lane]:
                is_open = full and before > rooms[top] - taken  # rule: share_against_the_reserve
            if is_open:
                top = lane if top is None else top  # rule: urgent_lane_first
                before += number
                if full and (share is None or self.credit[lane] > self.credit[share]):
                    share = lane  # rule: guaranteed_share
        return top if share is None else share

    def given_back(self, lane: int) -> None:
        """A worker returns the unused pick of a lane: its request found no room."""
        self.credit[lane - 1] = max(self.credit[lane - 1], FULL)  # rule: unused_pick_is_owed


def fills_up_to(lane: int, slots: int, percent: int = 25) -> int:
    """Slots that all requests together may fill for one more of this lane to start."""
    if lane not in PATIENT:
        return slots
    reserve = slots - max(1, -(-slots * 100 // (100 + percent)))  # rule: reserve
    if lane < LANES[-1]:
        reserve = max(0, min(reserve - 1, max(1, reserve // SECOND_PART)))  # rule: normal_leaves_an_eighth
    return slots - reserve


def owed(lane: int, slots: int, running: Mapping[int, int], percent: int = 25) -> int:
    """Requests that a patient lane, owed a pick, may take against the reserve. `running`: requests by lane."""
    most = fills_up_to(lane, slots, percent) - sum(number for other, number in running.items() if other >= lane)
    return max(0, min(slots - sum(running.values()), most))  # rule: share_is_bounded


@dataclass(frozen=True)
class Run:
    """A request of a patient lane that runs: what it is worth to let it go on. Times are seconds."""

    lane: int
    interrupted: int = 0
    ran: float = 0
    whole: float = 0  # expected length of its whole run
    slack: float = math.inf  # until its deadline
    continues: bool = False  # another run can go on with its output
    by_share: bool = False  # it came by the share of its lane, against the reserve

    def is_protected(self) -> bool:
        if self.by_share:  # rule: what_came_by_its_share_stays
            return True
        if self.interrupted >= MOST_INTERRUPTIONS:  # rule: interrupted_three_times_stays
            return True
        return self.slack < RUNS_BEFORE_DEADLINE * self.whole  # rule: what_would_be_late_stays

    def price(self) -> tuple[int, int, float, float]:
        """Sort key: the request that gives way first has the lowest."""
        slack = math.floor(math.log2(max(self.slack, 1))) if self.slack < math.inf else math.inf
        lost = self.ran * (READ_AGAIN if self.continues else 1)  # rule: least_work_lost
        return -self.lane, self.interrupted, -slack, lost  # rule: who_gives_way


def gives_way(running: Collection[Run], slots: int) -> list[Run]:
    """Returns the runs that give way for so many slots; none if not enough may."""
    some = sorted((run for run in running if not run.is_protected()), key=Run.price)[:slots]
    return some if len(some) == slots else []  # rule: none_if_not_enough
