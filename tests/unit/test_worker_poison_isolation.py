"""Number of other requests beside one that was lost with a worker before."""

from __future__ import annotations

import pytest

from streamfleet.common.broker.types import Claim, Lease
from streamfleet.common.protocol import Lane
from streamfleet.worker.containment import PoisonIsolation, least


def company(claim: Claim, max_deliveries: int, slots: int = 1_000_000) -> int | None:
    return PoisonIsolation().company(claim, slots, max_deliveries)


def claim(attempt: int, lost: int) -> Claim:
    return Claim(Lease(Lane.NORMAL, "1-0", attempt, "r-1"), {}, lost)


@pytest.mark.parametrize(("attempt", "expected"), [(2, 64), (3, 16), (4, 4), (5, 1), (6, 1)])
def test_company_shrinks_to_nobody_on_the_last_try(attempt: int, expected: int) -> None:
    assert company(claim(attempt, lost=1), max_deliveries=5) == expected


@pytest.mark.parametrize(
    ("slots", "expected"), [(256, [64, 16, 4, 1]), (32, [32, 8, 2, 1]), (8, [8, 2, 1, 1]), (1, [1, 1, 1, 1])]
)
def test_where_slots_are_few_company_shrinks_from_them(slots: int, expected: list[int]) -> None:
    assert [company(claim(attempt, lost=attempt - 1), 5, slots) for attempt in (2, 3, 4, 5)] == expected


@pytest.mark.parametrize("attempt", [1, 5])
def test_what_was_never_lost_with_a_worker_is_no_suspect(attempt: int) -> None:
    assert company(claim(attempt, lost=0), max_deliveries=5) is None


@pytest.mark.parametrize(("attempt", "expected"), [(1, 128), (3, 16), (5, 1)])
def test_what_was_lost_with_a_server_is_one(attempt: int, expected: int) -> None:
    isolation = PoisonIsolation()
    assert isolation.company(claim(attempt, lost=0), slots=32, max_deliveries=5, suspect=True) == expected


@pytest.mark.parametrize("most", [2, 3, 10])
def test_however_many_tries_there_are_the_last_one_is_alone(most: int) -> None:
    assert company(claim(most, lost=1), most) == 1


def test_the_least_of_limits_some_of_which_are_none() -> None:
    assert least(None, 4, 16) == 4
    assert least(None, 0, 1) == 0
    assert least(None, None) is None
