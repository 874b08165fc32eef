"""Runs of contenders, and figures of what their requests saw."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from bench.core.redis import own_server
from bench.core.rounds import Sample, percentile
from bench.goodput.fleet import Fleet
from bench.goodput.oracle import Oracle
from bench.goodput.scripts import Scripts, Way
from bench.goodput.work import SPEED, Request, Session

_T = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78}
"""Of Student's distribution, 95 %, for so many runs."""


def play(
    way: Way | None, work: Sequence[Session], workers: int, seconds: float, warm_s: float, slots: int = SPEED.slots
) -> Fleet:
    """Run some work on a fleet that goes this way, on a server of its own, or on the oracle's. Returns the fleet."""

    async def run(url: str) -> Fleet:
        contender = Oracle() if way is None else Scripts(url, way)
        try:
            return await Fleet(contender, work, workers, seconds, warm_s, slots).run()
        finally:
            if isinstance(contender, Scripts):
                await contender.close()

    if way is None:
        return asyncio.run(run(""))
    with own_server() as server:
        return asyncio.run(run(server.url))


def first_s(fleet: Fleet, requests: Sequence[Request]) -> list[float]:
    """Times to first tokens; of what had none, the time that it waited until its deadline or the end of the run."""
    return [
        (min(request.deadline_s, fleet.now_s) if request.first_s is None else request.first_s) - request.sent_s
        for request in requests
    ] or [0.0]


def sample(fleet: Fleet, wanted: Callable[[Request], bool] = lambda _: True) -> Sample:
    """Figures of a run behind its warm-up. Requests whose deadlines lie beyond its end are not counted as in time.

    Args:
        fleet: the run.
        wanted: true of the requests that are meant.
    """
    sent = [each for each in fleet.requests if wanted(each) and each.sent_s >= fleet.warm_s]
    due = [each for each in sent if each.deadline_s <= fleet.now_s]
    answered = [each for each in fleet.requests if wanted(each) and (each.done_s or 0.0) >= fleet.warm_s]
    seconds, first = fleet.seconds - fleet.warm_s, first_s(fleet, sent)
    return {
        "cached": sum(each.cached for each in sent) / max(1, sum(each.read for each in sent)),
        "missed": sum(each.done_s is None for each in due) / max(1, len(due)),
        "not started": sum(each.over for each in sent if not each.read) / max(1, len(sent)),
        "answers a second": len(answered) / seconds,
        "tokens a second": sum(each.turn.output for each in answered) / seconds,
        "first token p50, s": percentile(first, 0.5),
        "first token p99, s": percentile(first, 0.99),
    }


def mean(samples: Sequence[Sample], figure: str) -> float:
    """Mean of a figure over runs."""
    return fmean(each[figure] for each in samples)


def paired(one: Sequence[Sample], other: Sequence[Sample], figure: str) -> tuple[float, float]:
    """Mean of the paired ratios of a figure, and half the width of its 95 % interval: none of one run."""
    ratios = [a[figure] / max(1e-9, b[figure]) for a, b in zip(one, other, strict=True)]
    half = _T[len(ratios)] * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else math.nan
    return fmean(ratios), half
