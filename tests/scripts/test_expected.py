"""The pace of a queue, the times that follow from it, and what is refused for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.broker.types import Expected
from streamfleet.common.protocol import Lane
from streamfleet.operator.snapshot import read_queue
from streamfleet.worker.services.pace import measure_pace
from tests.scripts.harness import NOW, Queue, ids
from tests.scripts.mutants import fails_without

FAR = NOW + 10**7
NO_LIMIT = '{"messages":[]}'


class Fleet:
    """A queue whose workers take a number of requests each second, and keep house."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.second, self._added = queue, 0, 0

    @property
    def here(self) -> Queue:
        """The queue at the present time."""
        return self.queue.at(NOW + 1_000 * self.second)

    async def add(self, lane: str, number: int, **fields: Any) -> None:
        for _ in range(number):
            self._added += 1
            given = {"deadline": FAR + self._added, "body": NO_LIMIT} | fields
            await self.queue.add(lane, f"1000-{self._added}", **given)

    async def keep_house(self) -> None:
        await self.here.pull("w1", 0, stage_entries=10_000)
        await self.here.broker.serve(measure_pace)

    async def work(self, seconds: int, rate: int, coming: dict[str, int] | None = None) -> None:
        await self.keep_house()
        for _ in range(seconds):
            self.second += 1
            for lane, number in (coming or {}).items():
                await self.add(lane, number)
            leases = [claim.lease for claim in (await self.here.pull("w1", rate)).claims]
            await self.here.complete("w1", *leases[: rate - 1])
            await self.keep_house()

    async def expected(self, lane: Lane = Lane.HIGH, deadline: int | None = None) -> Expected:
        """Of a request that would come now."""
        (found,) = await self.here.broker.expected([(lane, None, deadline, None)])
        return found


async def at_work(queue: Queue, tenant: str = "") -> Fleet:
    """A fleet that has taken half of a hundred requests of a tenant."""
    fleet = Fleet(queue)
    await fleet.add("high", 100, **({"tenant": tenant} if tenant else {}))
    await fleet.work(10, 5)
    return fleet


async def test_nobody_can_tell_before_a_queue_has_worked(queue: Queue) -> None:
    fleet = Fleet(queue)
    assert await fleet.expected() == Expected(0)
    await fleet.add("high", 10)
    await fleet.keep_house()
    assert await fleet.expected(deadline=FAR + 10**6) == Expected(10)


async def test_the_time_is_that_of_what_goes_first(queue: Queue) -> None:
    fleet = await at_work(queue)
    expected = await fleet.expected(deadline=FAR + 10**6)
    assert (expected.place, expected.wait_ms) == (50, 51 * 1_000 / 5)
    assert expected.left_ms == FAR + 10**6 - NOW - 10_000 - (expected.wait_ms or 0) - (expected.run_ms or 0)
    assert (await fleet.expected(deadline=NOW + 20_000)).place == 0


async def test_operators_read_the_pace_that_times_follow_from(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100)
    assert (await read_queue(fleet.here.broker))[1].pace_per_s is None
    await fleet.work(10, 5)
    pace_per_s = (await read_queue(fleet.here.broker))[1].pace_per_s
    expected = await fleet.expected(deadline=FAR + 10**6)
    assert expected.wait_ms == pytest.approx(((expected.place or 0) + 1) * 1_000 / (pace_per_s or 0))


async def test_a_waiting_request_has_a_place_and_a_time(queue: Queue) -> None:
    fleet = await at_work(queue)
    found = await fleet.here.broker.expected([(Lane.HIGH, f"1000-{number}") for number in (51, 100, 1)])
    assert [(each.place, each.wait_ms) for each in found] == [(0, 200), (49, 10_000), (None, None)]


