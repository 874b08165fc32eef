"""When a worker takes its hands off the queue, and when it tries again."""

from __future__ import annotations

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Status
from streamfleet.worker.fitness import REST_S, Fitness
from streamfleet.worker.outcome import Finished, Gone, HandedBack, Postponed, broken, cancelled, expired, refused

FAULT = Postponed("the engine answered 503: busy")
ANSWERED = Finished(Status.SUCCEEDED, 200, engine_ok=True)


def test_faults_in_a_row_make_unfit() -> None:
    fitness = Fitness(3)
    for _ in range(2):
        fitness.saw(FAULT, 10.0)
        assert fitness.fit
        assert fitness.allowance(10.0) is None
    fitness.saw(broken("a bug"), 10.0)
    assert not fitness.fit
    assert fitness.allowance(10.0) == 0
    assert fitness.last_fault == "the engine answered 500"


def test_an_answer_between_starts_over() -> None:
    fitness = Fitness(2)
    for outcome in (FAULT, ANSWERED, FAULT):
        fitness.saw(outcome, 10.0)
    assert fitness.fit


def test_a_refusal_by_the_engine_is_an_answer() -> None:
    fitness = Fitness(2)
    for outcome in (FAULT, Finished(Status.FAILED, 400, engine_ok=True), FAULT):
        fitness.saw(outcome, 10.0)
    assert fitness.fit


def test_what_says_nothing_about_the_engine_changes_nothing() -> None:
    fitness = Fitness(2)
    neutral = (refused(InvalidRequest("no", "n")), expired("late"), cancelled(), HandedBack(), Gone())
    for outcome in (*neutral, FAULT, *neutral, FAULT, *neutral):
        fitness.saw(outcome, 10.0)
    assert not fitness.fit


def test_after_a_rest_one_request_tries_the_engine() -> None:
    fitness = Fitness(1)
    fitness.saw(FAULT, 10.0)
    assert fitness.allowance(10.0 + REST_S - 0.1) == 0
    assert fitness.allowance(10.0 + REST_S) == 1
    fitness.saw(FAULT, 30.0)
    assert fitness.allowance(30.0) == 0
    fitness.saw(ANSWERED, 50.0)
    assert fitness.fit
    assert fitness.allowance(50.0) is None
