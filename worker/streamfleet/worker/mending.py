"""The housekeeping's part that makes keys anew which follow from others, if they were deleted, overwritten or restored.

Each tick the sums are compared. Where they differ, and where an examination of some more entries finds a difference,
the lane's sets are deleted and made anew out of its entries, in bounded calls. How far all that has come is in Redis,
so that whoever has the next turn goes on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import structlog

from streamfleet.common.broker.reconciling import PARTS, Damage
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.clock import Clock
from streamfleet.common.errors import BrokerOutOfMemory
from streamfleet.common.protocol import LANES, Lane

log = structlog.get_logger(__name__)
BUSY_S = 0.4
"""Longest time of one tick in which lanes are made anew."""
LOOKS = 3
"""Calls of one tick that examine entries while all seems to fit."""
COUNTED: tuple[Lane | None, ...] = (*LANES, None)
"""Lanes whose labels are compared, and None for interrupted requests and the streams' own counts: one in each tick."""
DAMAGED = ("nowhere", "misplaced", "twice")
"""Findings of an entry that tell of more in its lane; others are mended with it."""
AGAIN_TURNS = 5
"""Least number of turns between two beginnings in one lane: a difference that stays must not keep the server busy."""
EXAMINED, SWEPT, BEGUN = "examined", "swept", "begun:"
"""Fields of the hash `clock`: where examining and sweeping go on; and before a lane, the turn in which it was begun."""
FIELDS = (EXAMINED, SWEPT, *(BEGUN + lane for lane in LANES))
CURSOR, STREAM_ID = re.compile(r"[0-9]{0,18}"), re.compile(r"(?:[0-9]{1,18}-[0-9]{1,18})?")
"""Patterns of a cursor of `HSCAN` and of a stream id that Redis takes; users may have written anything by hand."""


class Mender:
    """Compares and mends.

    Args:
        broker: the queue.
        clock: source of time.
    """

    def __init__(self, broker: WorkerBroker, clock: Clock) -> None:
        self._broker, self._clock = broker, clock
        self._number = 0
        self._known: dict[str, str] = {}
        self._unkept: dict[str, str] = {}

    async def mend_types(self, *, sets: bool = False) -> None:
        """Delete keys of another type that can be made anew: no script works with them. `sets`: those of labels too."""
        found = await self._broker.mend_types()
        for lane in LANES if sets else ():
            found += [each for each in await self._broker.compare(lane, True) if each.kind == "wrong_type"]
        for damage in found:
            log.warning("key_of_another_type_deleted", key=damage.name)

    async def tick(self, number: int) -> None:
        """Compare; then make lanes anew, or if all fits examine some more of a lane.

        Args:
            number: number of the turn. It says what is compared beside the sums, whoever has the turn.
        """
        ends = self._clock.monotonic() + BUSY_S
        (known,) = await self._broker.ask(("HMGET", self._broker.keys.clock, *FIELDS))
        self._number = number
        kept = {field: (value or b"").decode(errors="replace") for field, value in zip(FIELDS, known, strict=True)}
        self._known = kept | self._unkept
        counted = COUNTED[number % len(COUNTED)]
        found = await self._broker.compare(counted, True, counters="" if counted else "streams")
        mending = [lane for lane in LANES if Damage("mending", lane) in found]
        for lane in LANES:
            # Where its labels are counted too, it may not differ.
            if Damage("differs", lane) in found and (
                lane == counted or Damage("differs", lane) in await self._broker.compare(lane, True)
            ):
                mending += [lane] * await self._begin(lane, "differs")
        odd = [part for part in PARTS if Damage("odd", part) in found]
        for part in odd:
            await self._sweep_all(part, ends)
        while mending and self._clock.monotonic() < ends:
            if not (await self._broker.go_on(mending[0]))[0]:
                log.info("lane_made_anew", lane=mending.pop(0))
        if not mending:
            await self._look()

    async def _begin(self, lane: Lane, reason: str) -> bool:
        begun = self._known[BEGUN + lane]
        if begun.isdecimal() and len(begun) < 18 and abs(self._number - int(begun)) < AGAIN_TURNS:
            return False
        await self._note({BEGUN + lane: str(self._number)})
        log.warning("lane_is_made_anew", lane=lane, reason=reason)
        await self._broker.begin(lane)
        return True

    async def _look(self) -> None:
        """Examine some more entries, and sweep some more of what is known of entries."""
        lane, after = _place(self._known[EXAMINED], LANES)
        for _ in range(LOOKS):
            after, found = await self._broker.examine(Lane(lane), after, True)
            damaged = [damage.kind for damage in found if damage.kind in DAMAGED]
            if damaged:
                await self._begin(Lane(lane), damaged[0])
            if damaged or not after:
                lane, after = _next(lane, LANES), ""
                break
        part, cursor = _place(self._known[SWEPT], PARTS)
        cursor, found = await self._broker.sweep(part, cursor, True)
        if found:
            log.warning("leftovers_removed", of=part, number=len(found))
        if not cursor:
            part = _next(part, PARTS)
        await self._note({EXAMINED: f"{lane} {after}", SWEPT: f"{part} {cursor}"})

    async def _note(self, fields: dict[str, str]) -> None:
        """Keep fields for the next turn; what a full server does not take, for this worker's next turn."""
        self._known |= fields
        words = [word for item in fields.items() for word in item]
        try:
            await self._broker.ask(("HSET", self._broker.keys.clock, *words))
        except BrokerOutOfMemory:
            self._unkept |= fields
        else:
            self._unkept = {}

    async def _sweep_all(self, part: str, ends: float) -> None:
        cursor, first = "", True
        while (first or cursor) and self._clock.monotonic() < ends:
            cursor, _ = await self._broker.sweep(part, cursor, True)
            first = False


def _place(known: str, names: Sequence[str]) -> tuple[str, str]:
    """Name and cursor where to go on: the beginning of the first name, unless `known` has a valid place."""
    name, _, cursor = known.partition(" ")
    pattern = STREAM_ID if name in LANES else CURSOR
    return (name, cursor) if name in names and pattern.fullmatch(cursor) else (names[0], "")


def _next(name: str, names: Sequence[str]) -> str:
    return names[(names.index(name) + 1) % len(names)]
