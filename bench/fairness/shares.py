"""Tenants of different weights with long backlogs: how far their tokens are apart."""

from __future__ import annotations

import asyncio
import random
import time

from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.fairness.slots import ORDERS, Ask, Order, Slots
from bench.scheduling.parts import Part, Say

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
                gap = asyncio.run(_run(server.url, order, tenants, picks))
            rows.append({"tenants": tenants, "order": order, "picks": picks, "largest gap, in largest requests": gap})
            if order == "tenants by tokens":
                name = f"{tenants} tenants: largest gap of charged tokens for their weight, in any window"
                targets.append(Target(name, gap, 2.0, "at most", "largest requests"))
    return Part([Table("Tokens for their weight of tenants with backlogs", list(rows[0]), rows)], targets)


async def _run(url: str, order: Order, number: int, picks: int) -> float:
    chance, slots = random.Random(4), Slots(url, order, SLOTS, time.time() * 1000)
    await slots.broker.ensure_groups()
    names = [f"t{i}" for i in range(number)]
    weights = {name: 1 + 9 * i / max(1, number - 1) for i, name in enumerate(names)}
    for name, weight in weights.items():
        await slots.broker.set_tenant(name, weight, None)
    for output in OUTPUTS:  # estimates are exact once lengths are learnt
        await slots.add([Ask(name, output) for name in names])
        await slots.fill()
        await slots.until(slots.now + 10_000_000)
    waiting = dict.fromkeys(names, 0)
    charged: list[tuple[str, float]] = []

    def started(_: str, ask: Ask) -> None:
        waiting[ask.tenant] -= 1
        charged.append((ask.tenant, ask.tokens / weights[ask.tenant]))

    slots.started = started
    backlog = {name: max(20, round(200 * weight)) for name, weight in weights.items()}
    if number > 2:
        backlog = {name: max(10, round(20 * weight)) for name, weight in weights.items()}
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
    return _largest_gap(charged[skip:], names, chance)


def _largest_gap(charged: list[tuple[str, float]], names: list[str], chance: random.Random) -> float:
    """Largest difference of two tenants' tokens for their weight in any window, in largest requests for the weight."""
    largest = max(tokens for _, tokens in charged)
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
