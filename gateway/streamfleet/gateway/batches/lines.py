"""The lines of a file that comes in blocks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

Line = tuple[int, bytes]
MOST_TOGETHER = 500
_TEXT = re.compile(rb"\S[^\n]*")
"""A line from its first character that is no blank: the blank ones before it are passed over in C."""


async def numbered(blocks: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[list[Line]]:
    """Lines with their numbers, from 1, but for blank ones; some of them together.

    Args:
        blocks: what comes.
        most_bytes: of a longer line, only so many and one more are given, so that it cannot fill the memory.
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


class Bits:
    """Which lines are finished, a bit each.

    Args:
        found: of the first byte, the highest bit is line 1.
    """

    def __init__(self, found: bytes) -> None:
        self._found = bytearray(found)

    def __contains__(self, line: int) -> bool:
        at, bit = divmod(line - 1, 8)
        return at < len(self._found) and bool(self._found[at] & 0x80 >> bit)

    def add(self, line: int) -> None:
        """This one is finished as well."""
        at, bit = divmod(line - 1, 8)
        if at >= len(self._found):
            self._found.extend(bytes(at + 1 - len(self._found)))
        self._found[at] |= 0x80 >> bit
