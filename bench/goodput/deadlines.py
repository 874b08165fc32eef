"""Requests answered in time, with deadlines judged at the pick and without, below what a fleet can do and above."""

from __future__ import annotations

from typing import Any

from bench.core.parts import Part, Say
from bench.core.reports import Table, Target
from bench.core.rounds import Sample
from bench.goodput.runs import mean, paired, play, sample
from bench.goodput.scripts import Way
from bench.goodput.work import sessions

WORKERS, LOADS = 4, (0.9, 1.5, 3.0)
JUDGED, TODAY = "judged", "by deadline"


def measure(quick: bool, say: Say) -> Part:
    """Single requests in bursts, with deadlines in 2, 10 and 60 s beyond their own time."""
    runs, seconds = (1, 90.0) if quick else (3, 200.0)
    rows, targets = list[dict[str, Any]](), list[Target]()
    for load in LOADS:
        found: dict[str, list[Sample]] = {TODAY: [], JUDGED: []}
        for seed in range(runs):
            work = sessions(seed, WORKERS, load, seconds, turns=1)
            for name, samples in found.items():
                say(f"load {load}, run {seed + 1} of {runs}: {name}")
                fleet = play(Way(judged=name == JUDGED), work, WORKERS, seconds, 60.0)
                samples.append(sample(fleet))
        names = ("answers a second", "tokens a second", "first token p50, s")
        rows += [
            {"load": load, "deadlines": name, "missed": f"{mean(samples, 'missed'):.1%}"}
            | {figure: mean(samples, figure) for figure in names}
            for name, samples in found.items()
        ]
        if load < 1:
            share = 100 * mean(found[JUDGED], "not started")
            targets.append(Target(f"load {load}, judged: ended without a start", share, 0.0, "at most", "%"))
        else:
            more, half = paired(found[JUDGED], found[TODAY], "answers a second")
            name = f"load {load}: answered in time, judged, to not judged"
            targets.append(Target(name, more, 1.0, "at least", "x", f"± {half:.2f}"))
    return Part([Table(f"Deadlines: answered in time, {WORKERS} workers", list(rows[0]), rows)], targets)
