"""Requests answered in time in overload, and below it."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.fairness.engines import PROMPT_MS, WORK_MS, Ask, run
from bench.fairness.queues import Oracle, RealQueue

ENGINES = 4
SLACKS_S = ((0.2, 2.0), (0.7, 10.0), (1.0, 60.0))
"""Cumulative share of requests, and seconds until their deadlines."""
WARM_S = 60
"""Time that is not counted: as long as the longest deadline."""
LOADS, CONTENDERS = (0.9, 1.5, 3.0), ("by deadline", "judged", "oracle")
SIGMA = 0.5
"""Spread of the factor by which a request's limit exceeds its output, log-normal."""


def sizes(chance: random.Random) -> tuple[int, int, int]:
    """Tokens of a prompt, of an output, and its limit."""
    prompt = min(3_000, max(20, round(chance.lognormvariate(5.5, 0.9))))
    output = min(512, max(8, round(chance.lognormvariate(4.5, 0.8))))
    return prompt, output, math.ceil(output * math.exp(abs(chance.gauss(0, SIGMA))))


def per_second(load: float) -> float:
    """Requests a second that are so many times what the engines can do."""
    chance = random.Random(1)
    work_ms = [prompt * PROMPT_MS + output * WORK_MS for prompt, output, _ in (sizes(chance) for _ in range(4_000))]
    return load * ENGINES * 1000 / (sum(work_ms) / len(work_ms))


def traffic(seed: int, load: float, seconds: float, start: float) -> Iterator[Ask]:
    """Requests in bursts: for 5 s of every 20 s, twice as many come as in the others."""
    chance, rate, at, number = random.Random(seed), per_second(load), 0.0, 0
    while True:
        at += chance.expovariate(rate * (1.6 if at % 20 < 5 else 0.8))
        if at > seconds:
            return
        number += 1
        draw = chance.random()
        slack_s = next(slack for share, slack in SLACKS_S if draw < share)
        yield Ask(number, start + at * 1000, *sizes(chance), deadline=start + (at + slack_s) * 1000)


@dataclass(frozen=True)
class Served:
    """Requests after the first seconds, by their end: those that came and those in time, and those never started."""

    came: int
    in_time: int
    not_started: int


def measure(quick: bool, say: Say) -> Part:
    """Measure loads of 0.9, 1.5 and 3."""
    seeds, seconds = ((3,), 140) if quick else ((3, 4, 5), 200)
    rows, targets = [], []
    for load in LOADS:
        found = {name: Served(0, 0, 0) for name in CONTENDERS}
        for seed in seeds:
            for name in CONTENDERS:
                say(f"load {load}, {name}, seed {seed}")
                more, before = _served(name, seed, load, seconds), found[name]
                found[name] = Served(*(sum(pair) for pair in zip(astuple(before), astuple(more), strict=True)))
        counted_s = (seconds - WARM_S) * len(seeds)
        rows += [
            {
                "load": load,
                "order": name,
                "requests": served.came,
                "in time, a second": served.in_time / counted_s,
                "not started": served.not_started,
            }
            for name, served in found.items()
        ]
        targets += _targets(load, found)
    tables = [Table("Requests answered in time", list(rows[0]), rows)]
    return Part(tables, targets, settings={"engines": ENGINES, "sigma of limits": SIGMA})


def _targets(load: float, found: dict[str, Served]) -> list[Target]:
    judged, today = found["judged"], found["by deadline"]
    if load < 1:
        share, most = 100 * judged.not_started / judged.came, _upper(judged.not_started, judged.came)
        note = f"n = {judged.came:,}; 95 % interval up to {most:.2f} %"
        return [Target(f"load {load}: requests that are not started, of all", share, 0.0, "at most", "%", note)]
    oracle, old = judged.in_time / found["oracle"].in_time, judged.in_time / max(1, today.in_time)
    return [
        Target(f"load {load}: answered in time, against the oracle", 100 * oracle, 95, "at least", "%"),
        Target(f"load {load}: answered in time, against the order by deadline", old, 1, "at least", "x"),
    ]


def _served(name: str, seed: int, load: float, seconds: int) -> Served:
    start = math.floor(time.time()) * 1000.0
    asks = list(traffic(seed, load, seconds, start))
    if name == "oracle":
        asyncio.run(run(Oracle(ENGINES), ENGINES, asks, start))
    else:
        with own_server() as server:
            asyncio.run(_real(server.url, asks, start, judges=name == "judged"))
    first, last = start + WARM_S * 1000, start + seconds * 1000
    came = [ask for ask in asks if ask.at >= first]
    in_time = [ask for ask in asks if ask.in_time and first <= (ask.done or 0) < last]
    return Served(len(came), len(in_time), sum(ask.picked is None for ask in came))


async def _real(url: str, asks: list[Ask], start: float, *, judges: bool) -> None:
    queue = RealQueue(url, ENGINES, judges=judges)
    await queue.open(start)
    await run(queue, ENGINES, asks, start)
    await queue.close()


def _upper(count: int, number: int) -> float:
    """Upper end of the 95 % interval of a share (Wilson), in percent."""
    z, share = 1.96, count / number
    middle, spread = share + z * z / (2 * number), z * math.sqrt(share * (1 - share) / number + z * z / (4 * number**2))
    return 100 * (middle + spread) / (1 + z * z / number)
