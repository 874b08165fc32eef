"""Interleaved samples, so that other load on the machine meets all of them alike; medians, ratios and series."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeAlias, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Sample: TypeAlias = Mapping[str, float]
"""Values of one measurement, by the name of the figure."""
MOST_POINTS = 500
"""More points than this no plot needs."""
T = TypeVar("T")


def interleave(
    measures: Mapping[str, Callable[[], Sample]], rounds: int, *, seed: int = 1, title: str = "rounds"
) -> dict[str, list[Sample]]:
    """Run every measure once a round, in another order each round, with a progress bar.

    Returns:
        For each measure its samples, one for each round, in the order of rounds.
    """
    chance = random.Random(seed)
    samples: dict[str, list[Sample]] = {name: [] for name in measures}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=False) as progress:
        task = progress.add_task(title, total=rounds * len(measures))
        for number in range(rounds):
            for name in chance.sample(list(measures), len(measures)):
                progress.update(task, description=f"{title} {number + 1}/{rounds}: {name}")
                samples[name].append(measures[name]())
                progress.advance(task)
        progress.update(task, description=title)
    return samples


def middle(samples: Sequence[Sample], figure: str) -> float:
    """The median of one figure."""
    return median(sample[figure] for sample in samples)


def ratio(samples: Sequence[Sample], base: Sequence[Sample], figure: str) -> float:
    """The median of the ratios to another measure, round by round."""
    return median(mine[figure] / other[figure] for mine, other in zip(samples, base, strict=True))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a share (0 to 1) of the values does not exceed; nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def thinned(values: Sequence[T], most: int = MOST_POINTS) -> list[T]:
    """At most so many of the values, evenly spread, with the first and the last: keeps files small."""
    if len(values) <= most:
        return list(values)
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


def cdf(values: Sequence[float]) -> list[float]:
    """Sorted and thinned values: about n/N of the values do not exceed the n-th of N points."""
    return [round(value, 4) for value in thinned(sorted(values))]
