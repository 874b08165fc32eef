"""Asks two ways to the same answers, both running: each request one way, then the other, in random order.

Two starts of one engine, or one engine at two times, differ by more than the gateway adds. Two requests in direct
succession do not. Each is alone in its engine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from rich.progress import track

from bench.core.processes import cpu_seconds
from bench.engine.batch import Batch, check_output
from bench.engine.served import Served
from bench.engine.work import Body
from bench.gateway.figures import Answers, Found
from bench.gateway.work import Work

PAUSE_S = 0.05
"""Before each single request: what the one before left to do is done by then, and takes no time from the next."""
Ways = Mapping[str, Served]
"""`DIRECT` and `GATEWAY`."""


async def ask(ways: Ways, work: Work, rounds: int) -> Found:
    """Warm both up, then ask both the same for so many rounds: a batch, pairs, and streamed pairs."""
    chance = random.Random(1)
    for server in ways.values():
        for stream in (False, True):
            await server.run(work.warming(), stream=stream, in_turn=True)
    found, alone = Found(), work.alone()
    for _ in track(range(rounds), "round"):
        batch = await _one_after_the_other(ways, work.together(), chance)
        whole = await in_pairs(ways, alone, chance, stream=False)
        streamed = await in_pairs(ways, alone, chance, stream=True)
        found.add({name: Answers(batch[name], whole[name], streamed[name]) for name in ways})
    return found


async def in_pairs(ways: Ways, asked: Sequence[Body], chance: random.Random, *, stream: bool) -> dict[str, Batch]:
    """Send each request one way and then the other; returns the answers by way, in the order of the requests."""
    answers: dict[str, list[Batch]] = {name: [] for name in ways}
    async with AsyncExitStack() as stack:
        for server in ways.values():
            await stack.enter_async_context(server.connected())
        before = _cpu(ways)
        for body in asked:
            for name in _shuffled(ways, chance):
                await asyncio.sleep(PAUSE_S)
                answers[name].append(await ways[name].run([body], stream=stream, in_turn=True))
        await asyncio.sleep(PAUSE_S)
        used = {name: after - before[name] for name, after in _cpu(ways).items()}
    return {name: _checked(_joined(each, used[name]), asked) for name, each in answers.items()}


async def _one_after_the_other(ways: Ways, asked: Sequence[Body], chance: random.Random) -> dict[str, Batch]:
    """Send all requests at once one way, then all the other way."""
    return {name: _checked(await ways[name].run(asked), asked) for name in _shuffled(ways, chance)}


def _shuffled(ways: Ways, chance: random.Random) -> list[str]:
    return chance.sample(list(ways), len(ways))


def _checked(batch: Batch, asked: Sequence[Body]) -> Batch:
    check_output(batch, asked)
    return batch


def _cpu(ways: Ways) -> dict[str, float]:
    return {name: cpu_seconds(server.pid) for name, server in ways.items()}


def _joined(parts: Sequence[Batch], front_s: float) -> Batch:
    rows = [row for part in parts for row in part.rows]
    return Batch(rows, sum(part.wall_s for part in parts), front_s)
