"""Views of what waits: they count requests with a tenant or a home like others, whichever set these stand in."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from streamfleet.common.broker.types import EntryState, Submission, TenantRule
from streamfleet.common.protocol import Lane
from streamfleet.operator.broker import waiting
from streamfleet.operator.request_location import trace
from streamfleet.operator.snapshot import read_queue, take_snapshot
from streamfleet.operator.tenants import read_tenants
from tests.scripts.harness import NOW, Queue, ids, submission
from tests.scripts.mutants import fails_without
from tests.scripts.test_affinity import meet, pull

FAR = NOW + 1_000_000
ALONE: Any = {"session": "first"}
LABELS: list[dict[str, Any]] = [
    {},
    {"tenant": "a"},
    {"tenant": "b"},
    {"tenant": "a", **ALONE},
    ALONE,
    {"session": "s2"},
]


async def fill(queue: Queue, number: int, labels: list[dict[str, Any]], seed: int = 1) -> dict[str, int]:
    """Requests with these labels wait in the lane `high`. Returns their deadlines by stream id."""
    await meet(queue, "w1", "w2")
    chance, due = random.Random(seed), {}
    for at in range(number):
        entry = f"{NOW}-{at}"
        due[entry] = FAR + chance.randrange(100_000) * 10 + at % 10
        await queue.add("high", entry, deadline=due[entry], **labels[at % len(labels)])
    await pull(queue, "w1", 0)
    return due


def in_order(due: dict[str, int]) -> list[str]:
    return sorted(due, key=lambda entry: due[entry])


@pytest.mark.parametrize("labels", [LABELS, [{}, ALONE, {"session": "s2"}], LABELS[1:4], [{"tenant": "a"}]])
async def test_all_that_waits_is_counted_and_has_a_place(queue: Queue, labels: list[dict[str, Any]]) -> None:
    due = await fill(queue, 16, labels)
    audit, sample = await read_queue(queue.broker)
    order = in_order(due)
    assert (audit.lanes[1].ready, audit.problems()) == (16, [])
    assert sample.first_ms[Lane.HIGH] == due[order[0]]
    assert [(each.place, each.rank_ms) for each in sample.ranked] == [(at, due[each]) for at, each in enumerate(order)]
    assert all(each.number == 1 for each in sample.ranked)
    (lane,) = [each for each in (await take_snapshot(queue.broker)).lanes if each.lane is Lane.HIGH]
    assert (lane.ready, lane.staged, len(lane.due)) == (16, 16, 16)
    found = await queue.broker.expected([(Lane.HIGH, entry) for entry in order])
    assert [each.rank_ms for each in found] == [due[entry] for entry in order]
    assert all(0 <= (-1 if each.place is None else each.place) < 16 for each in found)
    assert found[0].place == 0
    for entry in order:
        assert await queue.broker.entry_state(f"high:{entry}") == EntryState()
        place = (await trace(queue.broker, f"high:{entry}")).place
        assert place is not None
        assert (place.details.rank_ms, place.details.before is not None) == (due[entry], True)


async def test_without_tenants_the_place_is_that_by_deadline(queue: Queue) -> None:
    due = await fill(queue, 30, [{}, ALONE, {"session": "s2"}])
    order = in_order(due)
    found = await queue.broker.expected([(Lane.HIGH, entry) for entry in order])
    assert [each.place for each in found] == [*range(30)]
    for at, entry in enumerate(order):
        assert [each.place for each in await queue.broker.expected([(Lane.HIGH, None, due[entry], None)])] == [at + 1]
    assert [entry for entry, _ in (await queue.broker.next_ready(10))[Lane.HIGH]] == order[:10]
    assert await queue.broker.head() == (Lane.HIGH, due[order[0]])


async def test_what_runs_next_is_told_by_turns(queue: Queue) -> None:
    due = await fill(queue, 24, LABELS)
    lines: dict[str, list[str]] = {name: [] for name in ("", "a", "b")}
    for entry in in_order(due):
        lines[LABELS[int(entry.split("-")[1]) % len(LABELS)].get("tenant", "")].append(entry)
    found = (await queue.broker.next_ready(24))[Lane.HIGH]
    assert sorted(entry for entry, _ in found) == sorted(due)
    assert {entry for entry, _ in found[:3]} == {line[0] for line in lines.values()}
    assert {entry for entry, _ in found[3:6]} == {line[1] for line in lines.values()}
    assert all(rank == due[entry] for entry, rank in found)
    lane, rank = await queue.broker.head() or (None, 0)
    assert (lane, rank in due.values()) == (Lane.HIGH, True)


@pytest.mark.parametrize("lane", ["high", "normal"])
async def test_who_is_at_its_limit_or_was_interrupted_is_seen_too(queue: Queue, lane: str) -> None:
    """Whichever lane a tenant runs in, and however many others have nothing that waits."""
    broker = queue.broker
    await broker.set_tenant("full", TenantRule(1.0, 1))
    await queue.add(lane, f"{NOW}-0", tenant="full")
    await queue.pull("w1", 1)
    await queue.add("high", f"{NOW}-1", tenant="c", deadline=FAR + 1)
    (claim,) = (await queue.pull("w1", 1)).claims
    await broker.release("w1", [claim.lease], gave_way=True, kept={claim.lease: ("run", 3)})
    others = ("b", *(f"t{each}" for each in range(200)))
    await queue.command("ZADD", queue.keys.turns(Lane.NORMAL), *(word for each in others for word in (-1, each)))
    for at, tenant in ((2, "full"), (3, "full"), (4, "b"), (5, "b")):
        await queue.add("high", f"{NOW}-{at}", tenant=tenant)
    await queue.pull("w1", 0)
    _, sample = await read_queue(broker)
    ranked = [each for each in sample.ranked if each.lane is Lane.HIGH]
    assert (len(ranked), sum(each.number for each in ranked)) == (5, 5)
    assert [entry for entry, _ in (await broker.next_ready(9))[Lane.HIGH]] == [f"{NOW}-{at}" for at in (4, 1, 5, 2, 3)]


async def test_of_a_tenant_at_its_limit_alone_the_first_rank_is_told(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One name is looked for at most, and that of a tenant without a limit is none of them."""
    monkeypatch.setattr(waiting, "MOST_LIMITED", 1)
    for tenant, rule in (("heavy", TenantRule(2.0)), ("full", TenantRule(1.0, 1)), ("later", TenantRule(1.0, 1))):
        await queue.broker.set_tenant(tenant, rule)
    for at in range(3):
        await queue.add("high", f"{NOW}-{at}", tenant="full")
    await queue.pull("w1", 1)
    _, sample = await read_queue(queue.broker)
    assert [(each.place, each.rank_ms) for each in sample.ranked] == [(at, sample.first_ms[Lane.HIGH]) for at in (0, 1)]


