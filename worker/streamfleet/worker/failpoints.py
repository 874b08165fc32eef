"""Named points on a request's way at which fault tests may kill, stop or stall this process.

In production nothing is ever installed here, no setting can do so, and a point costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """Points at which a fault can be injected, in the order in which a request meets them."""

    BEFORE_PULL = "before_pull"
    AFTER_PULL = "after_pull"  # claimed in Redis, unknown to every other loop
    BEFORE_ENGINE = "before_engine"
    RESULT_COMPUTED = "result_computed"  # the engine has answered, nobody else knows
    BEFORE_COMPLETE = "before_complete"
    AFTER_COMPLETE = "after_complete"  # written in Redis, still held here
    BEFORE_RENEW = "before_renew"  # on the lease thread
    AFTER_RENEW = "after_renew"  # between two renewals
    BEFORE_RECLAIM = "before_reclaim"
    AFTER_RECLAIM = "after_reclaim"
    DRAINING = "draining"
    BEFORE_RELEASE = "before_release"
    BEFORE_CHECK_OUT = "before_check_out"


_strike: Callable[[Point], None] | None = None


def install(strike: Callable[[Point], None] | None) -> None:
    """Call `strike` at every point from now on, on the thread that reaches it; None to call nothing."""
    global _strike  # noqa: PLW0603 - one process, one hook: a parameter through every loop would cost more
    _strike = strike


def hit(point: Point) -> None:
    """Report that this point has been reached."""
    if _strike is not None:
        _strike(point)
