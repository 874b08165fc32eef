"""The lines of a file that comes in blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator

Line = tuple[int, bytes]


async def numbered(blocks: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[list[Line]]:
    """Lines with their numbers, from 1; those of a block together.

    Args:
        blocks: what comes.
        most_bytes: of a longer line, only so many and one more are given, so that it cannot fill the memory.
    """
    number = 0
    rest = bytearray()
    async for block in blocks:
        *whole, last = block.split(b"\n")
        group: list[Line] = []
        for piece in whole:
            number += 1
            group.append((number, _joined(rest, piece, most_bytes)))
            rest.clear()
        rest += last[: max(0, most_bytes + 1 - len(rest))]
        if group:
            yield group
    if rest:
        yield [(number + 1, bytes(rest))]


def _joined(rest: bytearray, piece: bytes, most_bytes: int) -> bytes:
    return (bytes(rest) + piece if rest else piece)[: most_bytes + 1]


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
