"""Figures of one run, made from what the engines logged and when the urgent requests got their first tokens. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from bench.core.rounds import percentile
from bench.core.series import cdf
from bench.coserving.observed import Log, Run
from bench.coserving.traffic import WAYS, Seen

MEDIANS = (
    "patient_per_s",
    "urgent_per_s",
    "repeated_percent",
    "picks",
    "patient_picks_percent",
    "interrupted",
)
"""Figures of which a case shows the median of its rounds."""

LEAST_STEP_S = 0.001
"""Chunks that come closer together belong to one step: kept text comes before the first new token."""


@dataclass(frozen=True)
class Round:
    """Figures of one run.

    Attributes:
        first_ms: for each way, times from enqueueing to the first token.
        unanswered: urgent requests without an answer by the end; their times are what they had waited by then.
        steps_ms: durations of the engines' steps during the urgent traffic.
        values: further figures, see `MEDIANS`, and `most_interrupted`.
    """

    first_ms: Mapping[str, Sequence[float]]
    unanswered: int
    steps_ms: Sequence[float]
    values: Mapping[str, float]


def round_of(seen: Seen) -> Round:
    """Figures of a run, during its urgent traffic."""
    steps_ms = [step_ms for log in seen.logs for step_ms in step_times(log, seen.from_s, seen.to_s)]
    step_s = median(steps_ms) / 1000 if steps_ms else 0.0
    runs = sorted((run for log in seen.logs for run in log.runs), key=lambda run: run.began_s)
    written = dict.fromkeys((True, False), 0.0)
    for run in runs:
        written[run.lane == seen.patient_lane] += tokens_between(run, step_s, seen.from_s, seen.to_s)
    patient = [run for run in runs if run.lane == seen.patient_lane]
    all_ends = interruptions(patient, seen.stopped_s)
    ends = [run for run in all_ends if seen.from_s <= run.ended_s <= seen.to_s]
    again = sum(repeated(patient, ends).values())
    seconds = seen.to_s - seen.from_s
    picks = [run for run in unreturned(runs, seen.stopped_s) if seen.from_s <= run.began_s < seen.to_s]
    by_id = Counter(run.id for run in all_ends)
    values = {
        "patient_per_s": (written[True] - again) / seconds,
        "urgent_per_s": written[False] / seconds,
        "repeated_percent": 100 * again / (sum(written.values()) or 1),
        "picks": len(picks),
        "patient_picks_percent": 100 * sum(run.lane == seen.patient_lane for run in picks) / (len(picks) or 1),
        "interrupted": len(ends),
        "most_interrupted": max(by_id.values(), default=0),
    }
    first_ms = {way: [each.first_ms for each in seen.urgent if each.way == way] for way in WAYS}
    return Round(first_ms, sum(not each.answered for each in seen.urgent), steps_ms, values)


def step_times(log: Log, from_s: float, to_s: float) -> list[float]:
    """Durations in ms of an engine's steps that ended between two times, by the tokens that came with them."""
    return [
        (later - earlier) * 1000
        for times in log.token_times
        for earlier, later in pairwise(times)
        if from_s <= later <= to_s and later - earlier >= LEAST_STEP_S
    ]


def tokens_between(run: Run, step_s: float, from_s: float, to_s: float) -> float:
    """Tokens that a run wrote between two times, if it wrote one with each step until its end."""
    began_s = run.ended_s - run.tokens * step_s if run.first_ms is None else run.began_s + run.first_ms / 1000
    began_s = max(began_s, run.began_s)
    if run.ended_s <= began_s:
        return run.tokens if from_s <= run.ended_s < to_s else 0
    inside_s = max(0.0, min(run.ended_s, to_s) - max(began_s, from_s))
    return run.tokens * inside_s / (run.ended_s - began_s)


def interruptions(runs: Iterable[Run], stopped_s: float) -> list[Run]:
    """Runs that had begun to write and were ended early, before the workers were told to stop."""
    return [run for run in runs if not run.whole and run.tokens and run.ended_s < stopped_s]


def repeated(runs: Sequence[Run], ends: Sequence[Run]) -> dict[str, int]:
    """For each interrupted request, the tokens that it had and that its later runs had to write again.

    Args:
        runs: all runs, in order of their beginning.
        ends: those that were interrupted.
    """
    lost: dict[str, int] = {}
    for run in ends:
        had = run.kept + run.tokens
        after = next((each for each in runs if each.id == run.id and each.began_s >= run.ended_s), None)
        # Without a later run nothing shows that its tokens were kept, so they count as lost.
        kept = 0 if after is None else after.kept
        lost[run.id] = lost.get(run.id, 0) + max(0, had - kept)
    return lost


def unreturned(runs: Iterable[Run], stopped_s: float) -> list[Run]:
    """Runs whose pick was not returned to the lane: those that were not ended early before the workers had to stop."""
    return [run for run in runs if run.whole or run.ended_s >= stopped_s]


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Figures of a contender: percentiles of all rounds' requests and steps together, medians of all else."""
    first_ms = {way: [value for each in rounds for value in each.first_ms[way]] for way in WAYS}
    steps_ms = [value for each in rounds for value in each.steps_ms]
    found: dict[str, Any] = {name: median(each.values[name] for each in rounds) for name in MEDIANS}
    found["most_interrupted"] = max(each.values["most_interrupted"] for each in rounds)
    found["requests"] = sum(map(len, first_ms.values()))
    found["unanswered"] = sum(each.unanswered for each in rounds)
    for way, values in first_ms.items():
        found[f"{way}_p50_ms"], found[f"{way}_p99_ms"] = _spread(values)
    found["very_first_ms"] = [each.first_ms[WAYS[0]][0] for each in rounds if each.first_ms[WAYS[0]]]
    found["step_p50_ms"], found["step_p99_ms"] = _spread(steps_ms)
    found["first_ms_cdf"] = cdf([value for values in first_ms.values() for value in values])
    return found


def _spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    return (percentile(values, 0.5), percentile(values, 0.99)) if values else (None, None)
