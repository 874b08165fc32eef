"""What a client remembers of each request that it may wait for, and when to look by itself. No I/O."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Iterable
from itertools import count
from weakref import WeakValueDictionary

from streamfleet.common.results import Result

FIRST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0
FIRST_SAFETY_S, LONGEST_SAFETY_S = 5.0, 30.0
DOUBT_S = 60.0
"""After so long, and then as often, it is asked whether a request can still come."""


def pause_s(notified: bool, looks: int) -> float:
    """Seconds until a result key is looked at again, after so many looks.

    Args:
        notified: whether a notification is due to come, so that looking is for safety only.
        looks: how often it was looked at.
    """
    first, longest = (FIRST_SAFETY_S, LONGEST_SAFETY_S) if notified else (FIRST_LOOK_S, LONGEST_LOOK_S)
    return float(min(longest, first * 2 ** min(looks, 16)))


class Slot:
    """One request, for as long as somebody holds its handle or waits for it.

    Attributes:
        id: the request id.
        notified: its notification goes to this client's reply stream.
        ended: the notification came, though nobody may have fetched the result.
        waiters: how many wait for it now.
        looks, due: how often its result key was looked at, and when to look next (the loop's clock, seconds). Both
            outlast a wait: many short ones look as often as a long one.
        entry: ``<lane>:<stream id>``, as Redis said, or empty where that had only the result; None before it said that
            it has it.
        unsure: whether Redis has it, is to be asked at the next look.
        heard: how often something was heard that makes an answer to that question, asked before, worthless.
        doubted: when to ask next whether it can still come (the loop's clock, seconds); inf before the first wait.
        plan: number of its entry among the planned looks; 0 while there is none.
        future: its result, made when the first waiter comes.
    """

    # On the class until they change: of many that are enqueued, few may ever be waited for.
    notified = False
    ended = False
    entry: str | None = None
    unsure = False
    heard = 0
    waiters = 0
    looks = 0
    due = math.inf
    doubted = math.inf
    plan = 0
    future: asyncio.Future[Result] | None = None

    def __init__(self, request_id: str) -> None:
        self.id = request_id

    @property
    def open(self) -> bool:
        """Nobody was told yet how it ended."""
        return self.future is None or not self.future.done()


class Slots:
    """All slots of a client: by id, who waits, and in which order to look.

    Slots are held weakly until somebody waits: a service that never asks for results remembers nothing.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Slot] = WeakValueDictionary()
        self._waiting: dict[str, Slot] = {}
        self._looks: list[tuple[float, int, Slot]] = []
        self._serial = count(1)

    def get(self, request_id: str) -> Slot:
        """The slot of an id; the caller keeps it alive."""
        slot = self._known.get(request_id)
        if slot is None:
            slot = self._known[request_id] = Slot(request_id)
        return slot

    def find(self, request_id: str) -> Slot | None:
        """The slot of an id that somebody still holds."""
        return self._known.get(request_id)

    def waiting(self, request_id: str) -> Slot | None:
        """The slot of an id that somebody waits for."""
        return self._waiting.get(request_id)

    def all_waiting(self) -> list[Slot]:
        return list(self._waiting.values())

    def join(self, slot: Slot, now: float) -> None:
        """One more waits for it; the first look is at once where no notification will tell."""
        slot.waiters += 1
        if slot.doubted == math.inf:
            slot.doubted = now + DOUBT_S
        if slot.id not in self._waiting or not slot.plan:
            self._waiting[slot.id] = slot
            told = slot.notified and not slot.ended
            self.look_at(slot, min(slot.due, now + pause_s(notified=True, looks=0) if told else now))

    def leave(self, slot: Slot) -> None:
        """One waits no more."""
        slot.waiters -= 1
        if slot.waiters <= 0:
            self._waiting.pop(slot.id, None)

    def look_at(self, slot: Slot, due: float) -> None:
        """Plan the next look; while nobody waits, for when somebody does."""
        if slot.plan and slot.due == due:
            return
        slot.due, slot.plan = due, 0
        if self._waiting.get(slot.id) is slot:
            slot.plan = next(self._serial)
            heapq.heappush(self._looks, (due, slot.plan, slot))

    def look_at_all(self, now: float) -> None:
        """Plan a look at every slot that somebody waits for or holds: notifications, and requests, may be lost."""
        for slot in list(self._known.values()):
            self.doubt(slot)
            self.look_at(slot, min(slot.due, now))

    def doubt(self, slot: Slot) -> None:
        """At the next look, Redis is asked whether it has it."""
        slot.unsure = True
        slot.heard += 1

    def looked(self, slot: Slot, now: float) -> None:
        """A look found nothing: plan the next one."""
        slot.looks += 1
        self.look_at(slot, now + pause_s(slot.notified and not slot.ended, slot.looks))

    def doubtful(self, slots: Iterable[Slot], now: float) -> list[Slot]:
        """Which of the slots have been waited for in vain for so long that it is time to ask whether they can come."""
        chosen = [slot for slot in slots if slot.doubted <= now and slot.open]
        for slot in chosen:
            slot.doubted = now + DOUBT_S
        return chosen

    def next_due(self) -> float | None:
        """When the next look is planned (the loop's clock, seconds)."""
        self._forget_stale()
        return self._looks[0][0] if self._looks else None

    def take_due(self, now: float, limit: int) -> list[Slot]:
        """Up to `limit` slots to look at now."""
        due: list[Slot] = []
        while len(due) < limit:
            self._forget_stale()
            if not self._looks or self._looks[0][0] > now:
                break
            slot = heapq.heappop(self._looks)[2]
            slot.plan = 0
            due.append(slot)
        return due

    def _forget_stale(self) -> None:
        while self._looks:
            _, plan, slot = self._looks[0]
            current = slot.plan == plan
            if current and self._waiting.get(slot.id) is slot:
                return
            heapq.heappop(self._looks)
            if current:
                slot.plan = 0
