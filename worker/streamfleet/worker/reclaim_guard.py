"""Reclaim guard: tells silent workers from a silent Redis, and from a step of Redis's clock.

While Redis is away nobody can renew, so afterwards every lease looks as if its worker had been silent. The same happens
when Redis's wall clock steps forward, because Redis measures idle times by it. Reclaiming then would restart healthy
requests, and count an attempt each time. Pure: the caller passes all times, in monotonic seconds.
"""

from __future__ import annotations


class ReclaimGuard:
    """Holds reclaiming back until Redis has answered, and its clock has run evenly, for one lease.

    Args:
        lease_s: length of a lease; its worker renews it well within that.
        tick_s: usual interval between two answers of Redis.

    Attributes:
        gap_s: a silence of more than this is an outage.
    """

    def __init__(self, lease_s: float, tick_s: float) -> None:
        self._tick_s = tick_s
        self._set_lease(lease_s)
        self._heard_at: float | None = None
        self._heard_since = 0.0
        self._unbroken_s = self._asked_at = 0.0
        self._sighted: tuple[float, float, float] | None = None
        self._uneven_until = 0.0

    def _set_lease(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self.gap_s = max(lease_s / 2, 2 * self._tick_s)
        self._step_s = lease_s / 8  # with four renewals per lease, a lease is safe from several such steps

    def lease_is(self, lease_s: float, now: float) -> None:
        """Set the length of a lease. A silence that was short for a longer one may be an outage for this one, so a
        shorter lease begins anew for all."""
        if lease_s < self._lease_s:
            self._uneven_until = max(self._uneven_until, now + lease_s)
        if lease_s != self._lease_s:
            self._set_lease(lease_s)

    def heard(self, now: float) -> None:
        """Record an answer of Redis."""
        if self._heard_at is None or now - self._heard_at > self.gap_s:
            self._heard_since = now
        self._heard_at = now

    def looks_from(self, now: float) -> None:
        """Record that Redis is asked from now on; only the first call counts, and silence is measured from it."""
        if self._heard_at is None:
            self.heard(now)

    def others_heard(self, unbroken_s: float, asked_at: float) -> None:
        """Record for how long, up to `asked_at`, the workers together have heard from Redis without a gap.

        In a large fleet each worker asks rarely, so that its own view alone always looks like an outage.
        """
        self._unbroken_s, self._asked_at = unbroken_s, asked_at

    def read_clock(self, redis_ms: int, asked_at: float, answered_at: float) -> float:
        """Record that Redis's clock showed `redis_ms`, epoch ms, at a moment between `asked_at` and `answered_at`.

        Returns:
            Seconds by which it has stepped since the last reading, at least; 0 if it ran evenly.
        """
        least, most = redis_ms / 1000 - answered_at, redis_ms / 1000 - asked_at  # bounds of its lead over our clock
        before = self._sighted
        stepped_s = 0.0 if before is None else max(least - before[1], 0.0) + min(most - before[0], 0.0)
        uneven = abs(stepped_s) > self._step_s
        if uneven:
            self._uneven_until = answered_at + self._lease_s
        # A reading is kept for a lease, so that small steps add up; not for longer, because clocks drift apart.
        if before is None or uneven or answered_at - before[2] > self._lease_s:
            self._sighted = least, most, answered_at
        return stepped_s if uneven else 0.0

    def latest_ms(self, now: float) -> int | None:
        """Latest time that Redis's clock may show now unless it has stepped, epoch ms; None if it was never read."""
        return None if self._sighted is None else int((self._sighted[1] + self._step_s + now) * 1000)

    def may_reclaim(self, now: float) -> bool:
        """True if an idle lease must be its worker's fault."""
        if self._heard_at is None or now < self._uneven_until:
            return False
        others = self._unbroken_s >= self._lease_s and now - self._asked_at <= self.gap_s
        return others or now - self._heard_since >= self._lease_s
