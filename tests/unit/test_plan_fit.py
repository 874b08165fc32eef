"""From waves back to the profile that they were made with."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from streamfleet.common.protocol import Lane
from streamfleet.common.results import Result, decode_result
from streamfleet.operator.plan.arrivals import Arrival
from streamfleet.operator.plan.measure import (
    BadFit,
    CannotMeasure,
    Wave,
    WaveShape,
    fit,
    least_squares,
    shapes,
    wave_of,
)
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.operator.plan.simulate import Fleet, Simulation
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU

KNOTS = {1, 2, 4, 8, 16, 32}


def wave(prompt: int, lengths: Iterable[int], noise: float = 0.0, chance: random.Random | None = None) -> Wave:
    """Returns a simulated worker's wave of so many requests at once."""
    arrivals = [Arrival(0.0, Lane.NORMAL, prompt, length) for length in lengths]
    found = Simulation(Fleet(EngineProfile(SMOLLM2_135M_CPU), 1), arrivals).run()
    spoilt = 1 + (chance or random.Random(0)).gauss(0, noise)
    return Wave(found.ended_s * spoilt, prompt * len(arrivals), tuple(item.output_tokens for item in arrivals))


def waves(noise: float = 0.0, rounds: int = 1) -> list[Wave]:
    chance = random.Random(5)
    return [
        wave(shape.prompt_tokens, [shape.output_tokens] * shape.together, noise, chance)
        for shape in shapes(200, 64, 32, rounds)
    ]


def test_a_known_profile_is_found_again() -> None:
    found = fit(waves())
    assert found.prefill_s_per_token == pytest.approx(SMOLLM2_135M_CPU.prefill_s_per_token, rel=1e-6)
    assert {together for together, _ in found.steps_s} == KNOTS
    for together, step_s in found.steps_s:
        assert step_s == pytest.approx(SMOLLM2_135M_CPU.step_s(together), rel=1e-6)
    assert found.throughput[-1][1] == pytest.approx(349, rel=1e-6)
    assert found.error < 1e-6


def test_noise_comes_through_no_larger_than_it_is() -> None:
    found = fit(waves(noise=0.03, rounds=3))
    assert found.prefill_s_per_token == pytest.approx(SMOLLM2_135M_CPU.prefill_s_per_token, rel=0.1)
    for together, step_s in found.steps_s:
        assert step_s == pytest.approx(SMOLLM2_135M_CPU.step_s(together), rel=0.06)
    assert 0.005 < found.error < 0.05


def test_answers_that_end_by_themselves_are_as_good() -> None:
    """With different lengths, fewer and fewer requests run together: also between the numbers that are measured."""
    mixed = [
        wave(40, [length * 2 + more for length in range(1, together + 1)]) for together in (1, 4) for more in (0, 9)
    ]
    found = fit([*mixed, wave(200, [3])])
    assert found.prefill_s_per_token == pytest.approx(SMOLLM2_135M_CPU.prefill_s_per_token, rel=1e-6)
    assert dict(found.steps_s) == pytest.approx(
        {1: SMOLLM2_135M_CPU.step_s(1), 4: SMOLLM2_135M_CPU.step_s(4)}, rel=1e-6
    )


def test_prompts_that_cost_nothing_cost_nothing() -> None:
    rows = [(1.0, 10, (100,)), (0.499, 20, (50,)), (0.2, 10, (20,))]
    found = fit([Wave(span_s, prompt, lengths) for span_s, prompt, lengths in rows])
    assert found.prefill_s_per_token == 0.0
    assert dict(found.steps_s) == pytest.approx({1: 0.01}, rel=0.01)


@pytest.mark.parametrize(
    "given",
    [
        [],
        [Wave(1.0, 100, (50,)), Wave(1.0, 100, (50,))],
        [Wave(1.0, 100, (50,)), Wave(2.0, 200, (100,))],
        [Wave(1.0, 100, (10,)), Wave(0.9, 100, (50,))],
    ],
    ids=["none", "all alike", "in proportion", "contradicting"],
)
def test_waves_that_do_not_say_it_are_refused_with_what_to_do(given: list[Wave]) -> None:
    with pytest.raises(BadFit, match="measure again"):
        fit(given)


def test_least_squares_of_what_has_a_solution_is_the_solution() -> None:
    assert least_squares([[1, 2], [3, 4], [5, 6]], [5, 11, 17]) == pytest.approx([1, 2])
    assert least_squares([[1, 2], [2, 4], [3, 6]], [5, 10, 15]) is None


def test_waves_double_up_to_the_slots() -> None:
    found = shapes(256, 64, 12, 2)
    assert [shape.together for shape in found[: len(found) // 2 : 3]] == [1, 2, 4, 8, 12]
    assert found[:3] == [WaveShape(1, 256, 64), WaveShape(1, 256, 16), WaveShape(1, 64, 16)]
    assert shapes(8, 16, 1, 1) == [WaveShape(1, 8, 16), WaveShape(1, 8, 4), WaveShape(1, 2, 4)]


def result(queued_ms: int, total_ms: int, usage: bytes = b'{"prompt_tokens":9,"completion_tokens":7}') -> Result:
    values = {"enqueued_ms": 5_000, "queued_ms": queued_ms, "waited_ms": 2, "total_ms": total_ms}
    given = {name.encode(): str(value).encode() for name, value in values.items()}
    found = decode_result("r", {b"status": b"succeeded", b"usage": usage, **given})
    assert found is not None
    return found


def test_a_wave_is_from_the_first_start_to_the_last_end() -> None:
    found = wave_of([result(8, 100), result(18, 150)])
    assert found == Wave(found.span_s, 18, (7, 7), 10)
    assert found.span_s == pytest.approx(0.14)


def test_a_wave_that_did_not_run_together_says_how_many_do() -> None:
    with pytest.raises(CannotMeasure, match=r"of 3 requests only 2 ran together.*--up-to 2"):
        wave_of([result(8, 100), result(18, 150), result(120, 240)])


def test_an_engine_that_does_not_tell_its_usage_cannot_be_measured() -> None:
    with pytest.raises(CannotMeasure, match="completion_tokens"):
        wave_of([result(8, 100, b'{"prompt_tokens":9}')])
