"""Where requests of sessions run: prompt tokens from caches beside a push oracle, without tenants and with many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.core.parts import Part, Say
from bench.core.reports import Table, Target
from bench.core.rounds import Sample
from bench.goodput.runs import mean, paired, play, sample
from bench.goodput.scripts import Way
from bench.goodput.work import FLOOD, Session, of_tenants, sessions

WORKERS = 8
SESSIONS, TODAY, ORACLE = "sessions", "by deadline", "push oracle"
WAYS = {ORACLE: None, SESSIONS: Way(sessions=True, tenants=True), TODAY: Way()}
LOADS = (0.7, 1.0, 1.5)
CACHED_PERCENT = 95.0
FIRST_TOKEN_S = {20: 4.1, 1_000: 4.1}
"""Of small tenants beside a flood: half of what it was with 1,000 before requests stood in the sets of their labels."""


def measure(quick: bool, say: Say) -> Part:
    """Sessions without tenants, at three loads."""
    rows, targets = list[dict[str, Any]](), list[Target]()
    for load in LOADS:
        case = f"{WORKERS} workers, load {load}"
        found = runs(quick, say, case, partial(sessions, workers=WORKERS, load=load), tuple(WAYS))
        rows += [row(case, name, found) for name in found]
        targets.append(cached(case, found))
        goodput, half = paired(found[SESSIONS], found[TODAY], "tokens a second")
        more = 100 * (mean(found[SESSIONS], "missed") - mean(found[TODAY], "missed"))
        name = f"{case}: tokens in time, to by deadline"
        targets.append(Target(name, goodput, 1.0, "at least", "x", f"± {half:.2f}"))
        targets.append(Target(f"{case}: missed beyond by deadline", more, 0.0, "at most", "%"))
    return Part([Table("Sessions: cached prompt tokens", list(rows[0]), rows)], targets)


def measure_tenants(quick: bool, say: Say) -> Part:
    """Sessions of tenants, of which one sends half of all."""
    rows, targets = list[dict[str, Any]](), list[Target]()
    for tenants, most_s in FIRST_TOKEN_S.items():
        case = f"{tenants:,} tenants and a flood, load 1.5"
        made = partial(of_tenants, workers=WORKERS, load=1.5, tenants=tenants)
        found = runs(quick, say, case, made, (ORACLE, SESSIONS))
        small = "small ones' p99, s"
        rows += [{**row(case, name, found), small: mean(found[name], small)} for name in found]
        targets.append(cached(case, found))
        first_s = mean(found[SESSIONS], small)
        targets.append(Target(f"{case}: small ones' first token p99", first_s, most_s, "at most", "s"))
    return Part([Table("Sessions: those of tenants", list(rows[0]), rows)], targets)


def runs(
    quick: bool, say: Say, case: str, made: Callable[..., list[Session]], names: Sequence[str]
) -> dict[str, list[Sample]]:
    """Figures of some contenders in paired runs."""
    number, seconds = (1, 40.0) if quick else (3, 150.0)
    found: dict[str, list[Sample]] = {name: [] for name in names}
    for seed in range(number):
        for name, samples in found.items():
            say(f"{case}, run {seed + 1} of {number}: {name}")
            fleet = play(WAYS[name], made(seed, seconds=seconds), WORKERS, seconds, 0.4 * seconds)
            small = sample(fleet, lambda request: request.session.tenant != FLOOD)
            samples.append({**sample(fleet), "small ones' p99, s": small["first token p99, s"]})
    return found


def row(case: str, name: str, found: dict[str, list[Sample]]) -> dict[str, Any]:
    """A contender's figures."""
    against, half = paired(found[name], found[ORACLE], "cached")
    return {
        "": case,
        "order": name,
        "cached": f"{mean(found[name], 'cached'):.1%}",
        "of the oracle's": f"{against:.1%} ± {half:.1%}",
        "tokens in time a second": mean(found[name], "tokens a second"),
        "missed": f"{mean(found[name], 'missed'):.1%}",
        "first token p50, s": mean(found[name], "first token p50, s"),
        "p99, s": mean(found[name], "first token p99, s"),
    }


def cached(case: str, found: dict[str, list[Sample]]) -> Target:
    """Cached tokens beside the oracle's."""
    against, half = paired(found[SESSIONS], found[ORACLE], "cached")
    name = f"{case}: cached tokens, of the oracle's"
    return Target(name, 100 * against, CACHED_PERCENT, "at least", "%", f"± {100 * half:.1f}")
