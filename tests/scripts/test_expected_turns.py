"""Times that know tenants' turns, and what still comes into the same lane."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.broker.types import Expected
from streamfleet.common.protocol import Lane
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without
from tests.scripts.test_expected import FAR, Fleet, at_work

BEHIND = FAR + 10**6


async def told(
    fleet: Fleet, tenant: str = "", deadline: int = BEHIND, behind: int = 0, lane: Lane = Lane.HIGH
) -> Expected:
    """Place and time of a request of a tenant that would come now."""
    (found,) = await fleet.here.broker.expected([(lane, None, deadline, None, tenant, behind)])
    return found


async def waiting(fleet: Fleet, number: int, tenant: str | None = None) -> Expected:
    """Place and time of the request of lane `high` that was added with this number."""
    (found,) = await fleet.here.broker.expected([(Lane.HIGH, f"1000-{number}", None, None, tenant)])
    return found


async def pace(queue: Queue) -> dict[str, Any]:
    """That of the lane `high`."""
    return dict(json.loads(await queue.command("GET", queue.keys.pace))["lanes"][Lane.HIGH.number - 1])


async def test_a_small_tenant_beside_a_flood_is_told_a_short_time_and_the_flood_a_long_one(queue: Queue) -> None:
    fleet = await at_work(queue, "big")
    small, big = await told(fleet, "small"), await told(fleet, "big")
    assert (small.place, small.wait_ms) == (0, 200)
    assert (big.place, big.wait_ms) == (50, 51 * 200)


async def test_requests_that_wait_are_told_by_their_tenants_turns(queue: Queue) -> None:
    fleet = await at_work(queue, "big")
    await fleet.add("high", 1, tenant="small")
    await fleet.keep_house()
    for tenant in ("small", None):  # who may read entries need not be told
        assert await waiting(fleet, 101, tenant) == Expected(0, 200, (await told(fleet)).run_ms, rank_ms=FAR + 101)
    assert (await waiting(fleet, 100, "big")).place == 50
    assert (await waiting(fleet, 51, "big")).place == pytest.approx(1, abs=1)


@fails_without("turns: who comes back starts below the others, once an hour")
async def test_who_comes_back_goes_first_once_an_hour(queue: Queue) -> None:
    fleet = Fleet(queue)
    fleet.second = 4_000
    await fleet.add("high", 100, tenant="big")
    await fleet.work(1, 5)
    for place in (1, 2):  # the first time, a name without history got no credit
        await fleet.add("high", 1, tenant="back")
        await fleet.work(4, 5)
        assert (await told(fleet, "back", behind=1)).place == place


@fails_without("turns: names without history start one behind the other")
async def test_names_without_history_are_told_that_they_go_one_behind_the_other(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100, tenant="big")
    await fleet.work(2, 5)
    for number in range(6):
        await fleet.add("high", 1, tenant=f"new{number}")
    await fleet.keep_house()
    assert (await told(fleet, "another")).place == pytest.approx(12, abs=1)


@fails_without("turns: those of others come between")
async def test_tenants_with_much_alternate_by_their_weights(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.tenants, "heavy", "3")
    fleet = Fleet(queue)
    await fleet.add("high", 90, tenant="light")
    await fleet.add("high", 90, tenant="heavy")
    await fleet.work(10, 8)
    # 20 and 60 were taken, so 30 more of `heavy` wait.
    assert (await waiting(fleet, 26)).place == pytest.approx(5 * 4, abs=3)
    assert (await waiting(fleet, 90 + 81)).place == pytest.approx(20 * 4 / 3, abs=3)
    assert (await waiting(fleet, 90)).place == pytest.approx(180 - 80 - 1, abs=1)


@fails_without("turns: a tenant has no more turns than requests", ".each * math.min(left, fits)", ".each * fits")
async def test_a_tenant_has_no_more_turns_than_requests(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 60, tenant="big")
    await fleet.add("high", 20, tenant="other")
    await fleet.work(5, 4)
    assert (await told(fleet, "big")).place == 50 + 10
    assert (await waiting(fleet, 40)).place == 29 + 10


async def test_what_was_ready_before_tenants_came_has_turns_too(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100)
    await fleet.keep_house()
    await fleet.add("high", 100, tenant="a")
    await fleet.work(10, 5)
    assert (await told(fleet, "a")).place == pytest.approx(150, abs=2)
    assert (await told(fleet, "")).place == pytest.approx(150, abs=2)


@fails_without("turns: of those that may run at once, one has to end first")
async def test_a_tenant_with_as_many_running_as_it_may_waits_for_them(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.tenants, "few", "1 1")
    fleet = await at_work(queue, "big")
    await fleet.add("high", 9, tenant="few")
    await fleet.here.pull("w1", 1)
    await fleet.keep_house()
    expected = await told(fleet, "few")
    assert expected.wait_ms == pytest.approx((expected.run_ms or 0) * 9, abs=5)


@fails_without("turns: what stands for several counts as several", "turns.each * math.min", "math.min")
async def test_of_many_tenants_some_stand_for_all(queue: Queue) -> None:
    fleet = Fleet(queue)
    for number in range(300):
        await fleet.add("high", 2, tenant=f"t{number}")
    await fleet.work(5, 10)
    turns = await pace(queue)
    assert (len(turns["rows"]), turns["each"]) == (64, pytest.approx(300 / 64))
    assert (await told(fleet, "new", behind=2)).place == pytest.approx(300 * 2, rel=0.15)


async def test_the_pace_names_no_tenant_and_says_nothing_without_any(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 10)
    await fleet.work(2, 1)
    assert "rows" not in await pace(queue)
    await fleet.add("high", 10, tenant="secret")
    await fleet.work(2, 1)
    assert b"secret" not in await queue.command("GET", queue.keys.pace)
    assert len((await pace(queue))["rows"]) == 2


@fails_without(
    "turns: what a tenant was charged since the look is not charged again",
    "math.max(row[2], math.min(reached, last))",
    "row[2]",
)
async def test_turns_that_were_taken_since_the_look_are_over(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100, tenant="a")
    await fleet.add("high", 100, tenant="b")
    await fleet.work(10, 5)
    before = (await waiting(fleet, 60)).place or 0
    await fleet.here.pull("w1", 20)
    assert (await waiting(fleet, 60)).place == pytest.approx(before - 20, abs=1)


@fails_without("turns: those of one call count for each other", "(behind or 0) + (stay[same] or 0)", "behind or 0")
async def test_those_of_one_call_wait_behind_each_other_by_turns(queue: Queue) -> None:
    fleet = await at_work(queue, "big")
    row = (Lane.HIGH, None, FAR, None, "small", 0)
    found = await fleet.here.broker.expected([row] * 20)
    places = [each.place or 0 for each in found]
    assert places[0] == 0
    assert places[19] == pytest.approx(2 * 19, abs=2)
    assert (await told(fleet, "small", behind=19)).place == places[19]


async def test_one_that_would_be_late_does_not_count_for_those_behind_it(queue: Queue) -> None:
    fleet = await at_work(queue)
    late: Any = (Lane.HIGH, None, NOW + 10_000 + 5, None, "", 0)
    found = await fleet.here.broker.expected([late, late, (Lane.HIGH, None, BEHIND, None, "", 0)])
    assert [each.place for each in found] == [0, 0, 50]


@fails_without("turns: a pull refuses by them", "lane, deadline, tenant, #rows,", "lane, deadline, nil, #rows,")
async def test_turns_decide_who_is_refused(queue: Queue) -> None:
    fleet = await at_work(queue, "big")
    soon = NOW + 10_000 + 3_000 + ((await told(fleet)).run_ms or 0)
    await fleet.add("high", 20, tenant="small", deadline=soon, if_late="refuse")
    # 15 are taken within 3 s, by turns.
    assert (await fleet.here.pull("w1", 0)).dropped == pytest.approx(20 - 8, abs=1)


@fails_without("pace: who comes with an earlier deadline goes first")
async def test_who_comes_with_an_earlier_deadline_goes_first(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 200)
    for _ in range(30):
        soon = NOW + 1_000 * fleet.second
        await fleet.work(1, 5, {})
        await fleet.add("high", 2, deadline=soon + 100_000)
    await fleet.work(1, 5)
    expected = await fleet.expected(deadline=FAR + 10**6)
    if not await counts_arrivals(fleet):
        assert expected.wait_ms == ((expected.place or 0) + 1) * 200
        return
    # Five are taken a second, and two come meanwhile, which go before those with later deadlines only.
    assert expected.wait_ms == pytest.approx(((expected.place or 0) + 1) / 3 * 1_000, rel=0.15)
    near = await fleet.expected(deadline=NOW + 1_000 * fleet.second + 50_000)
    assert near.wait_ms == ((near.place or 0) + 1) * 200


@fails_without("pace: other tenants that send meanwhile have their turns", "= always * ms, always", "= 0, 0")
@pytest.mark.every_release
async def test_tenants_that_send_meanwhile_have_their_turns(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 300, tenant="big")
    for number in range(30):
        await fleet.add("high", 1, tenant="steady")
        await fleet.add("high", 1, tenant=f"small{number % 3}")
        await fleet.work(1, 5)
    if not await counts_arrivals(fleet):
        return
    big, small = await told(fleet, "big"), await told(fleet, "small1")
    assert big.wait_ms == pytest.approx(((big.place or 0) + 1) / 3 * 1_000, rel=0.15)
    assert small.place == 0
    assert small.wait_ms == pytest.approx(250, abs=100)


async def counts_arrivals(fleet: Fleet) -> bool:
    (group,) = await fleet.queue.command("XINFO", "GROUPS", fleet.queue.keys.lane("high"))
    return b"entries-read" in group


@fails_without("pace: a burst does not go on", "each = min(came, lately, ", "each = max(came, lately, ", service="pace")
async def test_a_burst_is_not_expected_to_go_on(queue: Queue) -> None:
    fleet = await at_work(queue, "big")
    fleet.second += 1
    for i in range(60):
        await queue.add("high", f"{NOW + 1_000 * fleet.second - 5}-{i}", tenant="burst", deadline=FAR)
    await fleet.keep_house()
    assert max((await pace(queue))["who"].values(), default=0) < 20


@fails_without("pace: the number of senders is bounded", "[MOST_SENDERS:]", "[10**9 :]", service="pace")
async def test_senders_are_bounded_and_fade(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100, tenant="big")
    for number in range(50):
        await fleet.add("high", 1, tenant=f"t{number}")
        await fleet.work(1, 2)
    if await counts_arrivals(fleet):
        assert len((await pace(queue))["who"]) == 32
    await fleet.work(400, 0)
    senders = await pace(queue)
    assert (senders["who"], senders["spans"]) == ({}, {})
