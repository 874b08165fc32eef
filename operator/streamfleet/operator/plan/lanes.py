"""Order in which a queue's requests are taken, as in pull.lua. Pure.

Strict priority between lanes, with a guaranteed share for some: each pick gives every waiting lane its share, and a
lane that has saved up a whole pick goes first. Within a lane the earliest deadline, then the earlier arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from streamfleet.common.protocol import LANES, Lane

WHOLE, MOST = 1000, 2000
"""Credit of a whole pick, and the largest credit that a lane saves."""


class Lanes:
    """The waiting requests of all lanes.

    Args:
        shares: picks per mille guaranteed to each lane.
        patience_s: default deadline for ranking, seconds from enqueueing.
    """

    def __init__(self, shares: Sequence[int], patience_s: float) -> None:
        self._shares, self._patience_s = tuple(shares), patience_s
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in LANES]
        self._credit = [0] * len(LANES)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, lane: Lane, place: int, at_s: float, due_s: float | None) -> None:
        """Add a request.

        Args:
            lane: its lane.
            place: value that `pick` returns; it must grow with time.
            at_s: time of its arrival.
            due_s: its deadline; None for none.
        """
        heappush(self._waiting[lane.rank], (at_s + self._patience_s if due_s is None else due_s, place))
        self._count += 1

    def pick(self) -> int:
        """Take the next request; there must be one."""
        chosen = self._choose()
        for lane, waits in enumerate(self._waiting):
            self._credit[lane] = min(self._credit[lane] + self._shares[lane], MOST) if waits else 0
        self._credit[chosen] = max(0, self._credit[chosen] - WHOLE)
        self._count -= 1
        return heappop(self._waiting[chosen])[1]

    def _choose(self) -> int:
        waiting = [lane for lane, waits in enumerate(self._waiting) if waits]
        owed = [lane for lane in waiting if self._credit[lane] >= WHOLE]
        return max(owed, key=lambda lane: (self._credit[lane], -lane)) if owed else waiting[0]
