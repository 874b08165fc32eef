"""The circuit breaker: when a worker leaves the queue, when it tries again, and how it treats an engine's 500s."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from streamfleet.common.broker.types import Claim
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
from tests.unit.worker_requests import in_flight_request

FAULT = Postponed("the engine answered 503: busy")
ERROR = Finished(Status.FAILED, 500, error=openai_error("CUDA error", "server_error", None, None), engine_ok=False)
ANSWERED = Finished(Status.SUCCEEDED, 200, engine_ok=True)
NUMBERS = itertools.count()
NEUTRAL: tuple[Outcome, ...] = (
    refused(InvalidRequest("no", "n")),
    Finished(Status.FAILED, 422),
    expired("late"),
    cancelled(),
    HandedBack(),
    Gone(),
)


def claim(number: int = 1, tenant: str = "", attempt: int = 1) -> Claim:
    """A request of its own body; of nobody unless its tenant is named."""
    body = {"messages": [{"content": str(number)}]}
    if not tenant:
        return in_flight_request(number, body, attempt=attempt).claim
    return in_flight_request(number, body, attempt=attempt, tenant=tenant.encode()).claim


def weighed(
    breaker: CircuitBreaker, *outcomes: Outcome, tenants: str = "ab", attempt: int = 1, now: float = 10.0
) -> list[Outcome]:
    """Outcomes of requests that these tenants send by turns, each with a body of its own."""
    claims = [claim(next(NUMBERS), tenants[number % len(tenants)], attempt) for number in range(len(outcomes))]
    return [breaker.weigh(outcome, each, now) for outcome, each in zip(outcomes, claims, strict=True)]


def state(breaker: CircuitBreaker) -> tuple[bool, bool, int | None]:
    """Fit, in question, most requests to hold."""
    return breaker.fit, breaker.in_question, breaker.allowance


def unfit(now: float = 10.0) -> CircuitBreaker:
    breaker = CircuitBreaker(2)
    weighed(breaker, FAULT, FAULT, now=now)
    assert not breaker.fit
    return breaker


@pytest.mark.parametrize("fault", [FAULT, ERROR, broken("a bug")])
@pytest.mark.parametrize("most", [2, 3, 4, 5, 20, 21])
def test_faults_of_several_tenants_in_a_row_make_unfit(fault: Outcome, most: int) -> None:
    breaker = CircuitBreaker(most)
    weighed(breaker, *[fault] * (most - 1))
    assert state(breaker) == (True, False, None)
    weighed(breaker, fault, tenants="ba"[most % 2])
    assert state(breaker) == (False, False, 0)
    assert not breaker.wants_probe(10.0)
    assert breaker.last_fault in ("the engine answered 500", "the engine answered 503: busy")


@pytest.mark.parametrize("fault", [FAULT, ERROR, broken("a bug")])
@pytest.mark.parametrize("tenants", ["a", "", "aaaaaaaab"])
def test_faults_of_one_tenant_are_for_the_probe_to_judge(fault: Outcome, tenants: str) -> None:
    """Also if one of ten is another's own."""
    breaker = CircuitBreaker(18)
    claims = [claim(number, tenants[number % len(tenants)] if tenants else "") for number in range(100)]
    for number, each in enumerate(claims, 1):
        breaker.weigh(fault, each, 10.0)
        assert state(breaker) == (True, number >= 18, None)
        assert breaker.wants_probe(10.0) == (number >= 18)


def test_one_body_of_two_tenants_is_for_the_probe_to_judge() -> None:
    breaker = CircuitBreaker(4)
    for tenant in "abab":
        breaker.weigh(ERROR, claim(1, tenant), 10.0)
    assert state(breaker) == (True, True, None)


def test_a_probe_that_succeeds_starts_over() -> None:
    breaker = CircuitBreaker(3)
    for _ in range(5):
        assert weighed(breaker, ERROR, ERROR, tenants="a")[0] == ERROR, "no doubt is left of the engine"
        assert state(breaker) == (True, False, None)
        weighed(breaker, ERROR, tenants="a")
        assert state(breaker) == (True, True, None)
        breaker.probed(True, 10.0)
        assert state(breaker) == (True, False, None)


@pytest.mark.parametrize("fault", [FAULT, ERROR])
def test_where_probes_are_refused_one_tenant_rests_no_worker(fault: Outcome) -> None:
    breaker = CircuitBreaker(3)
    for _ in range(5):
        weighed(breaker, fault, fault, tenants="a")
        assert state(breaker) == (True, False, None), "it counts anew"
        weighed(breaker, fault, tenants="a")
        assert state(breaker) == (True, True, None)
        breaker.probed(None, 10.0)
        assert state(breaker) == (True, False, None)
    weighed(breaker, ERROR, FAULT, FAULT)
    assert state(breaker) == (False, False, 0), "several do"


@pytest.mark.parametrize("claims", [[claim(1, str(number)) for number in range(2_000)]], ids=["tenants"])
def test_what_is_counted_while_a_probe_runs_is_bounded(claims: list[Claim]) -> None:
    tenants, bodies = CircuitBreaker(1), CircuitBreaker(1)
    for number, each in enumerate(claims):
        tenants.weigh(FAULT, each, 10.0)
        bodies.weigh(FAULT, claim(number, "a"), 10.0)
    assert (tenants.in_question, bodies.in_question) == (True, True)
    assert len(tenants._faults) < 300
    assert len(bodies._bodies) < 10


