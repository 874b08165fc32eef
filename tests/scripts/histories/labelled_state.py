"""A fleet that plays on a clock that is handed in: its workers, its housekeeping, and what must hold of both.

After each step everybody who can go on does. Then time passes, up to what a worker's wait, the housekeeping or the next
retry has to say, so that whoever idles beside work, and for how long, is known to the millisecond.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from streamfleet.common.broker.types import Lease, Role, Rooms
from streamfleet.common.keys import NOBODY
from streamfleet.common.protocol import LANES, Lane
from tests.order.lanes import Shares
from tests.scripts.harness import Queue
from tests.scripts.histories.labelled_books import HOLD_MS, Books, Request
from tests.scripts.histories.labelled_homes import Homes
from tests.scripts.histories.labelled_workers import PATIENT, Worker, serve
from tests.scripts.histories.model import HANDED_OUT, READY
from tests.scripts.keyspace import Dump

BEGIN = 1_900_000_000_000
TICK_MS, LEASE_MS, WATCH_MS, MOST = 1_000, 10_000, 7_000, 3
IDLE_MS, HOME_MS = 300, 2_500
"""Longest time for which a worker may idle beside a request, and beside one that waits for a home."""
MOST_ROUNDS = 60
"""Most rounds of a worker at one moment."""
EXPECTED = {
    "home": "a home that watches, listens or stands by is woken by what wakes others too, who may hear it first",
    "dead": "a worker that died counts as one that waits, and takes a wake-up along: the housekeeping says it again",
}
"""Causes for which today's scripts leave a worker idle beside a request for longer than they should."""


@dataclass(frozen=True)
class Shape:
    """Parts of a history that stay the same: the fleet, and who its requests are of."""

    workers: int
    slots: int
    reserve: int
    watchers: int
    lanes: Sequence[Lane]
    tenants: Sequence[str]
    sessions: Sequence[str]
    long: int
    """Of so many requests one begins like others of its tenant; 0 for none."""


