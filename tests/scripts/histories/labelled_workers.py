"""Plays the workers' pulling loops, as worker/pull.py runs them, on a clock that is handed in.

Nothing blocks: whoever waits is served by one script after each verb, the longest waiting first, as Redis serves
blocked readers. What a worker waits for, and for how long, is what its last pull said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common.broker.types import Hint, Home, Lease, Role, Rooms
from streamfleet.common.keys import GROUP, NOBODY, Keys
from streamfleet.common.protocol import LANES, Lane
from streamfleet.worker.pull import WAIT_MS, WAITER_MS
from tests.scripts.harness import Queue

PATIENT = 3
"""Number of the first patient lane."""

# For each that waits, in order: what its own lists have, else one new entry of each of its streams.
SERVE = """
local got = {}
for i, waiter in ipairs(cjson.decode(ARGV[1])) do
  got[i] = false
  for _, list in ipairs(waiter.lists) do got[i] = got[i] or redis.call('LPOP', list) end
  if waiter.streams[1] then
    local words = {}
    for _, stream in ipairs(waiter.streams) do words[#words + 1] = stream end
    for _ = 1, #words do words[#words + 1] = '>' end
    got[i] = redis.call('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', 1, 'STREAMS', unpack(words))
  end
end
return got
"""


@dataclass(eq=False)
class Worker:
    """A worker process; each start of it has a prefix cache of its own.

    Attributes:
        slots: number of requests that run at once.
        reserve: number of slots that patient lanes leave free; 0 for a worker that has the same room for all.
        waits: way in which it waits; None while it goes on, `Role.NONE` for one that waits for room.
        until: end of that wait, epoch ms.
        number: place among those that wait.
        free_since: by lane the time since which it has a free slot and got nothing; None without a free slot.
    """

    name: str
    slots: int
    reserve: int
    start: str
    leases: dict[str, Lease] = field(default_factory=dict)
    waits: Role | None = None
    until: int = 0
    number: int = 0
    hints: list[Hint] = field(default_factory=list)
    may_watch: bool = False
    owing: bool = False
    soonest_ms: int | None = None
    free_since: list[int | None] = field(default_factory=lambda: [None] * len(LANES))
    doomed: bool = False
    """It dies as soon as it is woken."""

    @property
    def home(self) -> Home:
        return Home(self.start, len(self.leases))

    def rooms(self) -> Rooms:
        """As `Admission` tells them: an urgent request may take the place of a patient one."""
        free = max(0, self.slots - len(self.leases))
        if not self.reserve:
            return Rooms.same(free)
        patient = max(0, free - self.reserve)
        urgent = free or int(any(lease.lane.number >= PATIENT for lease in self.leases.values()))
        rooms = [urgent if lane.number < PATIENT else patient for lane in LANES]
        return Rooms(rooms, [free] * len(LANES), free)

    def note_room(self, now: int, *, took: bool = False) -> None:
        """Keep `free_since`; `took`: it has just taken something."""
        rooms = self.rooms()
        for number, room in enumerate(rooms.lanes):
            if min(room, rooms.free) <= 0:
                self.free_since[number] = None
            elif took or self.free_since[number] is None:
                self.free_since[number] = now

    def wait(self, role: Role, until: int, number: int) -> None:
        self.waits, self.until, self.number = role, until, number
        self.owing = self.owing or role is not Role.NONE

    def asks(self, keys: Keys) -> dict[str, list[str]]:
        """Keys that it blocks on."""
        if self.waits is Role.WAITER:
            return {"lists": [keys.wake_up(self.name)], "streams": []}
        lanes = [lane for lane, room in zip(LANES, self.rooms().lanes, strict=True) if room > 0]
        return {"lists": [], "streams": [keys.wake, *map(keys.lane, lanes)]}

    def hear(self, keys: Keys, got: Any) -> None:
        """A wait is over, because of this answer."""
        if self.waits is Role.WAITER:
            self.may_watch = got == b"watch"
        else:
            lane_of: dict[bytes, Lane | None] = {keys.lane(lane).encode(): lane for lane in LANES}
            for key, entries in got:
                self.hints += [Hint(lane_of.get(key), row[0].decode()) for row in entries]
        self.waits = None

    def next_wait(self, role: Role, now: int, number: int) -> None:
        """Wait as `Puller._round` does after its pull."""
        room = max(self.rooms().lanes)
        if room > 0 and role is not Role.NONE:
            if not self.hints:
                longest = WAITER_MS if role is Role.WAITER else WAIT_MS
                soonest = longest if self.soonest_ms is None else self.soonest_ms + 1
                self.wait(role, now + min(longest, soonest), number)
        elif room <= 0 and not self.owing:
            self.wait(Role.NONE, 2**62, number)


async def serve(queue: Queue, workers: list[Worker]) -> list[Worker]:
    """Give those that wait what is there for them. Returns those that heard something."""
    waiting = sorted((w for w in workers if w.waits not in (None, Role.NONE)), key=lambda worker: worker.number)
    if not waiting:
        return []
    asked = json.dumps([worker.asks(queue.keys) for worker in waiting])
    replies = await queue.command("EVAL", SERVE, 0, asked, GROUP, NOBODY)
    heard = [(worker, got) for worker, got in zip(waiting, replies, strict=True) if got]
    for worker, got in heard:
        worker.hear(queue.keys, got)
    return [worker for worker, _ in heard]
