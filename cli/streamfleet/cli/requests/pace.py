"""Speed of a process, and estimated time for the rest. Pure."""

from __future__ import annotations

from collections import deque

SPAN_S = 30.0


class Pace:
    """Speed over the last half minute.

    Args:
        now_s: start, seconds of a monotonic clock.
        done: units done at the start.
    """

    def __init__(self, now_s: float, done: int) -> None:
        self._marks: deque[tuple[float, int]] = deque([(now_s, done)])

    def mark(self, now_s: float, done: int) -> None:
        """Record the units done now."""
        self._marks.append((now_s, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now_s - SPAN_S:
            self._marks.popleft()

    @property
    def per_second(self) -> float:
        """Units per second; 0 until it is known."""
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def left_s(self, left: int) -> float | None:
        """Estimated seconds for the rest; None while unknown."""
        speed = self.per_second
        return left / speed if speed > 0 else None
