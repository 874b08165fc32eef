"""Parts of a long run: `--part 2/4` is the second of four, each with about as much to do as the others."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Part(NamedTuple):
    """One of so many parts, counted from 1."""

    number: int = 1
    of: int = 1


WHOLE = Part()


def part(text: str) -> Part:
    """Reads `i/n` from a command line."""
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not i/n with i from 1 to n, such as 2/4")
    return Part(int(found[1]), int(found[2]))


def share(items: Sequence[T], mine: Part, weigh: Callable[[T], float] = lambda _: 1.0) -> list[T]:
    """Items of one part, in their order; each item goes to the part that weighs least so far."""
    loads, kept = [0.0] * mine.of, []
    for item in items:
        lightest = loads.index(min(loads))
        loads[lightest] += weigh(item)
        if lightest == mine.number - 1:
            kept.append(item)
    return kept
