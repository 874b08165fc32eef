"""The circuit breaker: when a worker leaves the queue, when it tries again, and how it treats an engine's 500s."""

from __future__ import annotations

import pytest

from streamfleet.common.errors import InvalidRequest, openai_error
from streamfleet.common.protocol import Status
from streamfleet.worker.containment import REST_S, CircuitBreaker
from streamfleet.worker.outcome import (
    Finished,
    Gone,
    HandedBack,
    Outcome,
    Postponed,
    broken,
    cancelled,
    expired,
    refused,
)

FAULT = Postponed("the engine answered 503: busy")
ERROR = Finished(Status.FAILED, 500, error=openai_error("CUDA error", "server_error", None, None), engine_ok=False)
ANSWERED = Finished(Status.SUCCEEDED, 200, engine_ok=True)
NEUTRAL: tuple[Outcome, ...] = (
    refused(InvalidRequest("no", "n")),
    Finished(Status.FAILED, 422),
    expired("late"),
    cancelled(),
    HandedBack(),
    Gone(),
)


def weighed(breaker: CircuitBreaker, *outcomes: Outcome, attempt: int = 1, now: float = 10.0) -> list[Outcome]:
    return [breaker.weigh(outcome, attempt, now) for outcome in outcomes]


@pytest.mark.parametrize("fault", [FAULT, ERROR])
def test_faults_in_a_row_make_unfit(fault: Outcome) -> None:
    breaker = CircuitBreaker(3)
    weighed(breaker, fault, fault)
    assert (breaker.fit, breaker.allowance(10.0)) == (True, None)
    weighed(breaker, broken("a bug"))
    assert (breaker.fit, breaker.allowance(10.0)) == (False, 0)
    assert breaker.last_fault == "the engine answered 500"


def test_a_success_between_starts_over() -> None:
    breaker = CircuitBreaker(2)
    assert weighed(breaker, FAULT, ANSWERED, FAULT) == [FAULT, ANSWERED, FAULT]
    assert breaker.fit


def test_what_says_nothing_about_the_engine_changes_nothing() -> None:
    """Refusals too: a front end refuses wrong requests also while the engine behind it is broken."""
    breaker = CircuitBreaker(2)
    given = (*NEUTRAL, FAULT, *NEUTRAL, FAULT, *NEUTRAL)
    assert weighed(breaker, *given) == list(given)
    assert not breaker.fit


def test_after_a_rest_one_request_tries_the_engine() -> None:
    breaker = CircuitBreaker(1)
    weighed(breaker, FAULT, now=10.0)
    assert breaker.allowance(10.0 + REST_S - 0.1) == 0
    assert breaker.allowance(10.0 + REST_S) == 1
    weighed(breaker, ERROR, attempt=3, now=30.0)
    assert breaker.allowance(30.0) == 0
    weighed(breaker, ANSWERED, now=50.0)
    assert breaker.fit
    assert breaker.allowance(50.0) is None


def test_a_500_of_an_engine_that_works_is_the_requests_own() -> None:
    assert weighed(CircuitBreaker(20), ANSWERED, ERROR, ANSWERED, ERROR) == [ANSWERED, ERROR, ANSWERED, ERROR]


def test_a_500_after_another_fault_is_tried_again() -> None:
    again = Postponed("the engine answered 500", said="CUDA error")
    assert weighed(CircuitBreaker(20), ERROR, ERROR, *NEUTRAL, ERROR) == [ERROR, again, *NEUTRAL, again]
    assert weighed(CircuitBreaker(20), FAULT, ERROR) == [FAULT, again]


def test_a_request_that_breaks_every_engine_counts_against_the_first_one_only() -> None:
    fleet = [CircuitBreaker(1) for _ in range(5)]
    for attempt, breaker in enumerate(fleet, 1):
        weighed(breaker, ERROR, attempt=attempt)
    assert [breaker.fit for breaker in fleet] == [False, True, True, True, True]


def test_one_hang_is_enough() -> None:
    breaker = CircuitBreaker(20)
    weighed(breaker, Postponed("it hangs", engine_hangs=True))
    assert not breaker.fit
    assert breaker.last_fault == "it hangs"