class LabelledState:
    """The workers, the books, and the clock; see `LabelledFleet` for what happens to them."""

    def __init__(self, queue: Queue, shape: Shape) -> None:
        self.shape, self.books, self.now = shape, Books(), BEGIN
        self.queue = queue.with_limits(now_ms=BEGIN, watchers=shape.watchers)
        self.workers: list[Worker] = []
        self.dead: dict[str, int] = {}
        """Workers that died, and when."""
        self.paused: set[Lane] = set()
        self.open_since = dict.fromkeys(LANES, BEGIN)
        self.calm_from = BEGIN
        """Until then nobody need be woken: a worker died with a wake-up, and the housekeeping has not said it again."""
        self.dead_until = 0.0
        """Until when a worker that died counts as one that listens, or watches."""
        self.told_dead: set[str] = set()
        """Dead workers that had taken a wake-up along when the housekeeping came last."""
        self.excused: Set[str] = EXPECTED.keys()
        self.tick_at = BEGIN + TICK_MS
        self.made = self.serial = self.number = 0
        self.chance = random.Random(0)

    # -- time -------------------------------------------------------------------------------------------------------

    async def pass_time(self, ms: int) -> None:
        """Everything that is due in the next `ms` happens when it is due."""
        end = self.now + ms
        while self.now < end:
            due = [worker.until for worker in self.workers] + [self.tick_at]
            due += [request.place[1] for request in self._delayed() if self.workers]
            await self._move_clock(max(self.now, min([end, *due])))
            for worker in self.workers:
                if worker.waits is not None and worker.until <= self.now:
                    worker.waits = None
            await self._keep_house()
            await self.settle()

    async def _move_clock(self, now: int) -> None:
        await self._check_nobody_idles(now)
        self.now, self.queue = now, self.queue.at(now)

    async def settle(self) -> None:
        """Everybody who can go on does, in any order, until nobody can."""
        rounds = 0
        while True:
            for worker in await serve(self.queue, self.workers):
                self._heard(worker)
            able = [worker for worker in self.workers if worker.waits is None]
            if not able:
                return
            await self._round(self.chance.choice(able))
            rounds += 1
            assert rounds < MOST_ROUNDS * len(self.workers), "workers pull without an end"

    async def compare(self) -> None:
        """Compare everything with the books."""
        dump = await self.queue.dump()
        self.books.compare(dump, self.now)
        if self._has_homes:
            ready = {request.name for request in self.books.requests.values() if request.place == READY}
            left = Homes(dump).of.keys() - ready
            assert not left, f"{left} wait for nobody any more"

    # -- workers ----------------------------------------------------------------------------------------------------

    def _start(self, name: str, reserve: int) -> None:
        self.made += 1
        worker = Worker(name, self.shape.slots, reserve, f"start{self.made}")
        worker.note_room(self.now)
        self.workers.append(worker)

    def _heard(self, worker: Worker) -> None:
        for hint in worker.hints:
            request = self.books.requests.get(f"{hint.lane}:{hint.stream_id}")
            if request is not None:
                request.place = HANDED_OUT
        if worker.doomed:
            self._bury(worker)

    def _bury(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.dead[worker.name] = self.now
        self.dead_until = max(self.dead_until, worker.listens_until)
        self.calm_from = self.tick_at

    async def _round(self, worker: Worker) -> None:
        """One round of a worker's loop."""
        rooms, role = worker.rooms(), Role.NONE
        if worker.may_watch:
            worker.may_watch, worker.soonest_ms, role = False, 1_000, Role.WATCHER
        elif max(rooms.lanes) > 0 or worker.owing:
            role = await self._pull(worker, rooms)
            while len(worker.leases) > worker.slots:
                await self._make_room(worker)
        self.number += 1
        worker.next_wait(role, self.now, self.number)

    async def _pull(self, worker: Worker, rooms: Rooms) -> Role:
        credit, *found = await self.queue.connection.pipeline(
            [
                ("HMGET", self.queue.keys.lane_states, *(f"credit:{lane}" for lane in LANES)),
                *(Homes.commands(self.queue.keys) if self._has_homes else ()),
            ]
        )
        homes = Homes.of_replies(found) if found else None
        hints, worker.hints = worker.hints, []
        pulled = await self.queue.pull(
            worker.name, rooms, hints, watching=worker.watching, owing=worker.owing, watch_ms=WATCH_MS, home=worker.home
        )
        for hint in hints:
            if request := self.books.requests.get(f"{hint.lane}:{hint.stream_id}"):
                request.place = READY
        worker.watching = worker.owing = pulled.role is Role.WATCHER
        worker.soonest_ms = pulled.soonest_ms if worker.watching else None
        worker.pulled_ms = pulled.now_ms
        worker.listens_until = self.now + WATCH_MS if pulled.role is Role.LISTENER else 0
        leases = [claim.lease for claim in pulled.claims]
        if homes is None and not pulled.dropped:
            self._check_lanes(rooms, leases, [int(number or 0) for number in credit])
        worker.leases |= {lease.entry: lease for lease in leases}
        await self._check_claims(worker, leases, homes)
        worker.note_room(self.now, took=bool(leases))
        return pulled.role

    async def _make_room(self, worker: Worker) -> None:
        """An urgent request has taken the slot of a patient one."""
        patient = [lease for lease in worker.leases.values() if lease.lane.number >= PATIENT]
        await self._interrupt(worker, self.chance.choice(patient), kept=True)

    def _ended(self, worker: Worker, lease: Lease) -> None:
        """A worker has room again, and one that waits for that goes on."""
        del worker.leases[lease.entry]
        worker.note_room(self.now)
        if worker.waits in (Role.NONE, Role.LISTENER, Role.STANDBY):
            worker.waits = None

    async def _interrupt(self, worker: Worker, lease: Lease, *, kept: bool) -> None:
        request = self.books.requests[lease.entry]
        output = {lease: (f"run{self.now}", 9)} if kept else {}
        generated = {lease: 7} if kept else {}
        await self.queue.broker.release(worker.name, [lease], gave_way=True, kept=output, generated=generated)
        if kept or request.held[1]:
            wait = HOLD_MS if request.deadline is None else min(HOLD_MS, (request.deadline - self.now) / 4)
            request.held = int(self.now + wait), worker.name
        self._back(request, 7 if kept else 0)
        self._ended(worker, lease)

    def _back(self, request: Request, generated: int | None) -> None:
        """It waits again, unless it is too late."""
        self.books.give_back(request, self.now, generated)
        if request.late(self.now):
            self.books.end(request, "expired", self.now)

    # -- the housekeeping -------------------------------------------------------------------------------------------

    def _delayed(self) -> list[Request]:
        return [request for request in self.books.requests.values() if request.place[0] == "delayed"]

    async def _keep_house(self) -> None:
        """Do a worker's work for the queue each second, and when a retry is due."""
        due = [request for request in self._delayed() if request.place[1] <= self.now]
        if not self.workers or not (due or self.now >= self.tick_at):
            if self.now >= self.tick_at:
                self.tick_at = self.calm_from = self.now + TICK_MS
            return
        await self._note_dead()
        await self.queue.broker.before_reclaiming(most_delay_ms=30_000)
        for request in due:
            request.place, request.since = READY, self.now
            if request.late(self.now):
                self.books.end(request, "expired", self.now)
        if self.now < self.tick_at:
            return
        self.tick_at = self.now + TICK_MS
        await self._reclaim()
        await self.queue.pull(self.workers[0].name, 0, stage_entries=1_000)
        for tenant in self.books.tenants.values():
            del tenant.weights[:-1], tenant.limits[:-1]
        await self.queue.broker.after_staging()

    async def _note_dead(self) -> None:
        """The housekeeping strikes their watches off, and says once more what they kept waiting, a second later."""
        if self.dead:
            dump = await self.queue.dump()
            self.dead_until = max([self.dead_until, *(end for name, end in dump.get("watch", []) if name in self.dead)])
            self.told_dead = {name for name in self.dead if f"home:{name}" in dump}

    async def _reclaim(self) -> None:
        gone = {name for name, since in self.dead.items() if self.now - since >= LEASE_MS}
        known = {f"{hint.lane}:{hint.stream_id}" for worker in self.workers for hint in worker.hints}
        lost = [request for name in gone for request in self.books.held_by(name)]
        handed = [request for request in self.books.requests.values() if request.place == HANDED_OUT]
        handed = [request for request in handed if request.name not in known]
        for request in [*lost, *handed]:
            owner = NOBODY if request.place == HANDED_OUT else request.place[1]
            await self.queue.age(request.lane, request.stream_id, owner)
        await self.queue.broker.reclaim(60_000, MOST)
        for request in handed:
            self._back(request, None)
        for request in lost:
            attempt = request.place[2]
            if request.cancelled or attempt >= MOST:
                self.books.end(request, "dead", self.now)
            else:
                request.tries = attempt
                self._back(request, None)

    # -- what must hold ---------------------------------------------------------------------------------------------

    def _check_lanes(self, rooms: Rooms, leases: Sequence[Lease], credit: list[int]) -> None:
        """Check that urgent lanes come first, and each has its share, where all that waits may run."""
        if any(known.order.running + len(leases) >= min(known.limits) for known in self.books.tenants.values()):
            return
        requests = [request for request in self.books.waiting() if not request.late(self.now)]
        # A tenant whose limit was raised waits in turn once the housekeeping has seen that.
        limits = [self.books.tenant(request.tenant).limits for request in requests]
        if any(min(known) < known[-1] for known in limits):
            return
        waiting = Counter(request.lane for request in requests)
        there = [0 if lane in self.paused else waiting[lane] for lane in LANES]
        picks = Shares(self.queue.limits.shares, [*credit]).choose(len(leases), there, rooms.lanes, rooms.owed)
        taken = Counter(lease.lane for lease in leases)
        assert picks == [taken[lane] for lane in LANES], f"{taken}, not {picks}, of {there}: {credit}, {rooms}"

    @property
    def _has_homes(self) -> bool:
        return bool(self.shape.long or any(self.shape.sessions))

    async def _check_claims(self, worker: Worker, leases: Sequence[Lease], homes: Homes | None) -> None:
        if not leases:
            return
        keys = self.queue.keys
        commands = [("ZRANGE", keys.turns(lane), 0, -1, "WITHSCORES") for lane in LANES]
        sharing, *found = await self.queue.connection.pipeline([("HEXISTS", keys.lane_states, "tenants"), *commands])
        taken = [self.books.requests[lease.entry] for lease in leases]
        for request, lease in zip(taken, leases, strict=True):
            self.books.pick(request, worker.name, lease, self.now, charged=bool(sharing))
        for name in {request.tenant for request in taken} & self.books.tenants.keys():
            tenant = self.books.tenant(name)
            running = tenant.order.running
            assert running <= max(tenant.limits), f"{name!r} runs {running} of {tenant.limits}"
        for lane, flat in zip(LANES, found, strict=True):
            mine = [request for request in taken if request.lane is lane]
            if not mine:
                continue
            if homes and not flat:
                homes.check_taken(lane, mine, worker.name, self.now)
            if self.books.check_taken(lane, mine, self.now) and sharing:
                turns = {name.decode(): float(score) for name, score in zip(flat[::2], flat[1::2], strict=True)}
                self.books.check_turns(lane, mine, turns, self.now)

    async def _check_nobody_idles(self, now: int) -> None:
        """No worker that could run it has idled beside a request for long, up to this moment."""
        dump: Dump | None = None
        for request in self.books.waiting():
            tenant = self.books.tenant(request.tenant)
            if request.lane in self.paused or request.late(now) or tenant.order.running >= min(tenant.limits):
                continue
            since = max(request.since, tenant.free_since, self.open_since[request.lane], self.calm_from)
            for worker in self.workers:
                free = worker.free_since[request.lane.number - 1]
                idle = now - max(since, now if free is None else free)
                if idle > IDLE_MS:
                    dump = await self.queue.dump() if dump is None else dump
                    bound = self._bound(request, worker, dump, since)
                    assert idle <= bound, f"{worker.name} idles beside {request.name} for {idle} ms"

    def _bound(self, request: Request, worker: Worker, dump: Dump, since: int) -> int:
        """Longest time for which a worker may idle beside a request, that it could run since then."""
        home = Homes(dump).of.get(request.name, "")
        held = request.held[0] > since and request.held[1] != worker.name
        blocked = worker.waits in (Role.WATCHER, Role.LISTENER, Role.STANDBY)
        watch = {name: end for name, end in dump.get("watch", []) if name in self.dead}
        until = max([self.dead_until, *watch.values()])
        told = any(f"home:{name}" in dump for name in watch.keys() - self.told_dead)
        dead = told or until + TICK_MS >= since  # the housekeeping has not said it again
        causes = {"home": home == worker.name and blocked, "dead": dead}
        late = held or home not in ("", worker.name) or any(causes[name] for name in self.excused)
        return HOME_MS if late else IDLE_MS
