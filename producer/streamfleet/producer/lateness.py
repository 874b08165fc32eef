"""Judges requests that ask for it before they are enqueued: will they likely be late?

A request that will is refused, or goes into the least urgent lane, as it asks. The time is what the pace of the queue
lets expect; where nobody can tell, it is enqueued as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.broker.types import Expected
from streamfleet.common.errors import LikelyLate
from streamfleet.common.protocol import LANES, Lane
from streamfleet.producer.ask import DOWNGRADE, Draft

Row: TypeAlias = tuple[Lane, None, int | None, int | None, str, int]
MOST_AT_ONCE = 50
"""Requests that one call of the script judges: with many tenants, each takes about 0.1 ms of the server."""


async def judge(broker: ProducerBroker, drafts: Sequence[Draft]) -> list[Draft]:
    """Returns the drafts, those that will likely be late in another lane.

    Raises:
        LikelyLate: one of them is to be refused.
    """
    if not any(each.if_late for each in drafts):
        return [*drafts]
    judged: list[Draft] = []
    before = Counter[tuple[Lane, str]]()
    for first in range(0, len(drafts), MOST_AT_ONCE):
        judged += await _judge_some(broker, drafts[first : first + MOST_AT_ONCE], before)
    return judged


async def judge_one(broker: ProducerBroker, draft: Draft) -> tuple[Draft, Expected]:
    """Returns one draft as `judge` does, and what is expected of it, in its own lane, whether it asks or not.

    Raises:
        LikelyLate: it is to be refused.
    """
    (expected,) = await broker.expected([_row(draft, 0)])
    return (await _judged(broker, draft, expected) if draft.if_late else draft), expected


async def _judge_some(
    broker: ProducerBroker, drafts: Sequence[Draft], before: Counter[tuple[Lane, str]]
) -> list[Draft]:
    """Judges drafts. `before`: number of each lane and tenant that go first; these are added."""
    rows: list[Row] = []
    for each in drafts:
        if each.if_late:
            rows.append(_row(each, before[each.lane, _tenant(each)]))
        else:
            before[each.lane, _tenant(each)] += 1
    found = iter(await broker.expected(rows))
    judged = [await _judged(broker, each, next(found)) if each.if_late else each for each in drafts]
    asked = Counter((each.lane, _tenant(each)) for draft, each in zip(drafts, judged, strict=True) if draft.if_late)
    before.update(asked)
    return judged


async def _judged(broker: ProducerBroker, draft: Draft, likely: Expected) -> Draft:
    if likely.left_ms is None or likely.left_ms >= 0:
        return draft.judged(draft.lane)
    if draft.if_late == DOWNGRADE:
        return draft.judged(LANES[-1])
    if await broker.record(draft.id) is not None:  # it is in the queue already
        return draft.judged(draft.lane)
    raise LikelyLate(draft.lane, (likely.wait_ms or 0) / 1000, (likely.run_ms or 0) / 1000, -likely.left_ms / 1000)


def _row(draft: Draft, more: int) -> Row:
    """A draft as `expected` asks for it. `more`: number of its lane and tenant that go first in the same call."""
    return draft.lane, None, _number(draft, "deadline"), _number(draft, "ttl"), _tenant(draft), more


def _tenant(draft: Draft) -> str:
    return draft.fields.get("tenant", b"").decode()


def _number(draft: Draft, name: str) -> int | None:
    value = draft.fields.get(name)
    return None if value is None else int(value)
