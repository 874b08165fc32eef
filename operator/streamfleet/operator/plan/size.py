"""Finds the smallest fleet whose share of late requests is small enough. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streamfleet.common.errors import StreamfleetError
from streamfleet.operator.plan.arrivals import Arrival
from streamfleet.operator.plan.figures import Figures, figures, mean
from streamfleet.operator.plan.simulate import Fleet, Simulation

Evaluate = Callable[[int], Figures]
"""Function from a number of workers to its figures."""


class NoFleet(StreamfleetError):
    """No number of workers is enough; the message tells the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Result of sizing.

    Attributes:
        workers: smallest sufficient number of workers.
        looked_at: its figures and those of its neighbours, by number of workers.
    """

    workers: int
    looked_at: tuple[Figures, ...]


def evaluator(
    fleet: Fleet, runs: Sequence[Sequence[Arrival]], shown: Callable[[int], None] = lambda _: None
) -> Evaluate:
    """Return a function that simulates a fleet of a given size on all runs; results are cached.

    Args:
        fleet: the fleet; its number of workers is replaced.
        runs: arrivals of each run.
        shown: called with each simulated size.
    """
    known: dict[int, Figures] = {}

    def evaluate(workers: int) -> Figures:
        if workers not in known:
            shown(workers)
            found = [Simulation(replace(fleet, workers=workers), arrivals).run() for arrivals in runs]
            slots = fleet.profile.engine.slots
            known[workers] = figures(workers, min(slots, fleet.batch_size or slots), found)
        return known[workers]

    return evaluate


def smallest(evaluate: Evaluate, late: float, first: int, most: int) -> int:
    """Find the smallest number of workers with at most a share `late` of late requests.

    Args:
        evaluate: computes a fleet's figures; more workers are assumed never to be worse.
        late: share, 0 to 1.
        first: first number to try.
        most: largest number to try.

    Raises:
        NoFleet: even `most` workers are too few.
    """
    low, high, step = 0, max(1, min(first, most)), 1
    while evaluate(high).late > late:
        if high == most:
            raise NoFleet(
                f"even with {most} workers {evaluate(most).late:.2%} would be late: each engine is filled before the "
                "next one gets anything, and a full one is slow. Put fewer requests at once into one (--batch-size), "
                "give more time (--deadline), or allow more (--late, --most)"
            )
        low, high, step = high, min(most, high + step), step * 2
    while high - low > 1:
        middle = (low + high) // 2 if low else high - 1  # the first guess is close
        if evaluate(middle).late <= late:
            high = middle
        else:
            low = middle
    return high


def size(evaluate: Evaluate, late: float, first: int, most: int, spare: int = 0) -> Sized:
    """Find the smallest fleet, with figures for one worker fewer, one more, and with the spare workers."""
    enough = smallest(evaluate, late, first, most)
    wanted = sorted({max(1, enough - 1), enough, enough + 1, enough + spare})
    return Sized(enough, tuple(evaluate(workers) for workers in wanted))


def busy_workers(fleet: Fleet, runs: Sequence[Sequence[Arrival]]) -> int:
    """Number of workers, at least 1, whose speed matches the arrivals if all are full all the time.

    The real need is a little higher, so the search starts here.
    """
    slots = fleet.profile.engine.slots
    together = min(slots, fleet.batch_size or slots)

    def share(arrivals: Sequence[Arrival]) -> float:
        work_s = sum(fleet.profile.work_s(item.prompt_tokens, item.output_tokens, together) for item in arrivals)
        span_s = arrivals[-1].at_s - arrivals[0].at_s
        return work_s / span_s if span_s > 0 else 1.0

    return max(1, math.ceil(mean(share(arrivals) for arrivals in runs)))


def hopeless(fleet: Fleet, runs: Sequence[Sequence[Arrival]]) -> float:
    """Share of requests (0 to 1) that would be late even alone in an engine, so that no fleet helps them."""
    found = [
        item.deadline_s is not None
        and fleet.profile.request_s(item.prompt_tokens, item.output_tokens) + fleet.profile.pickup_ms / 1000
        > item.deadline_s
        for arrivals in runs
        for item in arrivals
    ]
    return sum(found) / len(found)
