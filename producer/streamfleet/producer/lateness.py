"""Judges requests that ask for it before they are enqueued: will they likely be late?

A request that will is refused, or goes into the least urgent lane, as it asks. The time is what the pace of the queue
lets expect; where nobody can tell, it is enqueued as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.broker.types import Expected
from streamfleet.common.errors import LikelyLate
from streamfleet.common.protocol import LANES, Lane
from streamfleet.producer.ask import DOWNGRADE, Draft


async def judge(broker: ProducerBroker, drafts: Sequence[Draft]) -> list[Draft]:
    """Returns the drafts, those that will likely be late in another lane.

    Raises:
        LikelyLate: one of them is to be refused.
    """
    if not any(each.if_late for each in drafts):
        return [*drafts]
    rows: list[tuple[Lane, None, int | None, int | None, str, int]] = []
    before = Counter[tuple[Lane, str]]()
    for each in drafts:
        tenant = each.fields.get("tenant", b"").decode()
        if each.if_late:
            numbers = _number(each, "deadline"), _number(each, "ttl")
            rows.append((each.lane, None, *numbers, tenant, before[each.lane, tenant]))
        else:
            before[each.lane, tenant] += 1
    found = iter(await broker.expected(rows))
    return [await _judged(broker, each, next(found)) if each.if_late else each for each in drafts]


async def _judged(broker: ProducerBroker, draft: Draft, likely: Expected) -> Draft:
    if likely.left_ms is None or likely.left_ms >= 0:
        return draft.judged(draft.lane)
    if draft.if_late == DOWNGRADE:
        return draft.judged(LANES[-1])
    if await broker.record(draft.id) is not None:  # it is in the queue already
        return draft.judged(draft.lane)
    raise LikelyLate(draft.lane, (likely.wait_ms or 0) / 1000, (likely.run_ms or 0) / 1000, -likely.left_ms / 1000)


def _number(draft: Draft, name: str) -> int | None:
    value = draft.fields.get(name)
    return None if value is None else int(value)
