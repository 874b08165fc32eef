"""Expected times of requests that wait, beside the true ones."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.rounds import percentile
from bench.fairness.deadlines import ENGINES, SLACKS_S, per_second, sizes
from bench.fairness.engines import Ask, run
from bench.fairness.queues import RealQueue

WARM_S = 60
BURSTS = (("bulk", 0, 100, 40), ("bulk3", 50, 100, 20))
"""Tenants that send all at once: the first time and the time between two, s, and the work, s of the whole fleet."""
SMALL = 20


def _poisson(chance: random.Random, seconds: float, load: Callable[[float], float]) -> Iterator[float]:
    at = 0.0
    while (at := at + chance.expovariate(per_second(load(at)))) < seconds:
        yield at


def urgent(chance: random.Random, seconds: float) -> list[Ask]:
    """Urgent requests come steadily; of others, by turns more come than can be answered, and fewer."""
    asks = [Ask(0, at * 1000, *sizes(chance), lane="critical") for at in _poisson(chance, seconds, lambda _: 0.3)]
    loads = (0.9, 0.4)
    return asks + [
        Ask(0, at * 1000, *sizes(chance)) for at in _poisson(chance, seconds, lambda at: loads[int(at // 40) % 2])
    ]


def tenants(chance: random.Random, seconds: float) -> list[Ask]:
    """Two tenants send much at once, one of weight 3; one sends steadily, and many seldom."""
    asks = [Ask(0, at * 1000, *sizes(chance), tenant="steady") for at in _poisson(chance, seconds, lambda _: 0.2)]
    small = _poisson(chance, seconds, lambda _: 0.1)
    asks += [Ask(0, at * 1000, *sizes(chance), tenant=f"small{chance.randrange(SMALL)}") for at in small]
    for tenant, first, every, work_s in BURSTS:
        for at in range(first, int(seconds), every):
            asks += [Ask(0, at * 1000, *sizes(chance), tenant=tenant) for _ in range(int(per_second(1) * work_s))]
    return asks


def slacks(chance: random.Random, seconds: float) -> list[Ask]:
    """Deadlines in 32, 40 and 90 s; requests come steadily, and many at once every 60 s."""
    at = [*_poisson(chance, seconds, lambda _: 0.5)]
    for first in range(0, int(seconds), 60):
        at += [float(first)] * int(per_second(1) * 20)
    draws = chance.choices(
        [slack + 30 for _, slack in SLACKS_S], cum_weights=[share for share, _ in SLACKS_S], k=len(at)
    )
    return [
        replace(Ask(0, 1000 * at, *sizes(chance)), deadline=1000 * (at + slack))
        for at, slack in zip(at, draws, strict=True)
    ]


LOADS = {"urgent requests come steadily": urgent, "tenants": tenants, "deadlines in 32, 40 and 90 s": slacks}


class _Watched(RealQueue):
    """Asks for the expected time of every 10th request a second after it has come."""

    def __init__(self, url: str) -> None:
        super().__init__(url, ENGINES, judges=False)
        self._fresh: list[Ask] = []
        self.told: list[tuple[Ask, float, float]] = []

    async def add(self, ask: Ask, now: float) -> None:
        await super().add(ask, now)
        if ask.lane == "normal" and ask.number % 10 == 0:
            self._fresh.append(ask)

    async def keep_house(self, now: float) -> None:
        await super().keep_house(now)
        for ask in self._fresh:
            if ask.picked is None and (wait_ms := (await self.expected(ask, now)).wait_ms) is not None:
                self.told.append((ask, now, wait_ms / 1000))
        self._fresh = []


def measure(quick: bool, say: Say) -> Part:
    """Measure each load."""
    rows, targets = [], []
    for name, load in LOADS.items():
        say(name)
        more, found = _judge(name, asyncio.run(_expected(load, 140 if quick else 300)))
        rows += more
        targets += found
    return Part([Table("Expected times", list(rows[0]), rows)], targets)


async def _expected(load: Callable[[random.Random, float], list[Ask]], seconds: int) -> list[tuple[float, float]]:
    """Expected and true seconds of requests of lane `normal`."""
    start = math.floor(time.time()) * 1000.0
    asks = sorted(load(random.Random(7), seconds), key=lambda ask: ask.at)
    for number, ask in enumerate(asks, 1):
        ask.number, ask.at, ask.deadline = number, start + ask.at, start + ask.deadline
    with own_server() as server:
        queue = _Watched(server.url)
        await queue.open(start)
        await queue.weigh("bulk3", 3)
        await run(queue, ENGINES, asks, start)
        await queue.close()
    warm = start + WARM_S * 1000
    return [(told_s, (ask.picked - now) / 1000) for ask, now, told_s in queue.told if ask.picked and now >= warm]


def _judge(name: str, times: list[tuple[float, float]]) -> tuple[list[dict[str, float | str]], list[Target]]:
    long = [(told, true) for told, true in times if true >= 2]
    short = [abs(told - true) for told, true in times if true < 2]
    errors = [100 * abs(told - true) / true for told, true in long]
    rows: list[dict[str, float | str]] = [
        {
            "load": name,
            "waits": "2 s or more",
            "number": len(long),
            "p50 of the error": f"{percentile(errors, 0.5):.0f} %",
            "p90 of the error": f"{percentile(errors, 0.9):.0f} %",
        },
        {
            "load": name,
            "waits": "below 2 s",
            "number": len(short),
            "p50 of the error": f"{percentile(short, 0.5):.2f} s",
            "p90 of the error": f"{percentile(short, 0.9):.2f} s",
        },
    ]
    within = 100 * sum(error <= 25 for error in errors) / len(errors)
    close = 100 * sum(error <= 1 for error in short) / len(short)
    return rows, [
        Target(
            f"{name}: expected times within 25 %, of waits of 2 s or more",
            within,
            90,
            "at least",
            "%",
            f"n = {len(long)}",
        ),
        Target(f"{name}: expected times within 1 s, of shorter waits", close, 90, "at least", "%", f"n = {len(short)}"),
    ]
