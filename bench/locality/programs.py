"""Programs of several turns, with and without the setting `rank_by_program`: how long whole programs take.

The real scripts on a real Redis, in virtual time. Programs have 2 to 14 turns without a deadline, hardly a pause
between them; a third of the work is single requests with deadlines, of no program. Half of all begins in bursts.
"""

from __future__ import annotations

import asyncio
import random
from math import inf
from statistics import fmean
from typing import Any

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.rounds import percentile
from bench.locality.fleet import Fleet
from bench.locality.routing import ratio
from bench.locality.scripts import Scripts
from bench.locality.work import Session, Speed, Turn, any_turn
from streamfleet.common.limits import Switch

LOADS, TIMED, MOST_TURNS = (0.9, 1.2), 1 / 3, 14
BURST_S = 60
OFF: Switch = "off"
ON: Switch = "on"
SPEED = Speed(slots=8)
"""Few requests at once, so that turns wait."""


def measure(quick: bool, say: Say) -> Part:
    """Paired runs at two loads, nobody dies."""
    workers, runs, seconds = (2, 2, 160.0) if quick else (2, 5, 300.0)
    rows, targets = list[dict[str, Any]](), list[Target]()
    for load in LOADS:
        say(f"{workers} workers, load {load}")
        found: dict[str, list[dict[str, float]]] = {OFF: [], ON: []}
        for seed in range(runs):
            with own_server() as server:
                for switch in (OFF, ON):
                    found[switch].append(asyncio.run(_one(server.url, switch, seed, workers, load, seconds)))
        for setting, some in found.items():
            names = [name for name in some[0] if name != "misses"]
            means = {name: round(fmean(each[name] for each in some), 3) for name in names}
            rows.append({"workers, load": f"{workers}, {load}", "rank_by_program": setting} | means)
        mean, half = ratio(found, "program, mean s", ON, OFF)
        more = fmean(on["misses"] - off["misses"] for on, off in zip(found[ON], found[OFF], strict=True))
        case = f"{workers} workers, load {load}"
        targets += [
            Target(f"{case}: mean time of a program, of without", mean, 1.0, "at most", "x", f"\u00b1 {half:.2f}"),
            Target(f"{case}: misses beyond those without", more, 0.0, "at most", "requests"),
        ]
    return Part(
        [Table("Whole programs, ranked by their turns and by their first arrival", list(rows[0]), rows)], targets
    )


async def _one(url: str, setting: Switch, seed: int, workers: int, load: float, seconds: float) -> dict[str, float]:
    contender = Scripts(url, sessions=True, rank_by_program=setting)
    warm_s, last_s = seconds * 0.3, seconds * 0.7
    programs = make(seed, workers, load, SPEED, seconds)
    fleet = Fleet(contender, programs, workers, SPEED, seconds, warm_s, deaths=False)
    try:
        found = await fleet.run()
    finally:
        await contender.close()
    began = {each.at_s: each for each in programs if each.slack_s == inf and warm_s <= each.at_s < last_s}
    took = [took_s for at_s, took_s in fleet.figures.sessions_s if at_s in began]
    took += [seconds - at_s for at_s in began.keys() - {at_s for at_s, _ in fleet.figures.sessions_s}]  # at least
    return {
        "program, mean s": fmean(took),
        "program, p50 s": percentile(took, 0.5),
        "program, p90 s": percentile(took, 0.9),
        "program, p99 s": percentile(took, 0.99),
        "missed": found["missed"],
        "misses": float(fleet.figures.missed),
        "tokens a second": found["tokens a second"],
    }


def make(seed: int, workers: int, load: float, speed: Speed, seconds: float) -> list[Session]:
    """Programs, and single requests with deadlines, that keep so many workers busy."""
    chance, usual = random.Random(seed), random.Random(1)
    turns = [any_turn(usual, True) for _ in range(4_000)]
    cost_s = fmean(turn.new * speed.prompt_s + turn.output * speed.full_step / speed.slots for turn in turns)
    rate = load * workers / cost_s
    made: list[Session] = []

    def add(at_s: float, slack_s: float, several: list[Turn]) -> None:
        system = chance.randrange(50)
        made.append(Session(f"s{len(made)}", at_s, system, 400 + 24 * system, slack_s, several))

    for share, mean_turns in ((TIMED, 1), (1 - TIMED, (2 + MOST_TURNS) / 2)):
        each_s = 2 / (rate * share / mean_turns)  # half of them one after the other, half in bursts
        times, at = list[float](), 0.0
        while (at := at + chance.expovariate(1 / each_s)) < seconds:
            times.append(at)
        for start in range(0, int(seconds), BURST_S):
            times += [start + chance.random() for _ in range(int(BURST_S / each_s + chance.random()))]
        for at_s in times:
            several = [any_turn(chance, True) for _ in range(1 if mean_turns == 1 else chance.randint(2, MOST_TURNS))]
            add(at_s, chance.choice((2.0, 10.0)) if mean_turns == 1 else inf, several)
    return made
