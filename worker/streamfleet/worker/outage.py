"""Telling silent workers from a silent Redis.

While Redis is away nobody can renew, so afterwards every lease looks as if its worker had been silent. Reclaiming then
would start healthy requests over, and count an attempt each time. Pure: times are handed in, in monotonic seconds.
"""

from __future__ import annotations


class OutageGuard:
    """Holds reclaiming back for one lease after this worker itself lost sight of Redis.

    Args:
        lease_s: how long a lease lasts; its owner renews it well within that once Redis is back.
        tick_s: how often Redis is heard of when all is well.

    Attributes:
        gap_s: a silence of more than this is an outage.
    """

    def __init__(self, lease_s: float, tick_s: float) -> None:
        self._lease_s = lease_s
        self.gap_s = max(lease_s / 2, 2 * tick_s)
        self._heard_at: float | None = None
        self._hold_until = 0.0
        self._unbroken_s = self._asked_at = 0.0

    def heard(self, now: float) -> None:
        """Redis has just answered."""
        if self._heard_at is not None and now - self._heard_at > self.gap_s:
            self.was_away(now)
        self._heard_at = now

    def looks_from(self, now: float) -> None:
        """Redis is looked at from now on, or was already: silence counts from the first such moment."""
        if self._heard_at is None:
            self._heard_at = now

    def was_away(self, now: float) -> None:
        """Redis was found to have been away until now."""
        self._hold_until = now + self._lease_s

    def others_heard(self, unbroken_s: float, asked_at: float) -> None:
        """Up to `asked_at` some worker or other had heard of Redis for so long, without a gap.

        In a large fleet each looks seldom, so that what it sees by itself always looks like an outage.
        """
        self._unbroken_s, self._asked_at = unbroken_s, asked_at

    def may_reclaim(self, now: float) -> bool:
        """Whether an idle lease is its worker's fault."""
        if now >= self._hold_until:
            return True
        return self._unbroken_s >= self._lease_s and now - self._asked_at <= self.gap_s
