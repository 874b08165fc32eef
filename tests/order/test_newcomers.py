"""Names without history: beside tenants with history, and in a queue in which nobody has any."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.order.model import Entry, Model, Use

NOW = 1_795_740_000_000
NAMES = [f"n{number:03}" for number in range(300)]


class Fleet:
    """Slots that take requests of 256 tokens; `started`: number of requests that a tenant got a slot for."""

    def __init__(self, slots: int) -> None:
        self.model, self.slots, self.number = Model(), slots, 0
        self.model.now = NOW
        self.running: list[Entry] = []
        self.started: Counter[str] = Counter()

    def add(self, *tenants: str) -> None:
        for tenant in tenants:
            self.number += 1
            self.model.became_ready([Entry(3, (NOW, self.number), NOW + 300_000, NOW, tenant=tenant)])

    def step(self) -> None:
        """All that runs ends, and the slots are filled again."""
        for e in self.running:
            self.model.ended(e.lane, e.id, Use(prompt=0, output=256, counted=True, succeeded=True))
        self.running = self.model.take(1, (3,), self.slots, NOW).runs
        self.started.update(e.tenant for e in self.running)


def test_made_up_names_take_at_most_half() -> None:
    fleet = Fleet(slots=20)
    for tenant in ("acme", "zeta"):
        fleet.model.tenant(tenant).requests = 1
        fleet.add(*[tenant] * 100)
    fleet.add(*NAMES)
    for _ in range(5):
        fleet.step()
    assert fleet.started.total() == 100
    assert fleet.started["acme"] + fleet.started["zeta"] >= 50


def test_where_nobody_has_history_each_is_served_once_before_anyone_often() -> None:
    fleet = Fleet(slots=50)
    several = NAMES * 3
    Random(1).shuffle(several)
    fleet.add(*several)
    for _ in range(len(NAMES) // 50 * 3):
        fleet.step()
        if len(fleet.started) == len(NAMES):
            break
    assert len(fleet.started) == len(NAMES)
    assert max(fleet.started.values()) < 8
