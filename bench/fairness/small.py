"""A small tenant beside a flood in the same lane: how long its requests wait for a slot."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.rounds import percentile
from bench.fairness.slots import BOUND, ORDERS, Ask, Order, Slots

FLOOD, SLOTS = 4_000, (8, 64)
MOST_MS = 20.0
OUTPUTS = (16, 64, 256)


def measure(quick: bool, say: Say) -> Part:
    """Measure each order on a server of its own."""
    number = 100 if quick else 1_000
    rows, targets, bound, excess = [], [], 0.0, dict[str, list[float]]()
    for slots, order in itertools.product(SLOTS, (BOUND, *ORDERS)):
        say(f"{slots} slots, {order}")
        with own_server() as server:
            waits, over = asyncio.run(_run(server.url, order, slots, number))
        bound = percentile(waits, 0.99) if order == BOUND else bound
        excess[f"{slots} slots, {order}"] = over
        rows.append(
            {
                "slots": slots,
                "order": order,
                "requests": len(waits),
                "start p50, ms": percentile(waits, 0.5),
                "start p99, ms": percentile(waits, 0.99),
                "alone in waiting": len(over),
                "these, beyond the next free slot p99, ms": percentile(over, 0.99),
            }
        )
        if order == "tenants by tokens":
            what, note = (
                f"small tenant beside a flood of {FLOOD:,}, {slots} slots",
                "virtual time, so without Redis's own",
            )
            more = f"{what}: start after the next slot is free, where none of its own waits before, p99"
            targets.append(Target(more, percentile(over, 0.99), MOST_MS, "at most", "ms", f"n = {len(over)}; {note}"))
            more = f"{what}: start p99 beyond that of a tenant that always goes first"
            targets.append(
                Target(more, percentile(waits, 0.99) - bound, MOST_MS, "at most", "ms", f"n = {number}; {note}")
            )
    return Part([Table("A small tenant beside a flood", list(rows[0]), rows)], targets, {"excess_ms": {**excess}})


async def _run(url: str, order: Order, number_of_slots: int, number: int) -> tuple[list[float], list[float]]:
    chance, slots = random.Random(3), Slots(url, order, number_of_slots, time.time() * 1000)
    await slots.broker.ensure_groups()
    began: dict[str, float] = {}
    flooded = 0

    def started(name: str, ask: Ask) -> None:
        nonlocal flooded
        began[name] = slots.now
        flooded -= ask.tenant == "flood"

    slots.started = started
    waits, over = [], []
    came: dict[str, tuple[float, float, bool]] = {}
    while len(came) < number:
        if flooded < FLOOD:
            more = FLOOD - flooded
            flooded += more
            await slots.add([Ask("flood", chance.choice(OUTPUTS)) for _ in range(more)])
            await slots.broker.pull("stager", 0, stage_entries=100_000)
        await slots.fill()
        await slots.until(slots.now + 1_000)
        arrived, free, alone = slots.now, slots.next_free, came.keys() <= began.keys()
        (name,) = await slots.add([Ask("small", chance.choice(OUTPUTS))])
        came[name] = (arrived, free, alone)
    await slots.until(slots.now + 60_000)
    for name, (arrived, free, alone) in came.items():
        start = began.get(name, slots.now)  # at least
        waits.append(start - arrived)
        if alone:
            over.append(start - free)
    await slots.close()
    return waits, over
