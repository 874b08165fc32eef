"""Poison isolation: limits the requests beside a suspect, which is a request that was lost with a worker before.

A suspect may be the cause of that loss. A request that kills its worker takes down all requests beside it, and all of
them come back with an attempt counted. If they ran together again and again, innocent requests would be given up with
the guilty one. So company shrinks with each attempt, to a quarter each time, until a request runs alone on its last
attempt: if it is given up then, it has killed a worker that ran nothing else. In a worker with few slots, company
shrinks from the number of slots; otherwise innocent requests would share most of their attempts with the guilty one,
and have none left for another fault. Pure.
"""

from __future__ import annotations

from streamfleet.common.records import Claim

SHRINKS_BY = 4


def company(claim: Claim, max_deliveries: int, slots: int | None = None) -> int | None:
    """Most requests that may be in the engine together with this one, itself included; None for no limit.

    Args:
        claim: the request, with the number of workers that it was lost with.
        max_deliveries: most attempts of a request.
        slots: most requests that this worker holds; None if unknown. The first lost worker does not reduce company, the
            second does.

    A passing fault of an engine never makes a request suspect; only a lost worker does.
    """
    if claim.lost == 0:
        return None
    by_tries = int(SHRINKS_BY ** max(0, max_deliveries - claim.lease.attempt))
    by_losses = None if slots is None else max(1, slots // SHRINKS_BY ** (claim.lost - 1))
    return least(by_tries, by_losses)


def least(*limits: int | None) -> int | None:
    """The smallest of several limits; None if there is none."""
    return min((limit for limit in limits if limit is not None), default=None)
