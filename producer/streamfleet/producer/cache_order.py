"""Order of a batch's lines by the beginnings of their prompts, so that a prefix cache still has what lines share. Pure.

Lines are read into a block, as many as may be outstanding, and leave it in the order of their prompts' texts: those
that begin alike are enqueued, and so run, one after the other. Memory holds one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from streamfleet.common import jsontext

MOST_BYTES = 16_777_216
"""A block is full with so many bytes of bodies, however few its lines are."""
_IN_ORDER = ("model", "tools", "instructions", "messages", "prompt", "input")
"""Fields that a prompt is made of, in about the order in which they stand in it."""
T = TypeVar("T")


def beginning(body: Mapping[str, Any]) -> str:
    """Returns a text that sorts requests by the beginnings of their prompts, whatever else their bodies say."""
    return jsontext.compact([body.get(name) for name in _IN_ORDER])


class Block(Generic[T]):
    """The next lines of a batch.

    Args:
        most: number of lines that makes it full.
        body: returns the body of a line.

    Attributes:
        bytes: of all bodies together, about.
    """

    def __init__(self, most: int, body: Callable[[T], Mapping[str, Any]]) -> None:
        self._most, self._body = most, body
        self._lines: list[T] = []
        self.bytes = 0

    def add(self, line: T, size: int) -> bool:
        """Add a line with so many bytes. Returns True if the block is full."""
        self._lines.append(line)
        self.bytes += size
        return len(self._lines) >= self._most or self.bytes >= MOST_BYTES

    def take(self) -> list[T]:
        """Empty it. Returns its lines in order; those of equal prompts in the order in which they came."""
        lines, self._lines, self.bytes = self._lines, [], 0
        return sorted(lines, key=lambda line: beginning(self._body(line)))


def in_cache_order(
    lines: Iterable[T], most: int, body: Callable[[T], Mapping[str, Any]], size: Callable[[T], int]
) -> Iterator[T]:
    """Yields lines in the order of their beginnings within each block."""
    block = Block(most, body)
    for line in lines:
        if block.add(line, size(line)):
            yield from block.take()
    yield from block.take()
