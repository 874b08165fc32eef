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
    asking = [each for each in drafts if each.if_late]
    return await _judged(broker, drafts, asking, await _expected(broker, asking)) if asking else [*drafts]


async def judge_one(broker: ProducerBroker, draft: Draft) -> tuple[Draft, Expected]:
    """Returns one draft as `judge` does, and what is expected of it, in its own lane, whether it asks or not.

    Raises:
        LikelyLate: it is to be refused.
    """
    expected = await _expected(broker, [draft])
    if draft.if_late:
        (draft,) = await _judged(broker, [draft], [draft], expected)
    return draft, expected[0]


async def _expected(broker: ProducerBroker, drafts: Sequence[Draft]) -> list[Expected]:
    return await broker.expected(
        [(each.lane, None, _number(each, "deadline"), _number(each, "ttl")) for each in drafts]
    )


async def _judged(
    broker: ProducerBroker, drafts: Sequence[Draft], asking: Sequence[Draft], expected: Sequence[Expected]
) -> list[Draft]:
    found = dict(zip(map(id, asking), expected, strict=True))
    judged: list[Draft] = []
    before = Counter[Lane]()
    for each in drafts:
        lane = each.lane
        if (likely := found.get(id(each))) is not None and likely.left_ms is not None:
            # Those of the same call go first.
            wait_ms = (likely.wait_ms or 0) * (1 + before[lane] / ((likely.place or 0) + 1))
            late_ms = wait_ms - (likely.wait_ms or 0) - likely.left_ms
            if late_ms > 0 and each.if_late == DOWNGRADE:
                lane = LANES[-1]
            elif late_ms > 0 and await broker.record(each.id) is None:  # else it is in the queue already
                raise LikelyLate(lane, wait_ms / 1000, (likely.run_ms or 0) / 1000, late_ms / 1000)
        before[lane] += 1
        judged.append(each.judged(lane) if each.if_late else each)
    return judged


def _number(draft: Draft, name: str) -> int | None:
    value = draft.fields.get(name)
    return None if value is None else int(value)
