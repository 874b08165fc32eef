"""Splits a file that arrives in blocks into numbered lines; and a set of line numbers as bits.

Blocks of any size go in, groups of lines come out; a block and one line are held in memory.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

Line = tuple[int, bytes]
MOST_TOGETHER = 500
_TEXT = re.compile(rb"\S[^\n]*")
"""A line from its first character that is not blank; the regular expression skips blank lines faster than Python."""


async def number_lines(blocks: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[list[Line]]:
    """Yields groups of lines with their numbers, from 1, without blank lines.

    Args:
        blocks: the content.
        most_bytes: longest line that is given whole; of a longer one only the first `most_bytes + 1` bytes are given.
    """
    ended = 0  # lines before `at`
    rest = bytearray()
    async for block in blocks:
        first = block.find(b"\n")
        rest += block[: len(block) if first < 0 else first][: max(0, most_bytes + 1 - len(rest))]
        if first < 0:
            continue
        group: list[Line] = []
        ended += 1
        if rest and not rest.isspace():
            group.append((ended, bytes(rest)))
        at, end = first + 1, block.rfind(b"\n") + 1
        for match in _TEXT.finditer(block, at, end):
            ended += block.count(b"\n", at, match.start())
            at = match.start()
            begin = block.rfind(b"\n", 0, at) + 1
            group.append((ended + 1, block[begin : min(match.end(), begin + most_bytes + 1)]))
            if len(group) == MOST_TOGETHER:
                yield group
                group = []
        ended += block.count(b"\n", at, end)
        rest[:] = block[end:][: most_bytes + 1]
        if group:
            yield group
    if rest and not rest.isspace():
        yield [(ended + 1, bytes(rest))]


class LineSet:
    """A set of finished lines, one bit each.

    Args:
        found: bits as Redis stores them: the highest bit of the first byte is line 1.
    """

    def __init__(self, found: bytes) -> None:
        self._found = bytearray(found)

    def __contains__(self, line: int) -> bool:
        at, bit = divmod(line - 1, 8)
        return at < len(self._found) and bool(self._found[at] & 0x80 >> bit)

    def add(self, line: int) -> None:
        """Add a line."""
        at, bit = divmod(line - 1, 8)
        if at >= len(self._found):
            self._found.extend(bytes(at + 1 - len(self._found)))
        self._found[at] |= 0x80 >> bit
