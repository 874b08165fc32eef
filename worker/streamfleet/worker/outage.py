"""Telling silent workers from a silent Redis, and from a clock of Redis's that was set.

While Redis is away nobody can renew, so afterwards every lease looks as if its worker had been silent. The same happens
when Redis's wall clock steps forward, because Redis measures idle times by it. Reclaiming then would start healthy
requests over, and count an attempt each time. Pure: times are handed in, in monotonic seconds.
"""

from __future__ import annotations


class OutageGuard:
    """Holds reclaiming back until Redis has answered, and its clock has run evenly, for one lease.

    Args:
        lease_s: how long a lease lasts; its owner renews it well within that.
        tick_s: how often Redis is heard of when all is well.

    Attributes:
        gap_s: a silence of more than this is an outage.
    """

    def __init__(self, lease_s: float, tick_s: float) -> None:
        self._lease_s = lease_s
        self.gap_s = max(lease_s / 2, 2 * tick_s)
        self._step_s = lease_s / 8  # renewed four times a lease, a lease is safe from several such steps
        self._heard_at: float | None = None
        self._heard_since = 0.0
        self._unbroken_s = self._asked_at = 0.0
        self._sighted: tuple[float, float, float] | None = None
        self._uneven_until = 0.0

    def heard(self, now: float) -> None:
        """Redis has just answered."""
        if self._heard_at is None or now - self._heard_at > self.gap_s:
            self._heard_since = now
        self._heard_at = now

    def looks_from(self, now: float) -> None:
        """Redis is looked at from now on, or was already: silence counts from the first such moment."""
        if self._heard_at is None:
            self.heard(now)

    def others_heard(self, unbroken_s: float, asked_at: float) -> None:
        """Up to `asked_at` some worker or other had heard of Redis for so long, without a gap.

        In a large fleet each looks seldom, so that what it sees by itself always looks like an outage.
        """
        self._unbroken_s, self._asked_at = unbroken_s, asked_at

    def read_clock(self, redis_ms: int, asked_at: float, answered_at: float) -> float:
        """Redis's clock showed `redis_ms`, epoch ms, at some moment between these two.

        Returns:
            By how many seconds it has stepped since it was read before, at least; 0 where it ran evenly.
        """
        least, most = redis_ms / 1000 - answered_at, redis_ms / 1000 - asked_at  # how far it is ahead of ours
        before = self._sighted
        stepped_s = 0.0 if before is None else max(least - before[1], 0.0) + min(most - before[0], 0.0)
        uneven = abs(stepped_s) > self._step_s
        if uneven:
            self._uneven_until = answered_at + self._lease_s
        # Kept for a lease, so that small steps add up; not for longer, because clocks drift apart.
        if before is None or uneven or answered_at - before[2] > self._lease_s:
            self._sighted = least, most, answered_at
        return stepped_s if uneven else 0.0

    def latest_ms(self, now: float) -> int | None:
        """Latest time that Redis's clock may show now unless it has stepped, epoch ms; None if it was never read."""
        return None if self._sighted is None else int((self._sighted[1] + self._step_s + now) * 1000)

    def may_reclaim(self, now: float) -> bool:
        """Whether an idle lease is its worker's fault."""
        if self._heard_at is None or now < self._uneven_until:
            return False
        others = self._unbroken_s >= self._lease_s and now - self._asked_at <= self.gap_s
        return others or now - self._heard_since >= self._lease_s
