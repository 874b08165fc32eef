"""Tenants of different weights with long backlogs: how far their tokens are apart."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.fairness.slots import ORDERS, Ask, Order, Slots
from streamfleet.common.broker.types import TenantRule

OUTPUTS = (8, 32, 128, 512)
SLOTS, PAIRS = 16, 300


def measure(quick: bool, say: Say) -> Part:
    """Measure two and a hundred tenants under each order."""
    rows, targets = [], []
    for tenants in (2, 100):
        picks = (400 if quick else 3_000) * (1 if tenants == 2 else 2)
        for order in ORDERS:
            say(f"{tenants} tenants, {order}")
            with own_server() as server:
                found = asyncio.run(_run(server.url, order, tenants, picks))
            rows.append(
                {
                    "tenants": tenants,
                    "order": order,
                    "picks": picks,
                    "largest gap, charged": found.charged,
                    "served": found.served,
                    "of two tenants in flight": found.in_flight,
                }
            )
            if order == "tenants by tokens":
                name = f"{tenants} tenants: largest gap of charged tokens for their weight, in any window"
                targets.append(Target(name, found.charged, 2.0, "at most", "largest requests"))
                name = f"{tenants} tenants: the same of served tokens; two, and what is in flight"
                targets.append(Target(name, found.served, 2.0 + found.in_flight, "at most", "largest requests"))
    title = "Tokens for their weight of tenants with backlogs, in largest requests"
    return Part([Table(title, list(rows[0]), rows)], targets)


@dataclass(frozen=True)
class Gaps:
    """Largest gaps between two tenants in any window, and the most that two have in flight, in largest requests."""

    charged: float
    served: float
    in_flight: float


async def _begin(slots: Slots, weights: Mapping[str, float]) -> None:
    """Set the weights, and let lengths be learnt, so that estimates are exact from then on."""
    await slots.broker.ensure_groups()
    for name, weight in weights.items():
        await slots.broker.set_tenant(name, TenantRule(weight))
    for output in OUTPUTS:
        await slots.add([Ask(name, output) for name in weights])
        await slots.fill()
        await slots.until(slots.now + 10_000_000)


async def _run(url: str, order: Order, number: int, picks: int) -> Gaps:
    chance, slots = random.Random(4), Slots(url, order, SLOTS, time.time() * 1000)
    names = [f"t{i}" for i in range(number)]
    weights = {name: 1 + 9 * i / max(1, number - 1) for i, name in enumerate(names)}
    await _begin(slots, weights)
    waiting = dict.fromkeys(names, 0)
    charged: list[tuple[str, float]] = []
    served: list[tuple[str, float]] = []
    running, most = Counter[str](), Counter[str]()

    def started(_: str, ask: Ask) -> None:
        waiting[ask.tenant] -= 1
        charged.append((ask.tenant, ask.tokens / weights[ask.tenant]))
        running[ask.tenant] += ask.tokens
        most[ask.tenant] = max(most[ask.tenant], running[ask.tenant])

    def ended(ask: Ask) -> None:
        served.append((ask.tenant, ask.tokens / weights[ask.tenant]))
        running[ask.tenant] -= ask.tokens

    slots.started, slots.ended = started, ended
    backlog = {name: round((200 if number == 2 else 20) * weight) for name, weight in weights.items()}
    skip = 0
    while len(charged) < picks + skip:
        asks = []
        for i, name in enumerate(names):
            missing = backlog[name] - waiting[name]
            if missing > backlog[name] // 2:
                # tenants differ in what they ask for: some short, some long, all mixed
                sizes = OUTPUTS[: 2 + i % 3] if i % 2 else OUTPUTS[i % 3 :]
                asks += [Ask(name, chance.choice(sizes)) for _ in range(missing)]
                waiting[name] += missing
        if asks:
            await slots.add(asks)
        if not skip:
            await slots.broker.pull("stager", 0, stage_entries=100_000)
            skip = len(charged) + SLOTS
        await slots.fill()
        await slots.until(slots.next_free)
    await slots.close()
    largest = max(tokens for _, tokens in charged)
    in_flight = sum(sorted(tokens / weights[name] for name, tokens in most.items())[-2:]) / largest
    first, second = (_largest_gap(some, names, largest, chance) for some in (charged[skip:], served[skip:]))
    return Gaps(first, second, in_flight)


def _largest_gap(charged: list[tuple[str, float]], names: list[str], largest: float, chance: random.Random) -> float:
    """Largest difference of two tenants' tokens for their weight in any window, in largest requests for the weight."""
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    worst = 0.0
    for first, second in pairs if len(pairs) <= PAIRS else chance.sample(pairs, PAIRS):
        at = low = high = 0.0
        for name, tokens in charged:
            if name in (first, second):
                at += tokens if name == first else -tokens
                low, high = min(low, at), max(high, at)
        worst = max(worst, high - low)
    return worst / largest
