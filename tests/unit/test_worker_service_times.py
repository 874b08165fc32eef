"""Times that requests take, and the least that the next ones need."""

from __future__ import annotations

from typing import Any, cast

import pytest

from streamfleet.common.protocol import Status
from streamfleet.common.settings import WorkerSettings, load
from streamfleet.worker.admission import Admission
from streamfleet.worker.in_flight import InFlight, StopReason
from streamfleet.worker.outcome import Finished, Outcome, cancelled, expired
from streamfleet.worker.service_times import (
    BEHIND_S,
    LEAST_SAMPLES,
    MOST_CLASSES,
    MOST_SAMPLES,
    Judge,
    ServiceTimes,
    quantile_of,
)
from tests.constants import PREFETCH, constants
from tests.unit.worker_requests import OK, ScriptedEngine, in_flight_request

DONE = Finished(Status.SUCCEEDED, 200, response=b"{}")


def after(*runs: float, in_vain: int = 10) -> ServiceTimes:
    """Runs of one class, of which every `in_vain`-th was stopped at its deadline; 0 for none."""
    times = ServiceTimes()
    for number, run_s in enumerate(runs, 1):
        times.took("13", run_s, in_vain=in_vain > 0 and number % in_vain == 0)
    return times


def test_nothing_is_known_before_some_runs() -> None:
    assert after(*[1.0] * (LEAST_SAMPLES - 1)).needs == {}
    assert after(*[1.0] * LEAST_SAMPLES).needs == {"13": 1_000}


@pytest.mark.parametrize(("in_vain", "needed_ms"), [(0, None), (150, 10_000), (50, 50_000), (10, 75_000)])
def test_the_more_time_is_wasted_the_more_is_needed(in_vain: int, needed_ms: int | None) -> None:
    times = after(*[float(1 + number * 37 % 100) for number in range(300)], in_vain=in_vain)
    assert times.needs.get("13") == (needed_ms and pytest.approx(needed_ms, abs=5_000))


def test_a_run_that_was_stopped_would_have_taken_longer() -> None:
    whole = [(float(number), False) for number in range(1, 101)]
    assert quantile_of(whole, 0.5) == 50
    stopped = [(min(run_s, 30.0), run_s > 30) for run_s, _ in whole]
    assert quantile_of(stopped, 0.25) == 25
    assert quantile_of(stopped, 0.5) == 30, "beyond the longest"
    some = [(run_s / 2, True) if run_s % 2 else (run_s, False) for run_s, _ in whole]
    assert quantile_of(some, 0.5) == pytest.approx(57, abs=5)


def test_classes_are_apart() -> None:
    times = after(*[1.0] * 40)
    for _ in range(40):
        times.took("none", 9.0, in_vain=True)
    assert times.needs == {"13": 1_000, "none": 9_000}


def test_the_number_of_classes_is_bounded_and_the_busy_ones_stay() -> None:
    times = after(*[1.0] * LEAST_SAMPLES)
    for number in range(2 * MOST_CLASSES):
        times.took("13", 1.0, in_vain=True)
        for _ in range(LEAST_SAMPLES):
            times.took(f"13 {number}", 9.0, in_vain=True)
    assert "13" in times.needs
    assert "13 0" not in times.needs
    assert f"13 {2 * MOST_CLASSES - 1}" in times.needs
    assert len(times.needs) == MOST_CLASSES


def test_what_one_tenant_wastes_decides_about_no_other() -> None:
    """Nor do the good runs of others hide what a tenant wastes."""
    times, mine, other = ServiceTimes(), "13 aaaaaaaa", "13 bbbbbbbb"
    for _ in range(60):
        times.took(other, 8.0, in_vain=False)
    for _ in range(LEAST_SAMPLES):
        times.took(mine, 2.0, in_vain=True)
    for _ in range(3 * MOST_SAMPLES):
        times.took(other, 8.0, in_vain=False)
        times.took("13", 8.0, in_vain=False)
    assert times.needs == {mine: 2_000}


def test_classes_of_a_tenant_share_what_it_wastes() -> None:
    times = ServiceTimes()
    for _ in range(60):
        times.took("13 aaaaaaaa", 1.0, in_vain=False)
        times.took("14 aaaaaaaa", 9.0, in_vain=True)
    assert times.needs == {"13 aaaaaaaa": 1_000, "14 aaaaaaaa": 9_000}


def test_a_changed_engine_is_noticed() -> None:
    assert after(*[9.0] * MOST_SAMPLES, *[1.0] * MOST_SAMPLES).needs == {"13": 1_000}


def test_waste_that_has_ended_is_forgotten() -> None:
    times = after(*[1.0] * 200, in_vain=2)
    assert times.needs == {"13": 1_000}
    for _ in range(3_000):
        times.took("13", 1.0, in_vain=False)
    assert times.needs == {}


@pytest.mark.parametrize(
    ("outcome", "stop_reason", "length", "learnt"),
    [
        (DONE, None, "13", 1),
        (expired("while it was running"), StopReason.LATE, "13", 1),
        (DONE, None, "", 0),
        (expired("before it could start"), None, "13", 0),
        (cancelled(), StopReason.CANCELLED, "13", 0),
        (Finished(Status.SUCCEEDED, 200, response=b"{}", resumed_tokens=5), None, "13", 0),
    ],
)
def test_whole_runs_teach_and_those_that_were_stopped_at_their_deadline(
    outcome: Outcome, stop_reason: StopReason | None, length: str, learnt: int
) -> None:
    engine = ScriptedEngine(cast("Any", lambda _: OK))
    with constants({PREFETCH: 0}):
        admission = Admission(engine, InFlight(), load(WorkerSettings))
    for _ in range(LEAST_SAMPLES):
        admission.times.took("none", 10.0, in_vain=True)
        request = in_flight_request()
        request.claim.length, request.started_at, request.stop_reason = length, 101.0, stop_reason
        admission.learn(request, outcome, 102.5)
    assert admission.times.needs.get("13") == (2_500 if learnt else None)


def test_nothing_is_judged_while_the_fleet_keeps_up() -> None:
    judge = Judge(after(*[1.0] * 40), 100.0)
    assert judge.needs(100.0 + BEHIND_S - 1) == {}
    assert judge.needs(100.0 + BEHIND_S) == {"13": 1_000}
    judge.pulled(5, 0, 140.0)
    assert judge.needs(141.0) == {"13": 1_000}
    judge.pulled(0, 0, 150.0)
    assert judge.needs(150.0 + BEHIND_S - 1) == {}


def test_who_is_through_because_it_drops_does_not_keep_up() -> None:
    judge = Judge(after(*[1.0] * 40), 100.0)
    judge.pulled(0, 3, 140.0)
    judge.pulled(0, 0, 140.0 + BEHIND_S - 1)
    assert judge.needs(170.0) == {"13": 1_000}
    judge.pulled(0, 0, 140.0 + BEHIND_S)
    assert judge.needs(170.0) == {}
