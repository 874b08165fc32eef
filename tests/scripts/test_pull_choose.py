"""pull.lua, second part: strict priority between lanes, with a guaranteed minimum share."""

from __future__ import annotations

from collections import Counter

from streamfleet.common.protocol import LANES
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without

PLENTY = 400


async def fill(queue: Queue, *lanes: str, number: int = PLENTY) -> None:
    for lane in lanes:
        for count in range(number):
            await queue.add(lane, f"1000-{count}")


async def picks(queue: Queue, wanted: int, at_once: int) -> list[str]:
    """Lanes of the next picks; every claim is finished at once, and every lane stays full."""
    lanes: list[str] = []
    while len(lanes) < wanted:
        claims = (await queue.pull("w1", min(at_once, wanted - len(lanes)))).claims
        await queue.complete("w1", *[claim.lease for claim in claims])
        lanes += [claim.lease.lane for claim in claims]
    return lanes


async def credits_of(queue: Queue) -> list[int]:
    """Credits of the lanes; one that was never written is 0."""
    lanes = (await queue.dump()).get("lanes", {})
    return [int(lanes.get(f"credit:{lane}", 0)) for lane in LANES]


async def test_without_shares_the_most_urgent_lane_goes_first(queue: Queue) -> None:
    strict = queue.with_limits(shares=(0, 0, 0, 0))
    await fill(queue, "low", "normal", "high", "critical", number=3)
    assert await picks(strict, 12, 1) == ["critical"] * 3 + ["high"] * 3 + ["normal"] * 3 + ["low"] * 3


@fails_without("choose: the guaranteed share", "return owed or top", "return top")
@fails_without("choose: credit is kept")
async def test_lower_lanes_get_their_share_under_sustained_critical_load(queue: Queue) -> None:
    await fill(queue, "critical", "normal", "low")
    # 100 and 50 per mille: each tenth pick is normal's once it has saved up ten shares, each twentieth low's.
    lanes = await picks(queue, 61, 1)
    assert [at for at, lane in enumerate(lanes) if lane == "normal"] == [10, 20, 30, 40, 50, 60]
    assert [at for at, lane in enumerate(lanes) if lane == "low"] == [21, 41]
    assert Counter(lanes)["critical"] == 53


async def test_shares_hold_when_many_are_picked_at_once(queue: Queue) -> None:
    await fill(queue, "critical", "normal", "low")
    assert Counter(await picks(queue, 200, 50)) == {"critical": 172, "normal": 19, "low": 9}


@fails_without(
    "choose: one lane alone ends all debts",
    "if picked > 0 then credit[lane] = 0 end",
    "credit[lane] = credit[lane] + shares[lane] * picked",
)
async def test_a_lane_saves_up_nothing_while_it_is_empty(queue: Queue) -> None:
    await fill(queue, "critical", number=30)
    await picks(queue, 29, 1)
    assert await credits_of(queue) == [0, 0, 0, 0]
    await fill(queue, "low", number=1)
    assert await picks(queue, 2, 1) == ["critical", "low"]


@fails_without(
    "choose: nothing saved up while empty",
    "waiting[lane] > 0 and math.min(credit[lane] + shares[lane], 2000) or 0",
    "math.min(credit[lane] + shares[lane], 2000)",
)
async def test_a_lane_saves_up_nothing_while_others_wait_without_it(queue: Queue) -> None:
    await fill(queue, "critical", "high", number=15)
    await picks(queue, 15, 1)
    assert await credits_of(queue) == [0, 0, 0, 0]


@fails_without("choose: a debt that is owed is not forgotten", "and credit[only] <= 1000 - shares[only] then", "then")
async def test_a_lane_alone_pays_its_debt_pick_by_pick(queue: Queue) -> None:
    await fill(queue, "low", number=5)
    await queue.command("HSET", queue.keys.lane_states, "credit:low", 1995)
    await picks(queue, 1, 1)
    assert (await credits_of(queue))[3] == 1000
    await picks(queue, 1, 1)
    assert (await credits_of(queue))[3] == 50


@fails_without("choose: the greatest debt first", "(not owed or credit[lane] > credit[owed]) then", "not owed then")
@fails_without(
    "choose: debts are bounded", "math.min(credit[lane] + shares[lane], 2000)", "credit[lane] + shares[lane]"
)
async def test_the_greatest_debt_is_paid_first_and_debts_are_bounded(queue: Queue) -> None:
    await fill(queue, "critical", "normal", "low", number=5)
    await queue.command("HSET", queue.keys.lane_states, "credit:normal", 1990, "credit:low", 1995)
    assert await picks(queue, 3, 1) == ["low", "normal", "low"]
    assert await credits_of(queue) == [0, 0, 1100, 100]


async def test_credit_is_kept_between_calls_and_only_written_when_something_waits(queue: Queue) -> None:
    await queue.pull()
    assert "lanes" not in await queue.dump()
    await fill(queue, "critical", "normal", number=2)
    await queue.pull()
    assert await credits_of(queue) == [0, 0, 100, 0]
    await queue.pull()
    assert (await credits_of(queue))[2] == 200


async def test_an_urgent_deadline_does_not_jump_lanes(queue: Queue) -> None:
    await queue.add("low", "1000-0", deadline=NOW + 1)
    await queue.add("high", "1000-1")
    assert (await queue.claim()).lane == "high"


@fails_without("take: nothing in place of what is not in order yet")
async def test_a_flood_that_is_not_in_order_yet_is_not_passed_by_what_is_less_urgent(queue: Queue) -> None:
    """A pull stages a bounded number of entries: beyond that it must not take low ones in place of high ones."""
    strict = queue.with_limits(shares=(0, 0, 0, 0))
    await fill(queue, "low", "normal", number=100)
    await fill(queue, "high", number=600)
    lanes: list[str] = []
    while len(lanes) < 600:
        claims = (await strict.pull("w1", 400)).claims
        assert claims
        lanes += [claim.lease.lane for claim in claims]
    assert set(lanes[:600]) == {"high"}
