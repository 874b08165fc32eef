"""How many requests may run beside one that was lost with a worker before: one of those may be what the worker died of.

A request that kills its worker takes along whatever runs beside it, and all of them come back with an attempt counted.
Were they run together again and again, the innocent would be given up with the guilty one. So company shrinks as tries
run out, to a quarter each time, until on its last try a request runs alone: what is given up then has killed a worker
that had nothing else to do. In a worker with few slots it shrinks from what they hold, or the innocent would share most
of their tries with the guilty one, and have none to spare for another fault. Pure.
"""

from __future__ import annotations

from streamfleet.common.records import Claim

SHRINKS_BY = 4


def company(claim: Claim, max_deliveries: int, slots: int | None = None) -> int | None:
    """Most requests that may be in the engine while this one is, itself included; None for no limit.

    Args:
        claim: the request, and how many workers it was lost with.
        max_deliveries: tries of a request.
        slots: requests that this worker holds at most; None when that is not known. Losing one worker is no reason to
            run fewer beside each other, losing the second one is.

    A passing fault of an engine, however often it was met, makes nothing suspect: only workers that were lost do.
    """
    if claim.lost == 0:
        return None
    by_tries = int(SHRINKS_BY ** max(0, max_deliveries - claim.lease.attempt))
    by_losses = None if slots is None else max(1, slots // SHRINKS_BY ** (claim.lost - 1))
    return least(by_tries, by_losses)


def least(*limits: int | None) -> int | None:
    """The smallest of several limits; None for no limit."""
    return min((limit for limit in limits if limit is not None), default=None)
