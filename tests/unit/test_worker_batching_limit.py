"""The adaptive limit: where it settles, how it gets there, and what does not lead it astray."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfleet.worker.latency_limit import FIRST_LIMIT, LatencyLimit, work
from tests.unit.batching_plant import Plant, affine, always, one_of, right_limit

Kind = type[LatencyLimit]
STEP = affine(0.020, 0.002)
MIXED = one_of(5, 10, 50, 50, 50, 400)


@pytest.fixture
def kind() -> Kind:
    """The class that is tried; the test of mutants hands in others."""
    return LatencyLimit


@pytest.mark.parametrize("target_s", [1.4, 2.0, 3.0, 5.0, 8.0])
def test_it_settles_at_the_most_that_keeps_the_target(kind: Kind, target_s: float) -> None:
    plant = Plant(kind(target_s), STEP, always(50), jitter=0.05).run(3_000)
    right = right_limit(STEP, 50, target_s)
    assert right - 3 <= min(plant.settled()) <= max(plant.settled()) <= right + 1
    assert 0.88 * target_s <= plant.usual_latency_s() <= 1.01 * target_s


@given(
    base_ms=st.floats(1, 50),
    each_ms=st.floats(0.02, 5),
    usual_tokens=st.integers(3, 40),
    stretch=st.floats(1.1, 40),
    others=st.lists(st.floats(0.1, 10), max_size=6),
    jitter=st.floats(0, 0.1),
)
@settings(deadline=None, max_examples=20)
def test_it_settles_on_any_engine_and_mix_and_does_not_swing(
    base_ms: float, each_ms: float, usual_tokens: int, stretch: float, others: list[float], jitter: float
) -> None:
    """Most requests have the usual length; the target is `stretch` times what one takes alone."""
    step_s = affine(base_ms / 1000, each_ms / 1000)
    target_s = stretch * usual_tokens * step_s(1)
    odd = [max(1, round(usual_tokens * share)) for share in others]
    draw = one_of(*[usual_tokens] * (3 * len(odd) + 1), *odd)
    plant = Plant(LatencyLimit(target_s), step_s, draw, slots=64, jitter=jitter).run(2_000)
    # If latency hardly depends on the limit, many limits keep the target as closely as can be told apart.
    least, most = (right_limit(step_s, usual_tokens, target_s * share, 64) for share in (0.85, 1.05))
    assert least * 0.9 - 2 <= min(plant.settled())
    assert max(plant.settled()) <= most + 1


def test_it_never_passes_its_bounds(kind: Kind) -> None:
    idle = Plant(kind(100.0), STEP, always(50), slots=9).run(1_000)
    assert max(idle.limits) == idle.limits[-1] == idle.most_running == 9
    hopeless = Plant(kind(0.1), STEP, always(50)).run(200)
    assert min(hopeless.limits) == hopeless.limits[-1] == 1
    assert hopeless.limit.out_of_reach
    assert not idle.limit.out_of_reach


def test_it_is_bound_at_once_by_fewer_slots(kind: Kind) -> None:
    plant = Plant(kind(5.0), STEP, always(50)).run(2_000)
    plant.limit.bound(3)
    assert plant.limit.value == 3


def test_it_does_not_grow_where_it_is_not_used_up(kind: Kind) -> None:
    """Latency says nothing about more requests than there were."""
    plant = Plant(kind(8.0), STEP, always(50), wanted=FIRST_LIMIT - 1).run(2_000)
    assert set(plant.limits) == {FIRST_LIMIT}
    plant.wanted = 1_000
    plant.run(3_000)
    assert plant.limits[-1] > 60


def test_it_at_most_doubles_or_halves_in_a_round(kind: Kind) -> None:
    plant = Plant(kind(1_000.0), STEP, always(20)).run(600)
    steps = [(before, after) for before, after in zip(plant.limits, plant.limits[1:], strict=False) if after != before]
    assert steps
    assert all(after <= 2 * before for before, after in steps)
    plant.step_s, plant.limits = lambda running: 10_000 * STEP(running), plant.limits[-1:]
    plant.run(1_000)
    steps = [(before, after) for before, after in zip(plant.limits, plant.limits[1:], strict=False) if after != before]
    assert all(after >= before // 2 for before, after in steps)
    assert plant.limits[-1] == 1


def test_it_does_not_decrease_twice_for_the_same_requests(kind: Kind) -> None:
    """Requests from before the decrease are still slow, and must not be held against it once more."""
    plant = Plant(kind(5.0), STEP, always(50)).run(3_000)
    slow = affine(0.030, 0.004)
    plant.step_s, plant.limits, plant.latencies = slow, [], []
    plant.run(2_000)
    right = right_limit(slow, 50, 5.0)
    assert right * 0.7 <= min(plant.limits)
    assert right - 3 <= plant.limits[-1] <= right + 1


def test_it_comes_back_after_a_passing_slowness(kind: Kind) -> None:
    plant = Plant(kind(3.0), STEP, always(50)).run(2_000)
    usual = plant.limits[-1]
    plant.step_s = lambda running: 20 * STEP(running)
    plant.run(300)
    assert plant.limits[-1] == 1
    plant.step_s = STEP
    plant.run(1_000)
    assert plant.limits[-1] >= usual - 2


def test_it_is_not_changed_by_idle_hours(kind: Kind) -> None:
    plant = Plant(kind(3.0), STEP, always(50)).run(2_000)
    usual = plant.limits[-1]
    plant.wanted = 1
    plant.run(50)
    plant.now += 7_200
    plant.wanted = 1_000
    plant.limits = []
    plant.run(1_000)
    assert usual - 3 <= min(plant.limits) <= max(plant.limits) <= usual + 2


@pytest.mark.parametrize("tenth", [1, 1_000])
def test_it_is_moved_little_by_some_very_long_or_short_answers(kind: Kind, tenth: int) -> None:
    plant = Plant(kind(3.0), STEP, one_of(*[50] * 9, tenth)).run(4_000)
    right = right_limit(STEP, 50, 3.0)
    assert right - 4 <= min(plant.settled()) <= max(plant.settled()) <= right + 2


def test_it_does_not_shoot_up_because_short_ones_finish_first(kind: Kind) -> None:
    for target_s in (3.0, 5.0, 8.0):
        plant = Plant(kind(target_s), STEP, MIXED).run(4_000)
        assert max(plant.limits) <= 1.25 * right_limit(STEP, 50, target_s) + 1


def test_it_does_not_swing_where_latency_grows_with_the_cube(kind: Kind) -> None:
    plant = Plant(kind(1.5), lambda running: 0.03 * (running / 40) ** 3, always(50)).run(4_000)
    assert 36 <= min(plant.settled()) <= max(plant.settled()) <= 41


def test_it_decreases_where_all_requests_run_out_of_time(kind: Kind) -> None:
    plant = Plant(kind(3.0), STEP, always(50)).run(2_000)
    plant.step_s = lambda running: 10 * STEP(running)
    plant.expires_s, plant.most_tokens = 4.0, 60
    plant.run(500)
    assert plant.limits[-1] <= 2


def test_it_does_not_decrease_where_requests_that_run_out_of_time_may_just_be_long(kind: Kind) -> None:
    plant = Plant(kind(3.0), STEP, one_of(50, 50, 50, 2_000), expires_s=4.0, most_tokens=2_000).run(4_000)
    right = right_limit(STEP, 50, 3.0)
    assert right - 4 <= plant.limits[-1] <= right + 1


def test_it_counts_nothing_that_ended_otherwise(kind: Kind) -> None:
    limit = kind(1.0)
    for number in range(1_000):
        limit.left(limit.started(float(number)), number + 0.9)
    assert limit.value == FIRST_LIMIT
    assert limit.latency_s is None
    plant = Plant(limit, STEP, always(20)).run(1_000)
    right = right_limit(STEP, 20, 1.0)
    assert right - 2 <= plant.limits[-1] <= right + 1


def test_it_rests_a_little_below_the_target(kind: Kind) -> None:
    """Else it would go to and fro for ever between too much and a little less."""
    plant = Plant(kind(5.0), STEP, always(50)).run(3_000)
    assert len(set(plant.settled())) == 1


def test_it_finds_out_that_two_are_as_good_as_one(kind: Kind) -> None:
    """One alone takes more than half of the target: were latency in proportion, two would be too many."""
    step_s = affine(0.100, 0.001)
    plant = Plant(kind(2.5), step_s, always(20)).run(20)
    plant.step_s = lambda running: 50 * step_s(running)
    plant.run(50)
    assert plant.limits[-1] == 1
    plant.step_s = step_s
    plant.run(1_500)
    assert plant.limits[-1] >= right_limit(step_s, 20, 2.5 * 0.9)


def test_work_counts_side_by_side_sequences_once_and_reading_less_than_writing() -> None:
    assert work(0, 100) == 100
    assert work(0, 400, sequences=4) == 100
    assert work(320, 100) == 110
    assert work(64, 0) == 3
