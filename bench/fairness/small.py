"""A small tenant beside a flood in the same lane: how long its requests wait for a slot."""

from __future__ import annotations

import asyncio
import random
import time

from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.rounds import percentile
from bench.fairness.slots import ORDERS, Ask, Order, Slots
from bench.scheduling.parts import Part, Say

FLOOD, SLOTS = 4_000, 64
MOST_MS = 20.0
OUTPUTS = (16, 64, 256)


def measure(quick: bool, say: Say) -> Part:
    """Measure each order on a server of its own."""
    number = 100 if quick else 1_000
    rows, excess = [], dict[Order, list[float]]()
    for order in ORDERS:
        say(order)
        with own_server() as server:
            waits, over = asyncio.run(_run(server.url, order, number))
        excess[order] = over
        rows.append(
            {
                "order": order,
                "requests": len(waits),
                "start p50, ms": percentile(waits, 0.5),
                "start p99, ms": percentile(waits, 0.99),
                "beyond the next free slot p99, ms": percentile(over, 0.99),
            }
        )
    target = Target(
        f"small tenant beside a flood of {FLOOD:,}: start after the next slot is free, p99",
        percentile(excess["tenants by tokens"], 0.99),
        MOST_MS,
        "at most",
        "ms",
        f"n = {number}; virtual time, so without Redis's own",
    )
    return Part([Table("A small tenant beside a flood", list(rows[0]), rows)], [target], {"excess_ms": {**excess}})


async def _run(url: str, order: Order, number: int) -> tuple[list[float], list[float]]:
    chance, slots = random.Random(3), Slots(url, order, SLOTS, time.time() * 1000)
    await slots.broker.ensure_groups()
    began: dict[str, float] = {}
    flooded = 0

    def started(name: str, ask: Ask) -> None:
        nonlocal flooded
        began[name] = slots.now
        flooded -= ask.tenant == "flood"

    slots.started = started
    waits, over = [], []
    came: dict[str, tuple[float, float]] = {}
    while len(came) < number:
        if flooded < FLOOD:
            more = FLOOD - flooded
            flooded += more
            await slots.add([Ask("flood", chance.choice(OUTPUTS)) for _ in range(more)])
        await slots.fill()
        await slots.until(slots.now + 1_000)
        arrived, free = slots.now, slots.next_free
        (name,) = await slots.add([Ask("small", chance.choice(OUTPUTS))])
        came[name] = (arrived, free)
    await slots.until(slots.now + 60_000)
    for name, (arrived, free) in came.items():
        start = began.get(name, slots.now)  # at least
        waits.append(start - arrived)
        over.append(start - free)
    await slots.close()
    return waits, over
