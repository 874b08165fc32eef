"""A client's state of each request that it may wait for, and the schedule for polling result keys. No I/O."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Iterable
from itertools import count
from weakref import WeakValueDictionary

from streamfleet.common.results import Result

FIRST_POLL_S, LONGEST_POLL_S = 0.05, 1.0
FIRST_SAFETY_S, LONGEST_SAFETY_S = 5.0, 30.0
RECHECK_S = 60.0
"""Interval of the check whether a request's result can still come, in seconds."""


def pause_s(notified: bool, polls: int) -> float:
    """Seconds until the next poll of a result key.

    Args:
        notified: True if a notification is expected, so that polling is only a fallback.
        polls: number of polls so far.
    """
    first, longest = (FIRST_SAFETY_S, LONGEST_SAFETY_S) if notified else (FIRST_POLL_S, LONGEST_POLL_S)
    return float(min(longest, first * 2 ** min(polls, 16)))


class Slot:
    """State of one request, for as long as its handle is held or it is waited for.

    Attributes:
        id: the request id.
        notified: its notification goes to this client's reply stream.
        ended: the notification came, though nobody may have fetched the result.
        waiters: number of current waiters.
        polls, due: number of polls of its result key, and time of the next (the loop's clock, seconds). Both outlast a
            wait, so that many short waits poll as often as one long wait.
        entry: ``<lane>:<stream id>`` as Redis returned it, empty if Redis had only the result; None before Redis
            confirmed the request.
        must_recheck: True to check at the next poll that Redis still has it.
        version: counter of events that make an earlier answer to that check void.
        recheck_due: time of the next check that its result can still come (the loop's clock, seconds); inf before the
            first wait.
        plan: number of its planned poll; 0 for none.
        future: future of its result, created for the first waiter.
    """

    # Defaults on the class save memory: few of many enqueued requests may ever be waited for.
    notified = False
    ended = False
    entry: str | None = None
    must_recheck = False
    version = 0
    waiters = 0
    polls = 0
    due = math.inf
    recheck_due = math.inf
    plan = 0
    future: asyncio.Future[Result] | None = None

    def __init__(self, request_id: str) -> None:
        self.id = request_id

    @property
    def open(self) -> bool:
        """True if the future has no result or error yet."""
        return self.future is None or not self.future.done()


class Slots:
    """All slots of a client: by id, with their waiters, and the order of polls.

    Slots without waiters are held weakly, so a service that never asks for results stores nothing.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Slot] = WeakValueDictionary()
        self._waiting: dict[str, Slot] = {}
        self._polls: list[tuple[float, int, Slot]] = []
        self._serial = count(1)

    def get(self, request_id: str) -> Slot:
        """The slot of an id; the caller keeps it alive."""
        slot = self._known.get(request_id)
        if slot is None:
            slot = self._known[request_id] = Slot(request_id)
        return slot

    def find(self, request_id: str) -> Slot | None:
        """The slot of an id, if it still exists."""
        return self._known.get(request_id)

    def waiting(self, request_id: str) -> Slot | None:
        """The slot of an id, if it has waiters."""
        return self._waiting.get(request_id)

    def all_waiting(self) -> list[Slot]:
        return list(self._waiting.values())

    def join(self, slot: Slot, now: float) -> None:
        """Add a waiter; without an expected notification, the first poll is at once."""
        slot.waiters += 1
        if slot.recheck_due == math.inf:
            slot.recheck_due = now + RECHECK_S
        if slot.id not in self._waiting or not slot.plan:
            self._waiting[slot.id] = slot
            told = slot.notified and not slot.ended
            self.poll_at(slot, min(slot.due, now + pause_s(notified=True, polls=0) if told else now))

    def leave(self, slot: Slot) -> None:
        """Remove a waiter."""
        slot.waiters -= 1
        if slot.waiters <= 0:
            self._waiting.pop(slot.id, None)

    def poll_at(self, slot: Slot, due: float) -> None:
        """Plan the next poll; without waiters, it takes effect at the next wait."""
        if slot.plan and slot.due == due:
            return
        slot.due, slot.plan = due, 0
        if self._waiting.get(slot.id) is slot:
            slot.plan = next(self._serial)
            heapq.heappush(self._polls, (due, slot.plan, slot))

    def poll_all(self, now: float) -> None:
        """Plan a poll of every slot, because notifications and requests may be lost."""
        for slot in list(self._known.values()):
            self.recheck(slot)
            self.poll_at(slot, min(slot.due, now))

    def recheck(self, slot: Slot) -> None:
        """Check at the next poll that Redis still has the request."""
        slot.must_recheck = True
        slot.version += 1

    def polled(self, slot: Slot, now: float) -> None:
        """Plan the next poll after one without a result."""
        slot.polls += 1
        self.poll_at(slot, now + pause_s(slot.notified and not slot.ended, slot.polls))

    def due_for_recheck(self, slots: Iterable[Slot], now: float) -> list[Slot]:
        """Slots that have been waited for so long that it must be checked whether their result can still come."""
        chosen = [slot for slot in slots if slot.recheck_due <= now and slot.open]
        for slot in chosen:
            slot.recheck_due = now + RECHECK_S
        return chosen

    def next_due(self) -> float | None:
        """Time of the next planned poll (the loop's clock, seconds); None for none."""
        self._forget_stale()
        return self._polls[0][0] if self._polls else None

    def take_due(self, now: float, limit: int) -> list[Slot]:
        """Up to `limit` slots to poll now."""
        due: list[Slot] = []
        while len(due) < limit:
            self._forget_stale()
            if not self._polls or self._polls[0][0] > now:
                break
            slot = heapq.heappop(self._polls)[2]
            slot.plan = 0
            due.append(slot)
        return due

    def _forget_stale(self) -> None:
        while self._polls:
            _, plan, slot = self._polls[0]
            current = slot.plan == plan
            if current and self._waiting.get(slot.id) is slot:
                return
            heapq.heappop(self._polls)
            if current:
                slot.plan = 0
