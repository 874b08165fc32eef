"""Figures of simulated runs: late shares, waits, utilisation of the engines. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streamfleet.operator.plan.simulate import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one fleet over all its runs.

    Attributes:
        workers: number of workers.
        requests: number of requests of all runs.
        late: share of them (0 to 1) that expired, waiting or running.
        late_runs: the same share for each run.
        wait_p50_s, wait_p99_s: seconds from enqueueing to the engine, of requests that reached it.
        total_p50_s, total_p99_s: seconds from enqueueing to the answer, of answered requests.
        used: utilised share of all slots (0 to 1).
        tokens_per_s: output tokens of answers per second.
    """

    workers: int
    requests: int
    late: float
    late_runs: tuple[float, ...]
    wait_p50_s: float
    wait_p99_s: float
    total_p50_s: float
    total_p99_s: float
    used: float
    tokens_per_s: float


def figures(workers: int, slots: int, runs: Sequence[Run]) -> Figures:
    """Compute the figures of runs with this number of workers and slots."""
    times = [each for run in runs for each in run.times]
    waits_s = sorted(each.waited_s for each in times if each.waited_s is not None)
    totals_s = sorted(each.total_s for each in times if each.total_s is not None)
    span_s = sum(max(run.ended_s, run.arrivals[-1].at_s) for run in runs)
    tokens = sum(
        arrival.output_tokens
        for run in runs
        for arrival, each in zip(run.arrivals, run.times, strict=True)
        if each.total_s is not None
    )
    return Figures(
        workers=workers,
        requests=len(times),
        late=1 - len(totals_s) / len(times),
        late_runs=tuple(sum(each.total_s is None for each in run.times) / len(run.times) for run in runs),
        wait_p50_s=at_share(waits_s, 0.5),
        wait_p99_s=at_share(waits_s, 0.99),
        total_p50_s=at_share(totals_s, 0.5),
        total_p99_s=at_share(totals_s, 0.99),
        used=sum(run.slot_s for run in runs) / (span_s * workers * slots) if span_s > 0 else 0.0,
        tokens_per_s=tokens / span_s if span_s > 0 else 0.0,
    )


def at_share(ordered: Sequence[float], share: float) -> float:
    """The value that a share (0 to 1) of the sorted values does not exceed; NaN if there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def mean(values: Iterable[float]) -> float:
    """Mean of at least one value."""
    found = list(values)
    return sum(found) / len(found)
