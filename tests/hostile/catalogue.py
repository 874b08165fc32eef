"""All families of hostile bodies: what means harm, and what a broken program might send, each from a named idea."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from tests.hostile import asking, breaking, matching
from tests.hostile.bodies import FAMILIES, Entry

__all__ = ["FAMILIES", "hostile"]

MODULES = (asking, matching, breaking)
"""Importing them fills `FAMILIES`."""


def hostile(count: int, seed: int, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Entry]]:
    """So many entries, each with its family's name, all families in turn, in an order of the seed's."""
    rng = random.Random(seed)
    chosen = [name for name in FAMILIES if not names or name in names]
    named = list(itertools.islice(itertools.cycle(chosen), count))
    rng.shuffle(named)
    for name in named:
        yield name, FAMILIES[name](rng)
