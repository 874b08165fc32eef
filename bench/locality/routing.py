"""Cached tokens, tokens in time and misses of each contender: the same sessions, one after the other, in virtual time.

`sessions` and `today` are the real scripts on a real Redis; the static hash and the push oracle decide without one. A
figure is the mean of ratios over paired runs, with half the width of its 95 % interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.locality.fleet import Fleet
from bench.locality.routers import Oracle, StaticHash
from bench.locality.scripts import Scripts
from bench.locality.work import Session, Speed, make, make_of_tenants

SESSIONS, TODAY, HASH, ORACLE = "sessions", "today: by deadline", "static hash", "push oracle"
CONTENDERS: dict[str, Callable[[str], Any]] = {
    ORACLE: lambda _: Oracle(),
    HASH: lambda _: StaticHash(),
    SESSIONS: lambda url: Scripts(url, sessions=True),
    TODAY: lambda url: Scripts(url, sessions=False),
}
LOADS = (0.7, 1.0, 1.5)
BEFORE_S = {20: 14.3, 1_000: 8.2}
"""The same of small tenants beside a flood, before requests stood in the sets of their labels."""
PREFILL = Speed(prompt_s=0.001)
"""Reading dominates: a prompt of 2,000 tokens takes 2 seconds, as long documents on a small engine do."""
_T = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78}  # of Student's distribution, 95 %, for so many runs
Runs = dict[str, list[dict[str, float]]]


def sizes(quick: bool) -> Sequence[tuple[int, int, float]]:
    """Workers, paired runs, and seconds of each."""
    return ((2, 2, 60.0), (8, 2, 60.0)) if quick else ((2, 5, 150.0), (8, 3, 120.0), (64, 2, 80.0))


def measure(quick: bool, say: Say) -> Part:
    """Fleets of several sizes, at three loads; a tenth of the workers dies every minute."""
    rows, targets = list[dict[str, Any]](), list[Target]()
    for workers, runs, seconds in sizes(quick):
        for load in LOADS:
            say(f"{workers} workers, load {load}")
            found = run(workers, load, runs, seconds, Speed())
            rows += table_rows(f"{workers}, {load}", found)
            targets += _targets(workers, load, found)
    return Part([Table("Sessions, by deadline, and routers that push", list(rows[0]), rows)], targets)


def measure_hot(quick: bool, say: Say) -> Part:
    """One session has half of all turns."""
    rows, targets = list[dict[str, Any]](), list[Target]()
    for workers, runs, seconds in sizes(quick)[1:]:
        say(f"{workers} workers")
        found = run(workers, 0.7, runs, seconds, Speed(), hot=True)
        rows += table_rows(f"{workers}, 0.7", found)
        note = f"{workers} workers, load 0.7, {runs} pairs"
        first, _ = ratio(found, "first token p99, s", SESSIONS, ORACLE)
        targets.append(
            Target("one hot session: p99 to the first token against the oracle's", first, 2.0, "at most", "x", note)
        )
        hottest, _ = ratio(found, "hottest worker", SESSIONS, ORACLE)
        targets.append(
            Target("one hot session: the hottest worker against the oracle's", hottest, 1.25, "at most", "x", note)
        )
    return Part([Table("One session with half of all turns", list(rows[0]), rows)], targets)


def measure_prefill(quick: bool, say: Say) -> Part:
    """Reading dominates."""
    workers, runs, seconds = (8, 2, 60.0) if quick else (64, 2, 80.0)
    say(f"{workers} workers")
    found = run(workers, 1.0, runs, seconds, PREFILL)
    gain, half = ratio(found, "tokens a second", SESSIONS, TODAY)
    rows = table_rows(f"{workers}, 1.0", found)
    note = f"{workers} workers, load 1.0, {runs} pairs, ± {half:.2f}"
    target = Target("where reading dominates: tokens a second against today's", gain, 1.9, "at least", "x", note)
    return Part([Table("Where reading dominates: 1 ms a prompt token", list(rows[0]), rows)], [target])


def measure_tenants(quick: bool, say: Say) -> Part:
    """Sessions of tenants, of which one sends half of all, or that send alike."""
    rows, targets = list[dict[str, Any]](), list[Target]()
    workers, runs, seconds = sizes(quick)[1]
    for tenants in (20, 1_000):
        for flood in (True, False):
            case = f"{tenants:,} tenants, {'one floods' if flood else 'all alike'}"
            say(case)
            made = partial(
                make_of_tenants, workers=workers, load=1.5, speed=Speed(), seconds=seconds, tenants=tenants, flood=flood
            )
            found = run_sessions(workers, runs, seconds, Speed(), made, (ORACLE, SESSIONS))
            cached, half = ratio(found, "cached", SESSIONS, ORACLE)
            first_s = fmean(each["small first token p99, s"] for each in found[SESSIONS])
            rows.append(
                {
                    "8 workers, load 1.5": case,
                    "cached": f"{fmean(each['cached'] for each in found[SESSIONS]):.1%}",
                    "of the oracle's": f"{cached:.1%} ± {half:.1%}",
                    "tokens in time a second": fmean(each["tokens in time a second"] for each in found[SESSIONS]),
                    "missed": f"{fmean(each['missed'] for each in found[SESSIONS]):.1%}",
                    "small tenants' first token p99, s": first_s,
                }
            )
            if flood:
                note, before_s = f"{case}, {runs} pairs, ± {half:.2f}", BEFORE_S[tenants]
                targets.append(Target("cached tokens against the push oracle's", cached, 0.95, "at least", "x", note))
                targets.append(Target("small tenants' first token p99", first_s, before_s / 2, "at most", "s", note))
    return Part([Table("Sessions of tenants", list(rows[0]), rows)], targets)


def run(workers: int, load: float, runs: int, seconds: float, speed: Speed, *, hot: bool = False) -> Runs:
    """Figures of each contender in each run, in pairs."""
    made = partial(make, workers=workers, load=load, speed=speed, seconds=seconds, hot=hot)
    return run_sessions(workers, runs, seconds, speed, made, [*CONTENDERS])


def run_sessions(
    workers: int, runs: int, seconds: float, speed: Speed, made: Callable[[int], list[Session]], names: Sequence[str]
) -> Runs:
    """The same with sessions that are made from a seed, of some contenders."""
    found: Runs = {name: [] for name in names}
    for seed in range(runs):
        with own_server() as server:
            for name in names:
                found[name].append(asyncio.run(_one(CONTENDERS[name](server.url), made(seed), workers, seconds, speed)))
    return found


async def _one(
    contender: Any, sessions: Sequence[Session], workers: int, seconds: float, speed: Speed
) -> dict[str, float]:
    fleet = Fleet(contender, sessions, workers, speed, seconds, seconds * 0.4, deaths=True)
    try:
        return await fleet.run()
    finally:
        if isinstance(contender, Scripts):
            await contender.close()


def ratio(found: Runs, figure: str, one: str, other: str) -> tuple[float, float]:
    """Mean of the paired ratios of a figure, and half the width of its interval."""
    ratios = [a[figure] / max(1e-9, b[figure]) for a, b in zip(found[one], found[other], strict=True)]
    return fmean(ratios), _T[len(ratios)] * stdev(ratios) / len(ratios) ** 0.5


def table_rows(case: str, found: Runs) -> list[dict[str, Any]]:
    """A row for each contender."""
    rows = []
    for name, some in found.items():
        against, half = ratio(found, "cached", name, ORACLE)
        goodput, wide = ratio(found, "tokens in time a second", name, TODAY)
        rows.append(
            {
                "workers, load": case,
                "contender": name,
                "cached": f"{fmean(each['cached'] for each in some):.1%}",
                "of the oracle's": f"{against:.1%} ± {half:.1%}",
                "tokens in time, of today's": f"{goodput:.2f} ± {wide:.2f}",
                "missed": f"{fmean(each['missed'] for each in some):.1%}",
                "first token p50, s": fmean(each["first token p50, s"] for each in some),
                "first token p99, s": fmean(each["first token p99, s"] for each in some),
                "passed over, longest s": max(each["passed over, longest s"] for each in some),
            }
        )
    return rows


def _targets(workers: int, load: float, found: Runs) -> list[Target]:
    case = f"{workers} workers, load {load}"
    cached, half = ratio(found, "cached", SESSIONS, ORACLE)
    goodput, wide = ratio(found, "tokens in time a second", SESSIONS, TODAY)
    more = fmean(a["missed"] - b["missed"] for a, b in zip(found[SESSIONS], found[TODAY], strict=True))
    return [
        Target(
            f"{case}: cached tokens against the oracle's", 100 * cached, 95.0, "at least", "%", f"± {100 * half:.1f}"
        ),
        Target(f"{case}: tokens in time against today's", goodput, 1.0, "at least", "x", f"± {wide:.2f}"),
        Target(f"{case}: misses beyond today's", 100 * more, 0.0, "at most", "%"),
    ]
