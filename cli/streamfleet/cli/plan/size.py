"""The smallest fleet that is late seldom enough. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streamfleet.cli.plan.arrivals import Arrival
from streamfleet.cli.plan.figures import Figures, figures, mean
from streamfleet.cli.plan.simulate import Fleet, Simulation
from streamfleet.common.errors import StreamfleetError

Evaluate = Callable[[int], Figures]
"""What so many workers come to."""


class NoFleet(StreamfleetError):
    """No number of workers is enough; says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Sized:
    """What was found.

    Attributes:
        workers: the smallest number that is late seldom enough.
        looked_at: its figures and those of its neighbours, by number of workers.
    """

    workers: int
    looked_at: tuple[Figures, ...]


def evaluator(
    fleet: Fleet, runs: Sequence[Sequence[Arrival]], shown: Callable[[int], None] = lambda _: None
) -> Evaluate:
    """Simulates a fleet of the size asked for on each of the runs; once for each size.

    Args:
        fleet: all of it but the number of workers.
        runs: what arrives in each.
        shown: told what is simulated now.
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
    """The smallest number of workers of which at most a share `late` is late.

    Args:
        evaluate: a fleet's figures. More workers are taken to be late no more often.
        late: share, 0 to 1.
        first: where to begin.
        most: where to give up.

    Raises:
        NoFleet: even `most` are too few.
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
    """The same, with the figures of one fewer, of one more, and of what there is to be with spare ones."""
    enough = smallest(evaluate, late, first, most)
    wanted = sorted({max(1, enough - 1), enough, enough + 1, enough + spare})
    return Sized(enough, tuple(evaluate(workers) for workers in wanted))


def busy_workers(fleet: Fleet, runs: Sequence[Sequence[Arrival]]) -> int:
    """How many workers have the speed for what arrives, were all of them full all the time; at least 1.

    A few more are wanted as soon as anybody minds waiting, so it is where to begin.
    """
    slots = fleet.profile.engine.slots
    together = min(slots, fleet.batch_size or slots)

    def share(arrivals: Sequence[Arrival]) -> float:
        work_s = sum(fleet.profile.work_s(item.prompt_tokens, item.output_tokens, together) for item in arrivals)
        span_s = arrivals[-1].at_s - arrivals[0].at_s
        return work_s / span_s if span_s > 0 else 1.0

    return max(1, math.ceil(mean(share(arrivals) for arrivals in runs)))


def hopeless(fleet: Fleet, runs: Sequence[Sequence[Arrival]]) -> float:
    """Share of requests (0 to 1) that would be late even alone in an engine: no fleet helps them."""
    found = [
        item.deadline_s is not None
        and fleet.profile.request_s(item.prompt_tokens, item.output_tokens) + fleet.profile.pickup_ms / 1000
        > item.deadline_s
        for arrivals in runs
        for item in arrivals
    ]
    return sum(found) / len(found)