@pytest.mark.parametrize("fault", [FAULT, ERROR, broken("a bug")])
def test_a_late_fault_prolongs_no_rest(fault: Outcome) -> None:
    breaker = unfit(10.0)
    weighed(breaker, *[fault] * 9, now=10.0 + REST_S - 1)
    assert not breaker.wants_probe(10.0 + REST_S - 0.1)
    assert breaker.wants_probe(10.0 + REST_S)


@pytest.mark.parametrize("works", [False, None])
def test_a_probe_counts_for_nothing_once_a_request_has_succeeded(works: bool | None) -> None:
    breaker = CircuitBreaker(1)
    weighed(breaker, ERROR, ANSWERED, tenants="a")
    breaker.probed(works, 10.0)
    assert breaker.fit


def test_what_says_nothing_about_the_engine_changes_nothing() -> None:
    """Refusals too: a front end refuses wrong requests also while the engine behind it is broken."""
    breaker = CircuitBreaker(2)
    given = (*NEUTRAL, FAULT, *NEUTRAL, FAULT, *NEUTRAL)
    assert weighed(breaker, *given) == list(given)
    assert not breaker.fit


def test_where_probes_are_refused_one_request_tries_the_engine() -> None:
    breaker = unfit(10.0)
    breaker.probed(None, 10.0 + REST_S)
    assert state(breaker) == (False, False, 1)
    assert not breaker.wants_probe(1_000.0)
    weighed(breaker, ERROR, tenants="a", attempt=3, now=20.0)
    assert state(breaker) == (False, False, 1), "it may be this request's own fault"
    weighed(breaker, ERROR, tenants="b", attempt=3, now=30.0)
    assert state(breaker) == (False, False, 0)
    assert not breaker.wants_probe(30.0 + REST_S - 0.1)
    breaker.probed(None, 30.0 + REST_S)
    weighed(breaker, ANSWERED, now=50.0)
    assert state(breaker) == (True, False, None)


@pytest.mark.parametrize("fault", [FAULT, ERROR])
def test_one_tenant_keeps_no_worker_from_trying_others(fault: Outcome) -> None:
    """Nor does it use up its own queue on an engine that is broken."""
    breaker = CircuitBreaker(20)
    weighed(breaker, *[FAULT] * 20)
    for now in (40.0, 80.0):
        breaker.probed(None, now)
        weighed(breaker, *[fault] * 19, tenants="a", attempt=2, now=now)
        assert state(breaker) == (False, False, 1)
        weighed(breaker, fault, tenants="a", now=now)
        assert state(breaker) == (False, False, 0)
    breaker.probed(None, 120.0)
    weighed(breaker, fault, fault, tenants="a")
    weighed(breaker, ANSWERED, tenants="b")
    assert state(breaker) == (True, False, None)


def test_a_500_of_an_engine_that_works_is_the_requests_own() -> None:
    assert weighed(CircuitBreaker(20), ANSWERED, ERROR, ANSWERED, ERROR) == [ANSWERED, ERROR, ANSWERED, ERROR]


def test_a_500_after_another_fault_is_tried_again() -> None:
    again = Postponed("the engine answered 500", said="CUDA error")
    assert weighed(CircuitBreaker(20), ERROR, ERROR, *NEUTRAL, ERROR) == [ERROR, again, *NEUTRAL, again]
    assert weighed(CircuitBreaker(20), FAULT, ERROR) == [FAULT, again]
    assert weighed(CircuitBreaker(20), FAULT, replace(ERROR, held=70.0)) == [FAULT, replace(again, held=70.0)]


def test_a_request_that_breaks_every_engine_counts_against_the_first_one_only() -> None:
    fleet = [CircuitBreaker(1) for _ in range(5)]
    for attempt, breaker in enumerate(fleet, 1):
        weighed(breaker, ERROR, attempt=attempt)
    assert [breaker.in_question for breaker in fleet] == [True, False, False, False, False]


def test_one_hang_is_enough() -> None:
    breaker = CircuitBreaker(20)
    weighed(breaker, Postponed("it hangs", engine_hangs=True))
    assert not breaker.fit
    assert breaker.last_fault == "it hangs"


def test_two_faults_of_several_send_a_worker_that_tries_one_request_back_to_rest() -> None:
    breaker = CircuitBreaker(20)
    breaker._rest(10.0)
    breaker.probed(None, 10.0 + REST_S)
    assert state(breaker) == (False, False, 1)
    weighed(breaker, FAULT, now=30.0)
    assert state(breaker) == (False, False, 1)
    weighed(breaker, FAULT, tenants="b", now=30.0)
    assert (state(breaker), breaker.wants_probe(30.0)) == ((False, False, 0), False)


def test_tenants_that_are_counted_stay_apart_however_many_there_are() -> None:
    """Beyond those that are counted, all others are one."""
    breaker = CircuitBreaker(656)
    for number in range(256):
        breaker.weigh(FAULT, claim(number, f"t{number}"), 10.0)
    for number in range(400):
        breaker.weigh(FAULT, claim(number, f"t{number % 2}"), 10.0)
    assert state(breaker) == (False, False, 0)
