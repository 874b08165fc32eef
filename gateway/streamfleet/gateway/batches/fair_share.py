"""Order in which batches get the slots of a gateway, and choice of the batch that gives one up. Pure.

Slots are shared evenly between tenants, then between queues. A batch with unchecked lines counts for the queue that has
most slots, because its models are unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from streamfleet.gateway.broker.batches import Contender

UNSERVED_S, STALLED_S = 2.0, 30.0


def slots_used(one: Contender, running: Sequence[Contender]) -> tuple[int, int]:
    """Returns the number of slots of the batch's tenant, and of its queues."""
    queues = Counter(each.queues for each in running)
    most = queues[one.queues] if one.queues else max(queues.values(), default=0)
    return sum(each.tenant == one.tenant for each in running), most


def choose_next(waiting: Sequence[Contender], running: Sequence[Contender]) -> Contender | None:
    """Returns the batch for the next slot: of the tenant with fewest, then the queues with fewest, then the first."""
    return min(waiting, key=lambda each: slots_used(each, running), default=None)


def choose_victim(running: Sequence[Contender], waiting: Contender) -> Contender | None:
    """Returns the batch that gives up its slot for a waiting one; None if that would not make the shares more even.

    Args:
        running: batches that have a slot, oldest first. The newest one loses least.
        waiting: the next batch in turn.
    """
    tenants, queues = slots_used(waiting, running)

    def unfair(each: Contender) -> bool:
        theirs = slots_used(each, running)
        level = each.tenant == waiting.tenant or tenants + 1 == theirs[0]
        return tenants + 1 < theirs[0] or (level and queues + 1 < theirs[1])

    return max(filter(unfair, reversed(running)), key=lambda each: slots_used(each, running), default=None)


def is_stalled(for_s: float, *, served: bool) -> bool:
    """True if a batch that waits for results should give up its slot.

    Args:
        for_s: seconds since its last progress.
        served: True if its queues have a worker.
    """
    return for_s >= (STALLED_S if served else UNSERVED_S)
