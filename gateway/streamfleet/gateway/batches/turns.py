"""The order in which batches get the slots of a gateway, and who gives one up for another. Pure.

Slots are shared evenly between tenants, and where that leaves a choice, between queues. A batch whose lines were not
checked yet counts for the queue that has most, as nobody knows its models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from streamfleet.common.broker.gateway_batches import Contender

UNSERVED_S, STALLED_S = 2.0, 30.0


def crowd(one: Contender, running: Sequence[Contender]) -> tuple[int, int]:
    """Slots that the tenant of a batch has, and slots that its queues have."""
    queues = Counter(each.queues for each in running)
    most = queues[one.queues] if one.queues else max(queues.values(), default=0)
    return sum(each.tenant == one.tenant for each in running), most


def next_in_turn(waiting: Sequence[Contender], running: Sequence[Contender]) -> Contender | None:
    """The batch that gets the next slot: of the tenant with fewest, then of the queues with fewest, then the first."""
    return min(waiting, key=lambda each: crowd(each, running), default=None)


def gives_way(running: Sequence[Contender], waiting: Contender) -> Contender | None:
    """The batch that gives up its slot for one that waits; None where that would make the shares no more even.

    Args:
        running: batches that have a slot, in the order in which they got it. The last one has the least to lose.
        waiting: the batch that is next in turn.
    """
    tenants, queues = crowd(waiting, running)

    def unfair(each: Contender) -> bool:
        theirs = crowd(each, running)
        level = each.tenant == waiting.tenant or tenants + 1 == theirs[0]
        return tenants + 1 < theirs[0] or (level and queues + 1 < theirs[1])

    return max(filter(unfair, reversed(running)), key=lambda each: crowd(each, running), default=None)


def waits_too_long(for_s: float, *, served: bool) -> bool:
    """True if a batch whose requests wait should not keep its slot from others.

    Args:
        for_s: since it last got further, in seconds.
        served: its queues have a worker.
    """
    return for_s >= (STALLED_S if served else UNSERVED_S)
