"""Urgent requests on engines that are full of patient work: their first tokens, and what patient work loses.

Every slot runs patient answers of 256 to 768 tokens; urgent ones of 32 tokens come at random.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.core.parts import Part, Say
from bench.core.reports import Table, Target
from bench.core.rounds import cdf, percentile
from bench.core.tables import shown
from bench.goodput.runs import first_s, play
from bench.goodput.scripts import NO_RESERVE, Way
from bench.goodput.work import SPEED, Session, Turn

URGENT_TOKENS, URGENT_LANE = 32, "critical"
LENGTHS = (256, 768)
SLOTS_WITH_RESERVE = 40
"""A worker makes 40 slots of an engine's 32 by default: the reserve is a quarter more."""
ALONE, ORDER, SPLIT, RESERVE = "urgent alone", "order alone", "split", "reserve"
BEYOND_MS, LEFT_PERCENT, INTERRUPTIONS, GUARANTEED = 10.0, 95.0, 3.0, 4.5
"""Bounds: beside the same alone and two steps; of what urgent work leaves; of one request; of picks, in per cent."""


@dataclass(frozen=True)
class Case:
    """One load on one fleet.

    Attributes:
        workers: number of workers.
        load: urgent work as a share of what the engines can do.
        split: number of workers that serve urgent requests only, where the fleet is split; 0 to leave that out.
        lane: lane of the patient work.
        patient_s: time for which patient work runs before the first urgent request.
    """

    workers: int
    load: float
    split: int = 0
    lane: str = "low"
    patient_s: float = 15.0

    @property
    def name(self) -> str:
        after = f", after {self.patient_s:g} s without" if self.patient_s > 60 else ""
        return f"{self.workers} worker{'s' * (self.workers > 1)} full of {self.lane}, {self.load:.0%} urgent{after}"


CASES = (
    Case(1, 0.1),
    Case(1, 0.5),
    Case(8, 0.1, split=1),
    Case(8, 0.5, split=4),
    Case(1, 0.1, patient_s=70.0),
    Case(1, 0.1, lane="normal"),
    Case(1, 1.5),
)
QUICK = (CASES[0], CASES[2])


def work(case: Case, seconds: float, *, patient: bool) -> list[Session]:
    """Patient requests that wait from the beginning, more than there is time for, and urgent ones at random."""
    chance, rate = random.Random(1), case.workers * SPEED.tokens_per_s
    made, at = list[Session](), case.patient_s
    while (at := at + chance.expovariate(case.load * rate / URGENT_TOKENS)) < case.patient_s + seconds:
        turn = Turn(chance.randint(8, 32), URGENT_TOKENS, URGENT_TOKENS)
        made.append(Session(f"u{len(made)}", at, [turn], lane=URGENT_LANE))
    for number in range(int(1.5 * rate * (case.patient_s + seconds) / LENGTHS[0]) if patient else 0):
        tokens = chance.randint(*LENGTHS)
        made.append(Session(f"p{number}", 0.0, [Turn(chance.randint(8, 32), tokens, tokens)], lane=case.lane))
    return made


