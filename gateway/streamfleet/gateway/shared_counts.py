"""Counts that all processes of one gateway share, so that its limits hold for all of them together.

Each process has a row in shared memory, and writes nowhere else: nothing needs a lock, and the parent clears the row of
a process that has ended. Two processes that look at the same moment may both find room, so a limit can be exceeded by
what they let in at that moment. Tenants share some columns by a hash of their names: two tenants in one column count as
one in the eyes of other processes, which is seldom, because few tenants hold much at the same time.
"""

from __future__ import annotations

import mmap
import zlib
from enum import IntEnum

TENANTS = 1_024
_CELL_BYTES = 8


class Count(IntEnum):
    """What a process counts in its row; the last three also by tenant."""

    HEALTH_PORT = 0
    """Port of its own probes and metrics; 0 while it does not serve."""
    CONNECTIONS = 1
    BODIES = 2
    ANSWERS = 3
    UPLOADS = 4


_WIDTH = len(Count) + 3 * TENANTS


class SharedCounts:
    """The counts of all processes, for one of them.

    Args:
        memory: shared with the others; None for a gateway of one process.
        processes: how many there are.
        place: which of them this is, from 0.
    """

    def __init__(self, memory: mmap.mmap | None = None, processes: int = 1, place: int = 0) -> None:
        self._cells = memoryview(memory or bytearray(size_bytes(processes))).cast("q")
        self.processes, self.place = processes, place
        self._rows = range(0, processes * _WIDTH, _WIDTH)
        self._own = self._rows[place]
        self._others = [row for row in self._rows if row != self._own]

    def add(self, what: Count, change: int, tenant: str | None = None) -> None:
        """Add to a count of this process; negative for what it lets go."""
        self._cells[self._own + what] += change
        if tenant is not None:
            self._cells[self._own + _column(what, tenant)] += change

    def others(self, what: Count, tenant: str | None = None) -> int:
        """What all other processes count together; with a tenant, of that tenant."""
        column = what if tenant is None else _column(what, tenant)
        return sum(self._cells[row + column] for row in self._others)

    def of_each(self, what: Count) -> list[int]:
        """What each process counts, in their order."""
        return [self._cells[row + what] for row in self._rows]

    def part(self, together: int) -> int:
        """This process's part of what all of them may do at once."""
        each, more = divmod(together, self.processes)
        return each + (self.place < more)

    def clear(self, place: int) -> None:
        """Forget all counts of a process that has ended."""
        row = self._rows[place]
        self._cells[row : row + _WIDTH] = memoryview(bytes(_WIDTH * _CELL_BYTES)).cast("q")


def _column(what: Count, tenant: str) -> int:
    return len(Count) + (what - Count.BODIES) * TENANTS + zlib.crc32(tenant.encode()) % TENANTS


def size_bytes(processes: int) -> int:
    """Bytes of memory that so many processes share."""
    return processes * _WIDTH * _CELL_BYTES
