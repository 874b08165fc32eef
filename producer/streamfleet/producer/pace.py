"""How fast something goes, and how long the rest will take. Pure."""

from __future__ import annotations

from collections import deque

SPAN_S = 30.0


class Pace:
    """Speed over the last half minute.

    Args:
        now_s: when it starts, seconds of a clock that only goes forward.
        done: what was done by then.
    """

    def __init__(self, now_s: float, done: int) -> None:
        self._marks: deque[tuple[float, int]] = deque([(now_s, done)])

    def mark(self, now_s: float, done: int) -> None:
        """So much is done now."""
        self._marks.append((now_s, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now_s - SPAN_S:
            self._marks.popleft()

    @property
    def per_second(self) -> float:
        """0 until something was done."""
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def left_s(self, left: int) -> float | None:
        """Seconds that the rest will take; None while that cannot be told."""
        speed = self.per_second
        return left / speed if speed > 0 else None
