"""Series of points for reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

MOST_POINTS = 500
"""More points than this no plot needs."""
T = TypeVar("T")


def thinned(values: Sequence[T], most: int = MOST_POINTS) -> list[T]:
    """At most so many of the values, evenly spread, with the first and the last: keeps files small."""
    if len(values) <= most:
        return list(values)
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


def cdf(values: Sequence[float]) -> list[float]:
    """Sorted and thinned values: about n/N of the values do not exceed the n-th of N points."""
    return [round(value, 4) for value in thinned(sorted(values))]
