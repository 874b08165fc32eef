"""Measures how evenly workers are filled by requests without sessions, in virtual time: real scripts, a real Redis.

`spread` is the mean, over the run, of the most less the fewest requests that workers hold.
"""

from __future__ import annotations

import asyncio
from statistics import fmean
from typing import Any

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table
from bench.locality.fleet import Fleet
from bench.locality.scripts import Scripts
from bench.locality.work import Speed, make

WORKERS, LOADS, SAMPLE_S = 8, (0.5, 0.7), 0.05


class Sampled(Fleet):
    """A fleet whose workers are looked at again and again."""

    def sample(self) -> list[int]:
        """Begin; returns the list that gets each look's spread."""
        self.spreads: list[int] = []
        self.at(self.warm_s, "look", None)
        return self.spreads

    async def _look(self, _: None) -> None:
        held = [len(engine.held) for engine in self.engines]
        self.spreads.append(max(held) - min(held))
        self.at(self.now_s + SAMPLE_S, "look", None)


def measure(quick: bool, say: Say) -> Part:
    """Two loads, nobody dies."""
    runs, seconds = (2, 60.0) if quick else (5, 150.0)
    rows = list[dict[str, Any]]()
    for load in LOADS:
        say(f"{WORKERS} workers, load {load}")
        some = []
        for seed in range(runs):
            with own_server() as server:
                some.append(asyncio.run(one(server.url, seed, load, seconds)))
        rows.append({"load": load} | {name: round(fmean(each[name] for each in some), 3) for name in some[0]})
    return Part([Table(f"Requests that {WORKERS} workers hold, without sessions", list(rows[0]), rows)], [])


async def one(url: str, seed: int, load: float, seconds: float) -> dict[str, float]:
    """Figures of one run."""
    contender, speed = Scripts(url, sessions=False), Speed()
    work = make(seed, WORKERS, load, speed, seconds)
    fleet = Sampled(contender, work, WORKERS, speed, seconds, seconds * 0.3, deaths=False)
    spreads = fleet.sample()
    try:
        found = await fleet.run()
    finally:
        await contender.close()
    names = ("first token p50, s", "first token p99, s", "missed", "tokens a second")
    return {"spread": fmean(spreads), "pulls a request": len(contender.pull_s) / max(1, contender.sent_count)} | {
        name: found[name] for name in names
    }