async def test_tenants_are_shown_with_all_that_they_have_waiting(queue: Queue) -> None:
    await fill(queue, 24, LABELS)
    assert {view.tenant: view.waiting for view in await read_tenants(queue.broker)} == {"": 12, "a": 8, "b": 4}
    assert await queue.broker.tenants_waiting(["", "a", "nobody"]) == {"": 12, "a": 8, "nobody": 0}
    assert await queue.broker.waiting_in_turns() == 24


async def test_of_many_sets_some_stand_for_all(queue: Queue) -> None:
    """Their number, and the time until the deadlines pass, are told of the whole lane."""
    queue = queue.with_limits(lane_limit=10_000)
    due = await fill(queue, 3_000, [{"tenant": f"t{number}"} for number in range(150)])
    for _ in range(20):
        await pull(queue, "w1", 0, stage_entries=1_000)
    audit, sample = await read_queue(queue.broker)
    assert audit.lanes[1].ready == 3_000
    order, mine = in_order(due), [each for each in sample.ranked if each.lane is Lane.HIGH]
    assert sum(each.number for each in mine) == pytest.approx(3_000)
    assert sample.first_ms[Lane.HIGH] == due[order[0]]
    for each in mine:
        assert each.place == pytest.approx(order.index(next(one for one in order if due[one] == each.rank_ms)), abs=300)


@fails_without("pace: of many homes some stand for all")
async def test_of_many_homes_some_stand_for_all(queue: Queue) -> None:
    queue = queue.with_limits(lane_limit=1_000)
    await meet(queue, *(f"w{number}" for number in range(1, 97)))
    for number in range(192):
        await queue.add("high", f"{NOW}-{number}", session=f"s{number}", deadline=FAR + number)
    while (await pull(queue, "w1", 0)).staged:
        pass
    (behind,) = await queue.broker.expected([(Lane.HIGH, None, FAR + 999, None)])
    assert behind.place == pytest.approx(192, abs=10)


async def test_what_has_left_is_not_said_to_wait(queue: Queue) -> None:
    due = await fill(queue, 6, [ALONE, {"session": "s2"}])
    left = ids((await pull(queue, "w1", 1)).claims)
    assert len(left) == 1
    assert (await queue.broker.expected([(Lane.HIGH, left[0])]))[0].place is None
    state = await queue.broker.entry_state(f"high:{left[0]}")
    assert state is not None
    assert state.worker == "w1"
    await queue.broker.cancel(f"high:{next(each for each in due if each not in left)}")


@fails_without("enqueue: what waits for a home counts", "kind in ipairs({':t:', ':th:'})", "kind in ipairs({':t:'})")
async def test_a_tenants_share_counts_what_waits_for_homes(queue: Queue) -> None:
    queue = queue.with_limits(lane_limit=40)
    await fill(queue, 10, [{"tenant": "a", **ALONE}, {"tenant": "a"}])

    def asked(at: int, tenant: str) -> Submission:
        one = submission(f"r{at}")
        return replace(one, fields={**one.fields, "tenant": tenant.encode()})

    await queue.broker.enqueue([asked(0, "b")])
    codes = [answer.code.name for answer in await queue.broker.enqueue([asked(at, "a") for at in range(1, 30)])]
    assert codes.count("ACCEPTED") == 10