def figures(case: Case, contender: str, seconds: float) -> dict[str, Any]:
    """Figures of a contender, during the urgent traffic."""
    usual = contender in (ALONE, RESERVE)
    way = Way(worker={} if usual else NO_RESERVE, urgent_workers=case.split if contender == SPLIT else 0)
    slots = SLOTS_WITH_RESERVE if usual else SPEED.slots
    found = work(case, seconds, patient=contender != ALONE)
    fleet = play(way, found, case.workers, case.patient_s + seconds, case.patient_s, slots)
    urgent = [request for request in fleet.requests if request.session.lane == URGENT_LANE]
    first_ms, tokens = [1000 * each for each in first_s(fleet, urgent)], fleet.tokens_per_s()
    patient = [request for request in fleet.requests if request.session.lane == case.lane]
    interrupted = sum(request.interrupted for request in patient)
    last = {request: at_s for at_s, request in fleet.given}  # a pick that was given back is none
    held = {request for engine in fleet.engines for request in engine.held}
    picks = [each.session.lane for each, at_s in last.items() if at_s >= case.patient_s and (each.over or each in held)]
    return {
        "requests": len(urgent),
        "p50_ms": percentile(first_ms, 0.5),
        "p99_ms": percentile(first_ms, 0.99),
        "no_token": sum(request.first_s is None for request in urgent),
        "urgent_per_s": tokens[URGENT_LANE],
        "patient_per_s": tokens[case.lane],
        "interrupted": interrupted,
        "most_interrupted": max((request.interrupted for request in patient), default=0),
        "patient_picks_percent": 100 * picks.count(case.lane) / max(1, len(picks)),
        "first_ms_cdf": cdf(first_ms),
    }


def left_percent(found: Mapping[str, Mapping[str, Any]], name: str) -> float | None:
    """Patient tokens a second, in per cent of what urgent work leaves of all that is written with the order alone."""
    full = found[ORDER]["patient_per_s"] + found[ORDER]["urgent_per_s"]
    left = full - found[name]["urgent_per_s"]
    return None if name == ALONE or left <= 0 else float(100 * found[name]["patient_per_s"] / left)


def measure(quick: bool, say: Say) -> Part:
    """All contenders in each case."""
    times = dict[str, Any]()
    part = Part(data=times)
    for case in QUICK if quick else CASES:
        found = dict[str, dict[str, Any]]()
        for contender in (ALONE, ORDER, *((SPLIT,) if case.split else ()), RESERVE):
            say(f"{case.name}: {contender}")
            found[contender] = figures(case, contender, 20.0 if quick else 60.0)
        part.tables.append(table(case, found))
        part.targets.extend(targets(case, found))
        if case.split:
            times[case.name] = {name: each["first_ms_cdf"] for name, each in found.items()}
    return part


def table(case: Case, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each contender."""
    rows = [
        {
            "": f"split, {case.split} of {case.workers} urgent" if name == SPLIT else name,
            "first token p50, ms": each["p50_ms"],
            "p99, ms": each["p99_ms"],
            "no token": each["no_token"],
            "urgent tokens/s": each["urgent_per_s"],
            "patient tokens/s": each["patient_per_s"],
            "of what is left, %": left_percent(found, name),
            "interrupted": each["interrupted"],
            "one at most": each["most_interrupted"],
            f"picks of {case.lane}, %": each["patient_picks_percent"],
        }
        for name, each in found.items()
    ]
    return Table(f"Urgent: {case.name}, {found[RESERVE]['requests']} urgent requests", list(rows[0]), rows)


def targets(case: Case, found: Mapping[str, Mapping[str, Any]]) -> list[Target]:
    """First tokens and patient work; of more than engines can do, the guaranteed share alone."""
    ours, alone = found[RESERVE], found[ALONE]
    most = Target(f"{case.name}: interruptions of one request", ours["most_interrupted"], INTERRUPTIONS, "at most", "")
    if case.load > 1:
        share = Target(f"{case.name}: picks of {case.lane}", ours["patient_picks_percent"], GUARANTEED, "at least", "%")
        return [share, most]
    steps_ms = 2_000 * SPEED.step(SLOTS_WITH_RESERVE)
    name = f"{case.name}: first token p99, beyond alone and two steps"
    note = f"{shown(ours['p99_ms'])} ms; alone {shown(alone['p99_ms'])} ms, two steps {shown(steps_ms)} ms"
    beyond = ours["p99_ms"] - alone["p99_ms"] - steps_ms
    left = left_percent(found, RESERVE)
    return [
        Target(name, beyond, BEYOND_MS, "at most", "ms", note),
        Target(f"{case.name}: patient work, of what is left", left, LEFT_PERCENT, "at least", "%"),
        most,
    ]