@pytest.mark.every_release
async def test_more_urgent_lanes_go_first_with_what_still_comes(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100)
    await fleet.add("critical", 1)
    await fleet.work(20, 5, {"critical": 2})
    await fleet.add("critical", 12)
    await fleet.here.pull("w1", 0)
    expected = await fleet.expected(deadline=FAR + 10**6)
    assert expected.place == 100 - 20 * 3 + 1
    # 12 urgent ones wait, and of the 5 taken a second 2 are urgent ones that come, which Redis 6.2 does not count.
    (group,) = await fleet.queue.command("XINFO", "GROUPS", fleet.queue.keys.lane("critical"))
    coming = 2 if b"entries-read" in group else 0
    assert expected.wait_ms == pytest.approx((expected.place + 1 + 12) / (5 - coming) * 1_000, rel=0.1)


async def test_no_lane_waits_longer_than_its_share_lets_it(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("normal", 10)
    await fleet.add("high", 10_000)
    await fleet.work(10, 10)
    expected = await fleet.expected(Lane.NORMAL, FAR + 10**6)
    assert expected.wait_ms == pytest.approx(((expected.place or 0) + 1) * 1_000, rel=0.01)


async def test_less_urgent_lanes_take_their_shares(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("normal", 1_000)
    await fleet.add("high", 100)
    await fleet.work(5, 10)
    expected = await fleet.expected(deadline=FAR + 10**6)
    assert expected.wait_ms == pytest.approx(((expected.place or 0) + 1) * 1_000 / 9, rel=0.01)


@fails_without(
    "pace: an idle fleet does not show how fast it is",
    'if before and pace["busy"] and before["busy"]:',
    "if before:",
    service="pace",
)
async def test_the_time_of_an_idle_fleet_is_that_of_when_it_was_busy(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 51)
    await fleet.work(10, 5)
    before = await fleet.expected(deadline=FAR + 10**6)
    await fleet.work(8, 5)
    assert (before.wait_ms, (await fleet.expected(deadline=FAR + 10**6)).wait_ms) == (400, 200)


async def test_a_fleet_that_has_become_slow_is_noticed(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 1_000)
    await fleet.work(20, 10)
    await fleet.work(60, 1)
    expected = await fleet.expected(deadline=NOW + 100_000)
    assert 600 <= (expected.wait_ms or 0) <= 1_000


@fails_without("pace: without workers there is none")
@fails_without("pace: nobody knows how long a lane is paused")
async def test_nobody_can_tell_for_a_paused_lane_or_without_workers(queue: Queue) -> None:
    fleet = await at_work(queue)
    await fleet.here.broker.pause([Lane.HIGH])
    assert (await fleet.expected()).wait_ms is None
    assert (await fleet.expected(Lane.NORMAL)).wait_ms is not None
    fleet.second += 11
    assert (await fleet.expected(Lane.NORMAL)).wait_ms is None


@fails_without(
    "pace: neither a step of the clock counts nor time in which nobody looked",
    "if not 0 <= passed <= STALE_MS:",
    "if passed == math.inf:",
    service="pace",
)
async def test_a_clock_that_was_set_back_or_forward_is_not_measured_by(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 200)
    await fleet.work(10, 5)
    for step in (-500, 7_200):
        fleet.second += step
        await fleet.keep_house()
        assert (await fleet.expected()).wait_ms is None
        await fleet.work(2, 5)
        assert (await fleet.expected()).wait_ms == 200


async def test_a_broken_pace_is_measured_anew(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100)
    await fleet.work(3, 5)
    for broken in ("", "nonsense", "[]", "{}"):
        await fleet.queue.command("SET", fleet.queue.keys.pace, broken)
        assert (await fleet.expected()).wait_ms is None
        await fleet.work(2, 5)
        assert (await fleet.expected()).wait_ms == 200


@fails_without("pace: one that lacks a number is none")
@fails_without("pace: one that lacks a lane is none")
@fails_without(
    "pace: what was written by hand is measured anew",
    "except (LookupError, TypeError,",
    "except (OSError, TypeError,",
    service="pace",
)
async def test_a_pace_without_all_its_parts_is_unknown(queue: Queue) -> None:
    """Somebody has written it by hand."""
    fleet = Fleet(queue)
    await fleet.add("high", 100)
    await fleet.work(3, 5)
    pace = json.loads(await fleet.queue.command("GET", fleet.queue.keys.pace))

    async def unknown(broken: dict[str, Any]) -> bool:
        await fleet.queue.command("SET", fleet.queue.keys.pace, json.dumps(broken))
        wait_ms = (await fleet.expected()).wait_ms
        await fleet.keep_house()
        return wait_ms is None

    lane = pace["lanes"][1]
    for name in ("at", "took", "left", "span", "run", "lanes"):
        assert await unknown({key: pace[key] for key in pace if key != name}), name
    for name in ("came", "gone", "who", "spans"):
        one = {key: lane[key] for key in lane if key != name}
        assert await unknown(pace | {"lanes": [pace["lanes"][0], one, *pace["lanes"][2:]]}), name
    assert await unknown(pace | {"lanes": pace["lanes"][:3]})
    for name in ("busy", "gone"):  # who tells times needs none of these
        assert not await unknown({key: pace[key] for key in pace if key != name}), name


@fails_without("refuse: what may be in time waits")
async def test_what_will_likely_be_late_is_refused_where_it_asks_for_that(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100, deadline=NOW + 15_000)
    await fleet.work(10, 5)
    soon = NOW + 10_000 + 5_000
    await fleet.queue.add("high", "2000-1", id="refused", deadline=soon + 1, if_late="refuse", reply="me")
    await fleet.queue.add("high", "2000-2", id="asks-for-nothing", deadline=soon + 1)
    await fleet.queue.add("high", "2000-3", id="in-time", deadline=soon + 60_000, if_late="refuse")
    pulled = await fleet.here.pull("w1", 0)
    assert (pulled.staged, pulled.dropped) == (3, 1)
    dump = await fleet.queue.dump()
    result = dump["result:refused"]
    error = json.loads(result["error"])["error"]
    assert (result["status"], error["code"], error["param"]) == ("expired", "likely_late", "if_late")
    assert "it would be taken in 10.2 s" in error["message"]
    assert (dump["counts"]["expired"], dump["reply:me"][0]["status"], len(dump["dead"])) == ("1", "expired", 1)
    left = [name for name in dump["lane:high"]["entries"] if name.startswith("2000")]
    assert left == ["2000-2", "2000-3"]


@fails_without("refuse: who arrives together counts", ", deadline, tenant, #rows, more_own", ", deadline, tenant, 0, 0")
async def test_what_arrives_together_counts_for_each_other(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 60)
    await fleet.work(10, 5)
    run_ms = (await fleet.expected()).run_ms or 0
    await fleet.add("high", 40, deadline=NOW + 10_000 + 4_000 + run_ms, if_late="refuse")
    assert (await fleet.here.pull("w1", 0)).dropped == pytest.approx(40 - 4 * 5, abs=1)


async def test_nothing_is_refused_without_a_pace_or_without_a_deadline(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100)
    await fleet.queue.add("high", "2000-1", deadline=NOW + 1, if_late="refuse")
    assert (await fleet.here.pull("w1", 0)).dropped == 0
    await fleet.work(10, 5)
    await fleet.queue.command("XADD", fleet.queue.keys.lane("high"), "2000-2", "body", "{}", "if_late", "refuse")
    assert (await fleet.here.pull("w1", 0)).dropped == 0


@fails_without("refuse: an id that has ended is a duplicate")
async def test_an_id_that_has_a_result_is_a_duplicate_and_not_refused(queue: Queue) -> None:
    fleet = Fleet(queue)
    await fleet.add("high", 100, deadline=NOW + 15_000)
    await fleet.queue.add("critical", "1000-1", id="r1")
    await fleet.work(10, 5)
    assert (await fleet.queue.dump())["result:r1"]["status"] == "succeeded"
    await fleet.queue.add("high", "2000-1", id="r1", deadline=NOW + 15_001, if_late="refuse")
    assert (await fleet.here.pull("w1", 0)).dropped == 0
    assert "2000-1" not in ids((await fleet.here.pull("w1", 60)).claims)
    assert (await fleet.queue.dump())["counts"]["duplicate"] == "1"
