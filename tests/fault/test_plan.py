"""A seed makes the same plan again, another one another, and every kind of fault is in it."""

from __future__ import annotations

from collections import Counter

from streamfleet.worker.failpoints import Point
from tests.fault.plan import FaultKind, Kind, steps_as_json, steps_from_json
from tests.fault.random_plan import FULL, QUICK, SHORT, make_plan
from tests.passwords import ORDERS


def test_the_same_seed_makes_the_same_plan() -> None:
    assert make_plan(5, QUICK) == make_plan(5, QUICK)
    assert make_plan(5, QUICK) != make_plan(6, QUICK)


def test_a_full_plan_holds_what_is_promised() -> None:
    plan = make_plan(1, FULL)
    kinds = Counter(fault.kind for fault in plan.faults)
    points = Counter(tuple(fault.what.split()) for fault in plan.faults if fault.kind is FaultKind.POINT)
    assert plan.requests >= 20_000
    assert kinds[FaultKind.KILL] + sum(n for (_, action), n in points.items() if action == "kill") >= 190
    assert kinds[FaultKind.STOP] >= 50
    assert kinds[FaultKind.REDIS_KILL] >= 10
    assert set(kinds) == set(FaultKind)
    assert {point for point, _ in points} == {point.value for point in Point}
    assert [fault.at for fault in plan.faults] == sorted(fault.at for fault in plan.faults)


def test_every_size_has_every_kind_of_request_and_of_fault() -> None:
    for size in (QUICK, SHORT):
        plan = make_plan(2, size)
        assert {item.kind for steps in plan.producers for step in steps for item in step.items} == set(Kind)
        assert {fault.kind for fault in plan.faults} == set(FaultKind)


def test_steps_survive_the_way_to_another_process() -> None:
    steps = make_plan(3, QUICK).producers[0]
    assert steps_from_json(steps_as_json(steps)) == steps


def test_the_password_changes_twenty_times_and_once_by_a_restart() -> None:
    changes = [fault for fault in make_plan(1, FULL).faults if fault.kind is FaultKind.PASSWORD]
    said = [fault.what.split() for fault in changes]
    assert len(said) >= 20
    assert min(Counter((order, user) for order, user, *_ in said).values()) >= 3
    assert {order for order, *_ in said} == set(ORDERS)
    assert [how for _, _, *how in said if how] == [["restart"]]
    assert {fault.seconds for fault in changes} == {5.0}
