"""An idle fleet beside requests that may not be taken: it comes to rest, and somebody comes once they may be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from streamfleet.common.broker.types import Hint, Home, Lease, Role, Rooms, TenantRule
from streamfleet.common.protocol import LANES, Lane
from streamfleet.worker.services.tenants import keep_tenants
from tests.scripts.harness import NOW, Queue

CALLS = 20
"""Most pulls of a worker in a second that get nothing."""
WATCH_MS, IDLE_MS, SECOND_MS = 5_000, 40_000, 1_000
ALL, URGENT, NOTHING = (9, 9, 9, 9), (9, 9, 0, 0), (0, 0, 0, 0)


@dataclass
class Puller:
    """A worker's puller: what it knows between its pulls."""

    name: str
    rooms: tuple[int, ...] = ALL
    role: Role = Role.NONE
    owing: bool = False
    hints: list[Hint] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    until: int = 0
    """End of its wait, epoch ms."""


class Fleet:
    """Workers on a clock that the test moves, which pull and wait as `worker/pull.py` does."""

    def __init__(self, queue: Queue, workers: int) -> None:
        self.queue, self.now, self.housekeeping_at = queue, NOW, NOW
        self.workers = [Puller(f"w{number}") for number in range(workers)]
        self.busy = Puller("busy", NOTHING)
        self.added = self.vain = 0

    @property
    def taken(self) -> list[str]:
        return [lease.request_id for worker in self.workers for lease in worker.leases]

    async def pull(self, worker: Puller) -> bool:
        """True if it got something, or brought something in order."""
        rooms = [max(0, room - len(worker.leases)) for room in worker.rooms]
        hints, worker.hints = worker.hints, []
        pulled = await self.queue.broker.pull(
            worker.name,
            Rooms(rooms, (max(rooms),) * len(rooms), max(rooms)),
            hints,
            owing=worker.owing,
            home=Home("start", len(worker.leases)),
        )
        worker.leases += [claim.lease for claim in pulled.claims]
        worker.role, worker.owing = pulled.role, pulled.role is not Role.NONE
        ms = IDLE_MS if pulled.role is Role.WAITER else WATCH_MS
        if pulled.role is Role.WATCHER and pulled.soonest_ms is not None:
            ms = min(ms, pulled.soonest_ms + 1)
        worker.until = self.now + ms
        return bool(pulled.claims or pulled.staged or pulled.dropped)

    async def woken(self, worker: Puller) -> bool:
        """True if it has room, its wait is over, or something woke it."""
        keys, role = self.queue.keys, worker.role
        if role is Role.NONE:
            return worker.owing or max(worker.rooms) > len(worker.leases)
        worker.owing = True
        if worker.until <= self.now:
            return True
        if role is Role.WATCHER:
            lanes = [lane for lane, room in zip(LANES, worker.rooms, strict=True) if room > len(worker.leases)]
            worker.hints = await self.queue.read(lanes)
            return bool(worker.hints)
        if not await self.queue.command("LLEN", keys.wake_up(worker.name)):
            return False
        if await self.queue.broker.wait(2, worker.name):
            worker.role, worker.until = Role.WATCHER, self.now + SECOND_MS
            return False
        return True

    async def rest(self, ms: int) -> None:
        """Let so much time pass in which nothing comes and nothing ends.

        Raises:
            AssertionError: workers pull without an end.
        """
        end, bound = self.now + ms, self.vain + CALLS * len(self.workers) * max(1, ms // SECOND_MS)
        while True:
            while await self._go_on():
                assert self.vain <= bound, [
                    (worker.name, worker.role, worker.until - self.now) for worker in self.workers
                ]
            if self.now >= end:
                return
            times = [worker.until for worker in self.workers if worker.role is not Role.NONE]
            self._set_clock(min(end, self.housekeeping_at, *times))
            if self.now >= self.housekeeping_at:
                self.housekeeping_at = self.now + SECOND_MS
                await self.pull(self.busy)  # a worker that is alive asks now and then
                await self.queue.broker.return_delayed()
                await self.queue.broker.after_staging()

    async def _go_on(self) -> bool:
        moved = False
        for worker in self.workers:
            if await self.woken(worker):
                moved = True
                self.vain += not await self.pull(worker)
        return moved

    def _set_clock(self, now: int) -> None:
        self.now = max(self.now, now)
        self.queue = self.queue.at(self.now)

    async def add(self, lane: str, **fields: str) -> None:
        self.added += 1
        await self.queue.add(lane, f"{self.now}-{self.added}", **fields)

    async def meet(self) -> None:
        """Make workers known as homes, and the busy one as that of the session `his`."""
        await self.queue.complete("busy", await self.run("met", session="his"))
        for worker in self.workers:
            await self.queue.pull(worker.name, 0, home=Home("start", 0))

    async def run(self, request_id: str, lane: str = "normal", **fields: str) -> Lease:
        """A request that a busy worker runs."""
        await self.add(lane, id=request_id, **fields)
        self.busy.rooms = (1,) * 4
        await self.pull(self.busy)
        self.busy.rooms = NOTHING
        return self.busy.leases.pop()


@dataclass(frozen=True)
class Freeing:
    """An act that frees requests: their number, the time within which they are taken then, and the time before it."""

    act: Callable[[], Awaitable[object]]
    number: int = 1
    within_ms: int = 0
    after_ms: int = 2 * SECOND_MS


Scene = Callable[[Fleet], Awaitable[Freeing]]
SCENES: dict[str, Scene] = {}


def scene(setup: Scene) -> Scene:
    """A reason why requests wait and may not be taken: makes them wait, and returns what frees them."""
    SCENES[setup.__name__.replace("_", " ")] = setup
    return setup


async def limited(
    fleet: Fleet, lanes: Sequence[str] = ("normal",), tenants: Sequence[str] = ("a",), **more: str
) -> Lease:
    """Tenants at their limit, of whose requests some wait; one of the first tenant's runs."""
    leases = []
    for tenant in tenants:
        await fleet.queue.broker.set_tenant(tenant, TenantRule(1, 1))
        leases.append(await fleet.run(f"runs {tenant}", tenant=tenant))
    for lane in lanes:
        for number in range(3):
            await fleet.add(lane, id=f"{lane} {number}", tenant=tenants[number % len(tenants)], **more)
    await fleet.queue.broker.serve(keep_tenants)  # the housekeeping sees the limit
    return leases[0]


@scene
async def a_tenant_is_at_its_limit(fleet: Fleet) -> Freeing:
    lease = await limited(fleet)
    return Freeing(lambda: fleet.queue.complete("busy", lease))


@scene
async def a_limit_is_raised(fleet: Fleet) -> Freeing:
    await limited(fleet)
    return Freeing(lambda: fleet.queue.broker.set_tenant("a", TenantRule(1, 5)), 3, SECOND_MS)


@scene
async def a_tenant_is_at_its_limit_in_several_lanes(fleet: Fleet) -> Freeing:
    lease = await limited(fleet, ("critical", "normal", "low"))
    return Freeing(lambda: fleet.queue.complete("busy", lease))


@scene
async def several_tenants_are_at_their_limits(fleet: Fleet) -> Freeing:
    lease = await limited(fleet, tenants=("a", "b", "c"))
    return Freeing(lambda: fleet.queue.complete("busy", lease))


@scene
async def the_run_of_a_tenant_at_its_limit_is_lost(fleet: Fleet) -> Freeing:
    lease = await limited(fleet)
    return Freeing(lambda: fleet.queue.retry("busy", lease, most=1))


@scene
async def a_tenant_at_its_limit_has_requests_of_one_session(fleet: Fleet) -> Freeing:
    lease = await limited(fleet, session="hers")
    return Freeing(lambda: fleet.queue.complete("busy", lease))


@scene
async def a_tenant_at_its_limit_has_requests_of_a_worker_that_is_busy(fleet: Fleet) -> Freeing:
    lease = await limited(fleet, session="his")
    return Freeing(lambda: fleet.queue.complete("busy", lease))


@scene
async def a_tenant_is_at_its_limit_beside_workers_that_hold_more_than_others(fleet: Fleet) -> Freeing:
    for worker in fleet.workers[::2]:
        for number in range(5):
            await fleet.add("high", id=f"{worker.name} {number}")
        await fleet.pull(worker)
    lease = await limited(fleet, session="hers")
    return Freeing(lambda: fleet.queue.complete("busy", lease))


@scene
async def some_wait_for_another_worker(fleet: Fleet) -> Freeing:
    """Time frees them."""
    await fleet.queue.complete("busy", await fleet.run("first", session="his"))
    for number in range(3):
        await fleet.add("normal", id=f"normal {number}", session="his")
    return Freeing(fleet.queue.broker.now_ms, 3, SECOND_MS, SECOND_MS // 2)


@scene
async def a_lane_is_paused(fleet: Fleet) -> Freeing:
    await fleet.queue.broker.pause([Lane.NORMAL])
    for number in range(3):
        await fleet.add("normal", id=f"normal {number}", session="s")
    return Freeing(lambda: fleet.queue.broker.resume([Lane.NORMAL]), 3)


@scene
async def workers_have_room_for_other_lanes(fleet: Fleet) -> Freeing:
    for number in range(3):
        await fleet.add("normal", id=f"normal {number}", session="s")
    for worker in fleet.workers:
        worker.rooms = URGENT

    async def room() -> None:
        fleet.workers[-1].rooms, fleet.workers[-1].role = ALL, Role.NONE

    return Freeing(room, 3)


@scene
async def a_watcher_that_would_have_to_interrupt_has_died(fleet: Fleet) -> Freeing:
    await fleet.queue.broker.pull("dead", Rooms((1, 1, 0, 0), NOTHING, 0))
    return await workers_have_room_for_other_lanes(fleet)


@scene
async def workers_have_room_for_the_lane_of_a_tenant_at_its_limit(fleet: Fleet) -> Freeing:
    for worker in fleet.workers:
        worker.rooms = URGENT
    lease = await limited(fleet, ("high", "low"))
    return Freeing(lambda: fleet.queue.complete("busy", lease))


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("known", ["homes are known", "no homes"])
@pytest.mark.parametrize("name", SCENES)
async def test_an_idle_fleet_comes_to_rest_and_somebody_comes_once_a_request_may_be_taken(
    queue: Queue, name: str, known: str, workers: int
) -> None:
    fleet = Fleet(queue, workers)
    if known == "homes are known":
        await fleet.meet()
    freeing = await SCENES[name](fleet)
    before = fleet.taken
    await fleet.rest(freeing.after_ms)
    assert fleet.taken == before
    await freeing.act()
    await fleet.rest(freeing.within_ms)
    assert len(fleet.taken) == len(before) + freeing.number
