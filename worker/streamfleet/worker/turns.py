"""Turns of several queues at one engine: which of them takes from the room that there is.

Each queue has a puller of its own. Where several have room to fill at once they pull one after the other, and all look
anew before each turn, so that the order is about that of one queue: the more urgent lane first, and within a lane the
earlier rank. A queue that others go before gains the guaranteed share of its lane with each of their picks, as a lane
does in `lane_shares.lua`. What a head tells may not be taken by now: a limit forbids it, or it waits for another
worker. So a queue whose turn took nothing lets the others go first. Nothing here touches Redis but the look at the head
of each queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from streamfleet.common.protocol import Lane

log = structlog.get_logger(__name__)
LOOK_S = 0.5
HOLD_S = 1.0
"""A puller that Redis does not answer for so long holds up no other queue."""
FULL_CREDIT = 1000
Head = tuple[int, float]
"""Number of its lane and rank of the first request of a queue."""


class Contender(Protocol):
    """Puller of one queue."""

    @property
    def shares(self) -> Sequence[int]:
        """Guaranteed picks per mille of each lane."""
        ...

    @property
    def has_room(self) -> bool:
        """True if it would pull requests now."""
        ...

    async def head(self) -> tuple[Lane, float] | None:
        """Lane and rank of the first request that waits; None if none does."""
        ...


@dataclass(slots=True)
class Turn:
    """Turn of one contender.

    Attributes:
        among: number of queues to share the room with; infinite for a turn of one pick.
        taken: number of requests that it took; the contender sets it.
    """

    among: float = 1.0
    taken: int = 0
    came: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def part(self, room: int) -> int:
        """The part of a room that this turn may fill."""
        return min(room, max(1, math.ceil(room / self.among)))


class Turns:
    """Gives one turn after the other, to the queue that presses most of those that want one."""

    def __init__(self) -> None:
        self._wanted: dict[Contender, Turn] = {}
        self._credit: dict[Contender, int] = {}
        self._first: dict[Contender, set[Contender]] = {}
        """Of a contender whose turn took nothing: others that have had no turn since. They go first."""
        self._giving: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def turn(self, contender: Contender) -> AsyncIterator[Turn]:
        """Wait for the turn of a contender, which lasts as long as the context."""
        turn = self._wanted[contender] = Turn()
        if self._giving is None or self._giving.done():
            self._giving = asyncio.create_task(self._give())
        try:
            await turn.came
            yield turn
        finally:
            self._wanted.pop(contender, None)
            turn.over.set()

    async def _give(self) -> None:
        while self._wanted:  # by now all are here that the same room woke
            heads = await self._heads()
            if not self._wanted:
                break
            chosen, among = self._choose(heads)
            turn = self._wanted.pop(chosen, None)
            if turn is None or turn.came.done():  # it left, or is cancelled
                continue
            turn.among = math.inf if self._owed(chosen) else among
            turn.came.set_result(None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOLD_S):
                    await turn.over.wait()
            self._count(chosen, heads, turn.taken)
            self._let_others_go(chosen, heads, turn.taken)
        self._first.clear()  # once all wait for work or for room, other entries may be takeable

    async def _heads(self) -> Mapping[Contender, Head]:
        """The heads of all queues with waiting requests and room; empty if no two want a turn."""
        wanting = [each for each in self._wanted if each.has_room]
        if len(wanting) < 2:
            return {}
        found = await asyncio.gather(*map(_head, wanting))
        return {each: head for each, head in zip(wanting, found, strict=True) if head and each in self._wanted}

    def _choose(self, heads: Mapping[Contender, Head]) -> tuple[Contender, int]:
        """Returns the contender whose turn it is, and the number of queues to share the room with."""
        free = [each for each in self._wanted if self._first.get(each, set()).isdisjoint(self._wanted)]
        pressing = [each for each in heads if each in free]
        if not pressing:
            return free[0], 1
        most = max(pressing, key=lambda each: self._credit.get(each, 0))
        return most if self._owed(most) else min(pressing, key=lambda each: heads[each]), len(pressing)

    def _let_others_go(self, chosen: Contender, heads: Mapping[Contender, Head], taken: int) -> None:
        for first in self._first.values():
            first.discard(chosen)
            if taken and chosen in heads:  # a queue whose head cannot be read holds up nobody while others take
                first.intersection_update(heads)
        self._first[chosen] = set() if taken else self._wanted.keys() - {chosen}

    def _owed(self, contender: Contender) -> bool:
        return self._credit.get(contender, 0) >= FULL_CREDIT

    def _count(self, chosen: Contender, heads: Mapping[Contender, Head], taken: int) -> None:
        if chosen not in heads:
            return
        for each, (lane, _) in heads.items():
            gained = taken * each.shares[lane - 1]
            self._credit[each] = min(self._credit.get(each, 0) + gained, 2 * FULL_CREDIT)
        self._credit[chosen] = max(0, self._credit[chosen] - FULL_CREDIT)


async def _head(contender: Contender) -> Head | None:
    try:
        async with asyncio.timeout(LOOK_S):
            found = await contender.head()
    except Exception as error:  # noqa: BLE001 - its own pull finds out; other queues must not wait for it
        log.debug("no_head", error=str(error))
        return None
    return None if found is None else (found[0].number, found[1])
