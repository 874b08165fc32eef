"""A fleet that plays on a clock that is handed in: its workers, its housekeeping, and what must hold of both.

After each step everybody who can go on does. Then time passes, up to what a worker's wait, the housekeeping or the next
retry has to say, so that whoever idles beside work, and for how long, is known to the millisecond.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from streamfleet.common.broker.types import Lease, Role, Rooms
from streamfleet.common.keys import NOBODY
from streamfleet.common.protocol import LANES, Lane
from tests.order.picks import HELD, HELD_PART
from tests.scripts.harness import Queue
from tests.scripts.histories.labelled_books import Books, Request
from tests.scripts.histories.labelled_order import Order, tried
from tests.scripts.histories.labelled_workers import PATIENT, Worker, serve
from tests.scripts.histories.model import HANDED_OUT, READY
from tests.scripts.keyspace import id_key, text

BEGIN = 1_900_000_000_000
RULES = b"rules"
TICK_MS, LEASE_MS, WATCH_MS, MOST = 1_000, 10_000, 7_000, 3
IDLE_MS, HOME_MS = 300, 2_500
"""Longest time for which a worker may idle beside a request, and beside one that waits for a home.

An idle waiter is woken for what comes to it; a home that watches, listens or stands by hears what others hear too. Nor
is it woken where a lane is resumed, or a tenant may run more.
"""
MOST_ROUNDS = 60
"""Most rounds of a worker at one moment."""


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
        self.shape, self.books = shape, Books(queue.limits.shares)
        self.queue = queue.with_limits(watchers=shape.watchers)
        self.now = BEGIN
        self.workers: list[Worker] = []
        self.dead: dict[str, int] = {}
        """Workers that died, and when."""
        self.paused: set[Lane] = set()
        self.open_since = dict.fromkeys(LANES, BEGIN)
        self.calm_from = BEGIN
        """Until then nobody need be woken: a worker died with a wake-up, and the housekeeping has not said it again."""
        self.dead_until = 0.0
        """Until when a worker that died counts as one that watches."""
        self.told_dead: set[str] = set()
        """Dead workers that had taken a wake-up along when the housekeeping came last."""
        self.tick_at = BEGIN + TICK_MS
        self.made = self.serial = self.number = 0
        self.chance = random.Random(0)

    @property
    def order(self) -> Order:
        return self.books.order

    @property
    def now(self) -> int:
        return self.order.now

    @now.setter
    def now(self, now: int) -> None:
        self.order.now, self.queue = now, self.queue.at(now)

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
        self.now = now

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
        self.books.compare(await self.queue.dump())

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
        hints, worker.hints = worker.hints, []
        known: dict[str, Any] = {
            "owing": worker.owing, "watch_ms": WATCH_MS, "home": worker.home
        }  # fmt: skip
        keys, most = self.queue.keys, max(rooms.lanes)
        await self._see_rules()
        if self._has_homes:  # those of what is new are known once it is staged
            trial = partial(self.queue.pull, worker.name, 0, hints, **known)
            self.order.follow(*await tried(self.queue, trial, self.order.commands(keys)))
        handed = [request for hint in hints if (request := self.books.requests.get(f"{hint.lane}:{hint.stream_id}"))]
        staged, ended = self.books.stage(handed)
        waiting = await self.queue.command("ZRANGE", keys.waiting, 0, -1, "WITHSCORES")
        wanted = self.order.wanted(worker.name, most, len(worker.leases), pairs_of(waiting))
        pulled = await self.queue.pull(worker.name, rooms, hints, **known)
        number = self.order.number(worker.name)
        taken = self.order.take(number, [], wanted, self.now, rooms=rooms.lanes, owed=rooms.owed)
        ended += self.books.take(taken, worker.name, pulled.claims)
        assert [pulled.staged, pulled.dropped] == [staged, ended]
        if wanted == most:
            assert pulled.soonest_ms == taken.soonest, f"{worker.name}: {pulled.soonest_ms}, not {taken.soonest}"
        worker.owing = pulled.role is not Role.NONE
        worker.soonest_ms = pulled.soonest_ms if pulled.role is Role.WATCHER else None
        worker.leases |= {claim.lease.entry: claim.lease for claim in pulled.claims}
        worker.note_room(self.now, took=bool(pulled.claims))
        return pulled.role

    async def _make_room(self, worker: Worker) -> None:
        """An urgent request has taken the slot of a patient one."""
        patient = [lease for lease in worker.leases.values() if lease.lane.number >= PATIENT]
        await self._interrupt(worker, self.chance.choice(patient), kept=True)

    def _ended(self, worker: Worker, lease: Lease) -> None:
        """A worker has room again, and one that waits for that goes on."""
        waits_for_room = min(worker.rooms().lanes) == 0
        del worker.leases[lease.entry]
        worker.note_room(self.now)
        if waits_for_room:
            worker.waits = None

    async def _interrupt(self, worker: Worker, lease: Lease, *, kept: bool) -> None:
        request = self.books.requests[lease.entry]
        output = {lease: (f"run{self.now}", 9)} if kept else {}
        generated = {lease: 7} if kept else {}
        await self.queue.broker.release(worker.name, [lease], gave_way=True, kept=output, generated=generated)
        if kept or request.held[1]:
            deadline = math.inf if request.entry.deadline is None else request.entry.deadline
            request.held = round(self.now + min(HELD, (deadline - self.now) / HELD_PART)), worker.name
        await self._back(request, 7 if kept else 0)
        self._ended(worker, lease)

    async def _back(self, request: Request, generated: int | None) -> None:
        """Its run was handed back, and it waits again, unless it is too late."""
        await self._follow()
        self.books.hand_back(request, generated)
        self.books.ready(request)

    # -- what the scripts know --------------------------------------------------------------------------------------

    @property
    def _has_homes(self) -> bool:
        return bool(self.shape.long or any(self.shape.sessions))

    async def _follow(self) -> None:
        if self._has_homes:
            self.order.follow(*await self.queue.connection.pipeline(self.order.commands(self.queue.keys)))

    async def _see_rules(self) -> None:
        """What operators have set counts, once a request of a tenant or the housekeeping has come since."""
        seen = await self.queue.command("HGET", self.queue.keys.lane_states, "tenants")
        if seen in (None, RULES):
            self.order.see_rules()

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
        if self.dead:
            ends, self.told_dead = await self._waiting_dead()
            self.dead_until = max(self.dead_until, *ends)
        await self._see_rules()
        await self.queue.broker.return_delayed(most_delay_ms=30_000)
        await self._follow()
        for request in sorted(due, key=lambda request: (request.place[1], request.member)):
            request.since = self.now
            self.books.ready(request)
        if self.now < self.tick_at:
            return
        self.tick_at = self.now + TICK_MS
        await self._reclaim()
        await self.queue.pull(self.workers[0].name, 0, stage_entries=1_000)
        await self._follow()
        self.books.stage([])
        await self._end_late()

    async def _end_late(self) -> None:
        """The last part of the housekeeping."""
        keys = self.queue.keys
        await self._see_rules()
        _, served = await self.queue.command("HSCAN", keys.served, 0, "COUNT", 1_000)
        await self.queue.broker.after_staging()
        for request in [*self.books.requests.values()]:
            if request.place == READY and request.late(self.now):
                self.books.end(request, "expired")
        commands = [("ZRANGE", keys.turns(lane), 0, -1, "WITHSCORES") for lane in LANES]
        turns = await self.queue.connection.pipeline(commands)
        names = [text(name)[2:] for name in served[::2] if name.startswith(b"t|")]
        left = {lane.number: dict(pairs_of(flat)) for lane, flat in zip(LANES, turns, strict=True)}
        self.order.tidy(names, left)
        await self._follow()

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
        await self._follow()
        for request in sorted([*lost, *handed], key=lambda request: (request.lane.number, id_key(request.stream_id))):
            if request.place != HANDED_OUT and (request.cancelled or request.place[2] >= MOST):
                self.books.end(request, "dead")
                continue
            if request.place != HANDED_OUT:
                request.tries = request.place[2]
                self.books.hand_back(request, None)
            self.books.ready(request)

    # -- what must hold ---------------------------------------------------------------------------------------------

    async def _check_nobody_idles(self, now: int) -> None:
        """No worker that could run it has idled beside a request for long, up to this moment."""
        for request in self.books.waiting():
            tenant = self.order.tenant(request.entry.tenant)
            if request.lane in self.paused or request.late(now) or not tenant.may_run:
                continue
            free, opened = self.order.free_since[request.entry.tenant], self.open_since[request.lane]
            since = max(request.since, free, opened, self.calm_from)
            for worker in self.workers:
                room = worker.free_since[request.lane.number - 1]
                idle = now - max(since, now if room is None else room)
                if idle <= IDLE_MS:
                    continue
                mine = request.entry.home == self.order.number(worker.name) and worker.waits is Role.WAITER
                # A home is told of what becomes ready, but not of what its tenant or its lane may run again.
                told = request.entry.home == 0 or (mine and since == request.since and since not in (free, opened))
                patient = not told or await self._is_told_again(since)
                if idle > HOME_MS or not patient:
                    raise AssertionError(f"{worker.name} idles beside {request.name} for {idle} ms")

    async def _is_told_again(self, since: int) -> bool:
        """A worker that died counts as one that waits, and takes wake-ups along until the housekeeping tells again."""
        ends, told = await self._waiting_dead() if self.dead else ([], set())
        return bool(told - self.told_dead) or max([self.dead_until, *ends]) + TICK_MS >= since

    async def _waiting_dead(self) -> tuple[list[float], set[str]]:
        """The ends of watches of workers that died, and those of them that have not come for a wake-up."""
        keys, names = self.queue.keys, [*self.dead]
        commands = [("ZRANGE", keys.watch, 0, -1, "WITHSCORES"), *(("EXISTS", keys.wake_up(name)) for name in names)]
        watch, *told = await self.queue.connection.pipeline(commands)
        ends = [end for name, end in pairs_of(watch) if name in self.dead]
        return [0, *ends], {name for name, number in zip(names, told, strict=True) if number}


def pairs_of(flat: Sequence[bytes]) -> list[tuple[str, float]]:
    """Members of a sorted set, and their scores."""
    return [(text(name), float(score)) for name, score in zip(flat[::2], flat[1::2], strict=True)]
