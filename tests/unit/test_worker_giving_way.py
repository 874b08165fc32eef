"""Choice of the running requests that give way to an urgent one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.protocol import Lane
from streamfleet.worker.credit import Demand, Load, Typical
from streamfleet.worker.giving_way import MOST_INTERRUPTIONS, Running, can_give, choose

ONE = Load(0, 1, 0)
USUAL = Running(Lane.LOW, Demand(1, 500), 0, run_s=10.0, lost_s=5.0, slack_s=math.inf)


def running(**changes: Any) -> Running:
    return replace(USUAL, **changes)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (running(), running(lane=Lane.NORMAL, lost_s=0.1)),
        (running(lost_s=9.0), running(interrupted=1, lost_s=0.1)),
        (running(), running(slack_s=500.0, lost_s=0.1)),
        (running(slack_s=1_100.0), running(slack_s=500.0, lost_s=0.1)),
        (running(lost_s=1.0), running(lost_s=2.0)),
        (running(slack_s=600.0, lost_s=1.0), running(slack_s=900.0, lost_s=2.0)),
    ],
    ids=["less urgent", "interrupted less often", "no deadline", "more slack", "less lost", "about the same slack"],
)
def test_the_cheapest_comes_first(first: Running, second: Running) -> None:
    assert choose({"second": second, "first": first}, ONE) == ["first"]


def test_nobody_is_interrupted_more_often_than_that() -> None:
    assert choose({1: running(interrupted=MOST_INTERRUPTIONS - 1)}, ONE) == [1]
    assert not choose({1: running(interrupted=MOST_INTERRUPTIONS)}, ONE)


def test_no_deadline_is_broken_by_it() -> None:
    assert choose({1: running(slack_s=20.0)}, ONE) == [1]
    assert not choose({1: running(slack_s=19.9)}, ONE)
    assert not choose({1: running(slack_s=1e9, run_s=math.inf)}, ONE)  # nobody knows yet how long it takes


def test_sequences_tokens_and_requests_are_made_room_for() -> None:
    some = {1: running(demand=Demand(1, 100)), 2: running(demand=Demand(4, 900), lost_s=6.0)}
    assert choose(some, Load(0, 0, 90)) == [1]
    assert choose(some, Load(0, 4, 0)) == [1, 2]
    assert choose(some, Load(1, -3, -3)) == [1]
    assert choose(some, Load(0, 0, 0)) == []
    assert not choose(some, Load(0, 6, 0))


@given(
    st.lists(
        st.builds(
            Running,
            st.sampled_from([Lane.NORMAL, Lane.LOW]),
            st.builds(Demand, st.integers(1, 4), st.integers(1, 999)),
            st.integers(0, 5),
            st.floats(0.1, 100),
            st.floats(0, 100),
            st.just(math.inf) | st.floats(0, 1_000),
        ),
        max_size=12,
    ),
    st.builds(Load, st.integers(-1, 1), st.integers(-2, 8), st.integers(-100, 3_000)),
)
def test_either_enough_room_is_made_or_none(some: list[Running], missing: Load) -> None:
    chosen = choose(dict(enumerate(some)), missing)
    assert can_give(missing, some) == bool(chosen)
    assert len(set(chosen)) == len(chosen)
    for number in chosen:
        each = some[number]
        assert each.interrupted < MOST_INTERRUPTIONS
        assert each.slack_s >= 2 * each.run_s
    if chosen:
        freed = [some[number].demand for number in chosen]
        assert len(freed) >= missing.requests
        assert sum(demand.sequences for demand in freed) >= missing.sequences
        assert sum(demand.tokens for demand in freed) >= missing.tokens


def test_a_full_engine_looks_at_no_more_requests_than_it_needs() -> None:
    looked_at = iter([running(interrupted=MOST_INTERRUPTIONS), running(), running()])
    assert can_give(ONE, looked_at)
    assert len(list(looked_at)) == 1


def test_before_a_run_has_ended_requests_with_enough_time_may_give_way() -> None:
    """So an urgent request does not wait for the first answers of a worker that has just started."""
    usual_s = Typical().run_s(Demand(1, 522, 10))
    assert usual_s == pytest.approx(51.2)
    assert choose({1: running(lane=Lane.NORMAL, run_s=usual_s, slack_s=600.0)}, ONE)
    assert not choose({1: running(lane=Lane.NORMAL, run_s=usual_s, slack_s=100.0)}, ONE)
