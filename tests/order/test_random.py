"""Random histories of the model alone: nothing is lost, nobody is idle beside work, and charges sum up.

The worker's own code for the reserve and for giving way says the same as the model.
"""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from streamfleet.common.protocol import LANES
from streamfleet.worker.credit import Demand, Load, without_reserve
from streamfleet.worker.giving_way import Running, choose
from tests.order.lanes import Run, fills_up_to, gives_way
from tests.order.model import Entry, Model, Use
from tests.order.picks import D, held_until, rank_of

ALL = (1, 2, 3, 4)
STEPS = 100
WORKERS = 4
ROOM = 4
HIDDEN = 1500
"""Time after D for which younger requests may hide a request that waits for another worker."""


class History:
    """A fleet that pulls when something comes and when its last pull told it to; the clock is injected."""

    def __init__(self, seed: int) -> None:
        self.chance, self.model, self.now, self.number = Random(seed), Model(), 1_795_740_000_000, 0
        self.names = self.chance.choice(([""], ["A", "B"], ["", "A", "B", "C"]))
        self.homes = self.chance.choice(([0], [0, 1, 2], [0, *range(1, WORKERS + 1)]))
        self.held: dict[int, list[Entry]] = {worker: [] for worker in range(1, WORKERS + 1)}
        self.due: dict[int, int] = {}
        self.beside: dict[int, dict[Entry, int]] = {worker: {} for worker in self.held}
        self.ends: Counter[str] = Counter()
        for name in filter(None, self.names):
            self.model.set_tenant(name, self.chance.choice((1, 3, 0.5)), self.chance.choice((None, 1, 5)))

    def run(self) -> None:
        acts = (self.add, self.end, self.hand_back, self.leave, self.die)
        for _ in range(STEPS):
            self.pass_time(self.chance.choice((0, 1, 50, 400, 1500)))
            self.chance.choices(acts, (5, 4, 2, 1, 0.3))[0]()
            self.pull_all()
            self.check()
        while self.number > self.ends.total():
            self.end()
            self.pull_all()
            self.pass_time(D)
        assert all(tenant.running == 0 for tenant in self.model.tenants.values())
        assert self.ends.total() == self.number

    def add(self) -> None:
        for _ in range(self.chance.choice((1, 3, 8))):
            self.number += 1
            deadline = self.chance.choice((None, self.now + 900, self.now + 5000, self.now + 60_000))
            rank, lane = rank_of(self.now, deadline), self.chance.choice(ALL)
            tenant, home = self.chance.choice(self.names), self.chance.choice(self.homes)
            e = Entry(lane, (self.now, self.number), rank, self.now, deadline, tenant, home, size=100)
            self.model.became_ready([e])

    def end(self) -> None:
        for worker, held in self.held.items():
            for e in held[: self.chance.choice((0, 1, ROOM))]:
                use = Use(
                    prompt=25, output=self.chance.randrange(500), counted=self.chance.random() < 0.7, succeeded=True
                )
                self.model.ended(e.lane, e.id, use)
                self.ends[e.tenant] += 1
                self.held[worker].remove(e)

    def hand_back(self) -> None:
        worker = self.chance.randint(1, WORKERS)
        for e in self.held[worker][:1]:
            gave_way = self.chance.random() < 0.5
            until = held_until(self.now, e.deadline) if gave_way else 0
            until = until if until > self.now else 0
            self.model.handed_back(
                e.lane, e.id, generated=self.chance.choice((0, 40)), home=worker if until else 0, until=until
            )
            self.held[worker].remove(e)

    def leave(self) -> None:
        waiting = [e for lane in self.model.lanes.values() for e in lane.waiting.values()]
        for e in self.chance.sample(waiting, min(2, len(waiting))):
            self.ends[self.model.left(e.lane, e.id).tenant] += 1

    def die(self) -> None:
        worker = self.chance.randint(1, WORKERS)
        for e in self.held[worker]:
            self.model.handed_back(e.lane, e.id, home=self.chance.choice(self.homes))
        self.held[worker] = []
        self.model.free_home(worker)

    def pass_time(self, ms: int) -> None:
        """Time passes; who is to come again does so at its time."""
        end = self.now + ms
        while self.due and min(self.due.values()) <= end:
            worker = min(self.due, key=lambda each: self.due[each])
            self.now = max(self.now, self.due.pop(worker))
            self.pull(worker)
            if min(self.due.values(), default=end) > self.now:
                self.check()
        self.now = self.model.now = end

    def pull_all(self) -> None:
        for worker in self.held:
            self.pull(worker)

    def pull(self, worker: int) -> None:
        room = ROOM - len(self.held[worker])
        taken = self.model.take(worker, ALL, room, self.now)
        self.held[worker] += taken.runs
        self.ends.update(e.tenant for e in taken.dropped)
        self.due.pop(worker, None)
        if taken.soonest is not None:
            assert taken.soonest > 0
            self.due[worker] = self.now + taken.soonest

    def check(self) -> None:
        model = self.model
        waiting = [e for lane in model.lanes.values() for e in lane.waiting.values()]
        assert len(waiting) + len(model.running) + self.ends.total() == self.number, "a request is lost, or there twice"
        assert {e.id for e in model.running.values()} == {e.id for held in self.held.values() for e in held}
        for worker, held in self.held.items():
            beside = model.takeable(worker, ALL, self.now) if len(held) < ROOM else {}
            self.beside[worker] = {e: self.beside[worker].get(e, self.now) for e, ms in beside.items() if ms == 0}
            for e, since in self.beside[worker].items():
                assert e.home not in (0, worker), f"worker {worker} is idle beside {e}"
                assert self.now - since <= HIDDEN, f"worker {worker} is idle for {self.now - since} ms beside {e}"
            assert not beside or worker in self.due, f"worker {worker} waits for nothing beside {beside}"
        for name, tenant in model.tenants.items():
            mine = [e for e in model.running.values() if e.tenant == name]
            assert tenant.running == sum(e.charge.counted for e in mine) <= tenant.limit
            kept = sum(e.charge.kept for e in (*mine, *waiting) if e.tenant == name)
            assert tenant.charged == tenant.tokens + kept
        for lane in model.lanes.values():
            names = {e.tenant for e in lane.waiting.values() if not e.until} if lane.shared else set()
            assert {name for name in names if model.tenant(name).may_run} <= lane.in_turn <= names


@pytest.mark.parametrize("seed", range(50))
def test_random_history(seed: int) -> None:
    History(seed).run()


def test_the_worker_leaves_the_same_reserve() -> None:
    for slots in range(1, 200):
        for percent in (0, 10, 25, 100):
            found = [without_reserve(slots, percent, 1), without_reserve(slots, percent, 8)]
            assert found == [fills_up_to(4, slots, percent), fills_up_to(3, slots, percent)]


def test_at_the_worker_the_same_give_way() -> None:
    chance = Random(1)
    for _ in range(300):
        runs = [
            Run(chance.choice((3, 4)), chance.randrange(5), chance.random(), 3, chance.choice((2, 9, 99, math.inf)))
            for _ in range(6)
        ]
        slots = chance.randint(1, 4)
        running = {
            number: Running(LANES[run.lane - 1], Demand(1, 10), run.interrupted, run.whole, run.ran, run.slack)
            for number, run in enumerate(runs)
        }
        assert [runs[number] for number in choose(running, Load(slots, 0, 0))] == gives_way(runs, slots)
