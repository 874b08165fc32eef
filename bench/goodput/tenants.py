"""Tenants in one lane: a small one beside a flood, with deadlines and without; and shares by weight."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from bench.core.parts import Part, Say
from bench.core.reports import Table, Target
from bench.core.rounds import Sample
from bench.goodput.runs import play, sample
from bench.goodput.scripts import Way
from bench.goodput.urgent import URGENT_LANE
from bench.goodput.work import FLOOD, SPEED, Session, Turn, of_tenants

WORKERS, LOAD, SMALL, EVERY_S = 2, 1.5, 20, 1.0
TENANTS, TODAY, FIRST = "tenants by tokens", "by deadline alone", "small ones always first"
BEYOND_S, IN_TIME_PERCENT = 1.0, 99.0
OUTPUTS = (8, 32, 128, 512)
WEIGHTS = {f"t{number}": float(number) for number in range(1, 11)}
LEARNT_S, GAP = 60.0, 2.0
"""When backlogs come; most that tenants may be apart, in largest requests for their weight."""


def beside(quick: bool, say: Say) -> Part:
    """Twenty small tenants that send a tenth of a flood at a load of 1.5."""
    seconds = 60.0 if quick else 180.0
    rows, targets = list[dict[str, Any]](), list[Target]()
    for deadlines in (False, True):
        made = of_tenants(1, WORKERS, LOAD, seconds, tenants=SMALL, flood=0.9, turns=1)
        if not deadlines:
            made = [replace(session, slack_s=float("inf")) for session in made]
        urgent = [session if session.tenant == FLOOD else replace(session, lane=URGENT_LANE) for session in made]
        case, found = "with deadlines" if deadlines else "without deadlines", dict[str, Sample]()
        for order, work in ((FIRST, urgent), (TENANTS, made), (TODAY, made)):
            say(f"{case}: {order}")
            fleet = play(Way(tenants=order == TENANTS), work, WORKERS, seconds, seconds / 3)
            small = found[order] = sample(fleet, lambda request: request.session.tenant != FLOOD)
            flood = sample(fleet, lambda request: request.session.tenant == FLOOD)
            rows.append(
                {
                    "": case,
                    "order": order,
                    "small ones' first token p50, s": small["first token p50, s"],
                    "p99, s": small["first token p99, s"],
                    "missed": f"{small['missed']:.1%}",
                    "the flood's p50, s": flood["first token p50, s"],
                    "its missed": f"{flood['missed']:.1%}",
                    "tokens a second": small["tokens a second"] + flood["tokens a second"],
                }
            )
        beyond_s = found[TENANTS]["first token p99, s"] - found[FIRST]["first token p99, s"]
        title = f"small tenants, {case}: first token p99, beyond that of ones that always go first"
        targets.append(Target(title, beyond_s, BEYOND_S, "at most", "s"))
        if deadlines:
            kept = 100 * (1 - found[TENANTS]["missed"])
            targets.append(Target(f"small tenants, {case}: answered in time", kept, IN_TIME_PERCENT, "at least", "%"))
    title = f"Tenants: {SMALL} small ones beside a flood, {WORKERS} workers, load {LOAD}"
    return Part([Table(title, list(rows[0]), rows)], targets)


def shares(quick: bool, say: Say) -> Part:
    """Ten tenants of weights 1 to 10, of which each always has requests that wait."""
    say(f"{len(WEIGHTS)} tenants of weights 1 to 10")
    seconds, warm_s = LEARNT_S + (60.0 if quick else 240.0), LEARNT_S + 10.0
    way = Way(tenants=True, weights=WEIGHTS)
    fleet = play(way, backlogs(seconds), 1, seconds, warm_s)
    picks = [
        (request.session.tenant, request.turn.new + request.turn.output)
        for at_s, request in fleet.given
        if at_s >= warm_s
    ]
    largest = max(tokens for _, tokens in picks)
    gap = largest_gap(picks) / largest
    rows = []
    for tenant, weight in WEIGHTS.items():
        tokens = sum(each for name, each in picks if name == tenant)
        fair = sum(each for _, each in picks) * weight / sum(WEIGHTS.values())
        rows.append({"weight": weight, "tokens": tokens, "of its share": f"{tokens / fair:.1%}"})
    name = f"{len(WEIGHTS)} tenants of weights 1 to 10: largest gap of tokens for their weight, in any window"
    target = Target(name, gap, GAP, "at most", "largest requests", f"{len(picks):,} picks")
    return Part([Table("Tenants: tokens by weight", list(rows[0]), rows)], [target])


def backlogs(seconds: float) -> list[Session]:
    """Of each tenant a request of each length, from which lengths are learnt, then more than there is time for."""
    chance, made = random.Random(4), list[Session]()
    for tenant, weight in WEIGHTS.items():
        number = 1.5 * seconds * SPEED.tokens_per_s * weight / sum(WEIGHTS.values()) / (sum(OUTPUTS) / len(OUTPUTS))
        several = [(0.0, each) for each in OUTPUTS] + [
            (LEARNT_S, each) for each in chance.choices(OUTPUTS, k=int(number))
        ]
        made += [
            Session(f"{tenant}-{at}", at_s, [Turn(30, each, each)], tenant=tenant)
            for at, (at_s, each) in enumerate(several)
        ]
    chance.shuffle(made)
    return made


def largest_gap(picks: Sequence[tuple[str, int]]) -> float:
    """Largest difference of two tenants' tokens for their weight in any window."""
    worst = 0.0
    for first, second in combinations(WEIGHTS, 2):
        at = low = high = 0.0
        for name, tokens in picks:
            if name in (first, second):
                at += tokens / WEIGHTS[name] * (1 if name == first else -1)
                low, high = min(low, at), max(high, at)
        worst = max(worst, high - low)
    return worst
