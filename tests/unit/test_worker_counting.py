"""A worker's metrics of the requests that it ended, held against histories that are known."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY

from streamfleet.common import metrics
from streamfleet.common.broker.types import RetryCode
from streamfleet.common.errors import InvalidRequest, openai_error
from streamfleet.common.protocol import Status
from streamfleet.worker.counting import Tally, count_wasted, how_it_ended
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

NORMAL = {"lane": "normal", "status": "succeeded"}


class Growth:
    """Growth of the registry's samples since this was made; others may have counted before."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        samples = (sample for family in REGISTRY.collect() for sample in family.samples)
        return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}

    def of(self, name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return self._now().get(key, 0.0) - self._before.get(key, 0.0)

    def by_reason(self) -> dict[str, float]:
        grown = {reason.value: self.of("streamfleet_dead_letters_total", reason=reason) for reason in metrics.Reason}
        return {reason: number for reason, number in grown.items() if number}


@pytest.fixture
def growth() -> Growth:
    return Growth()


def tallied(*ended: tuple[Any, Finished], now: float = 103.0) -> None:
    tally = Tally(now)
    for one, outcome in ended:
        tally.finished(one, outcome)
    tally.close()


def success(**usage: Any) -> Finished:
    return Finished(Status.SUCCEEDED, 200, response=b"{}", usage=usage, first_token_ms=250.0, engine_ok=True)


def test_a_request_that_succeeded(growth: Growth) -> None:
    """Enqueued 0.5 s before its claim at 100 s, in the engine from 101 s, ended at 103 s, at its third attempt."""
    one = in_flight_request(attempt=3)
    one.started_at = 101.0
    tallied((one, success(prompt_tokens=7, completion_tokens=11)))
    assert growth.of("streamfleet_requests_finished_total", **NORMAL) == 1
    for name, seconds in (("total", 3.5), ("first_token", 0.25)):
        assert growth.of(f"streamfleet_{name}_seconds_sum", **NORMAL) == pytest.approx(seconds), name
        assert growth.of(f"streamfleet_{name}_seconds_count", **NORMAL) == 1, name
    assert growth.of("streamfleet_tokens_total", kind="prompt") == 7
    assert growth.of("streamfleet_tokens_total", kind="completion") == 11
    assert growth.by_reason() == {}


def test_prompt_tokens_from_the_prefix_cache(growth: Growth) -> None:
    tallied(
        (in_flight_request(1), success(prompt_tokens=70, prompt_tokens_details={"cached_tokens": 64})),
        (in_flight_request(2), success(input_tokens=70, input_tokens_details={"cached_tokens": 32})),
        (in_flight_request(3), success(prompt_tokens=70, prompt_tokens_details={"cached_tokens": None})),
        (in_flight_request(4), success(prompt_tokens=70, prompt_tokens_details={"cached_tokens": 10**400})),
        (in_flight_request(5), success(prompt_tokens=70, prompt_tokens_details=[64])),
    )
    assert growth.of("streamfleet_tokens_cached_total") == 96
    assert growth.of("streamfleet_tokens_total", kind="prompt") == 5 * 70, "whatever the endpoint calls them"


def test_a_batch_is_counted_by_lane_and_status(growth: Growth) -> None:
    tallied((in_flight_request(1), success()), (in_flight_request(2), success()), (in_flight_request(3), cancelled()))
    assert growth.of("streamfleet_requests_finished_total", **NORMAL) == 2
    assert growth.of("streamfleet_requests_finished_total", lane="normal", status="cancelled") == 1
    assert growth.by_reason() == {}, "a cancelled request leaves no dead letter"


ENGINES_OWN = openai_error("CUDA error", "server_error", None, "deadline_exceeded")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (expired("while it was running"), "deadline"),
        (refused(InvalidRequest("is not JSON", "body", "invalid_json")), "refused"),
        (refused(InvalidRequest("too much", "n", "too_expensive")), "too_expensive"),
        (refused(InvalidRequest("is off", "grammar", "not_allowed")), "not_allowed"),
        (broken("the worker could not handle the request"), "internal"),
        (Finished(Status.FAILED, 500, error=ENGINES_OWN), "engine"),
        (Finished(Status.FAILED, 404, error=openai_error("no such model", "x", None, None)), "refused"),
        (Finished(Status.FAILED, 400, error='{"error": {}}'), "refused"),
    ],
)
def test_dead_letters_have_one_of_a_few_reasons(growth: Growth, outcome: Finished, reason: str) -> None:
    tallied((in_flight_request(), outcome))
    assert growth.by_reason() == {reason: 1}


@pytest.mark.parametrize(
    ("code", "status", "reason"), [(RetryCode.DEAD, "dead", "engine"), (RetryCode.EXPIRED, "expired", "deadline")]
)
def test_one_that_is_given_up_instead_of_tried_again(growth: Growth, code: RetryCode, status: str, reason: str) -> None:
    tally = Tally(103.0)
    tally.given_up(in_flight_request(attempt=5), code)
    tally.close()
    labels = {"lane": "normal", "status": status}
    assert growth.of("streamfleet_requests_finished_total", **labels) == 1
    assert growth.of("streamfleet_total_seconds_sum", **labels) == pytest.approx(3.5)
    assert growth.by_reason() == {reason: 1}


def test_tokens_of_answers_that_nobody_got(growth: Growth) -> None:
    count_wasted(success(completion_tokens=40), "lease_lost")
    count_wasted(success(completion_tokens=-1), "lease_lost")
    count_wasted(success(completion_tokens=10**400), "lease_lost")
    count_wasted(success(completion_tokens="many"), "ended_before")
    assert growth.of("streamfleet_tokens_wasted_total", reason="lease_lost") == 40
    assert growth.of("streamfleet_tokens_wasted_total", reason="ended_before") == 0


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (success(), "succeeded"),
        (expired(""), "expired"),
        (Postponed("later"), "postponed"),
        (HandedBack(), "released"),
        (Gone(), "lost"),
    ],
)
def test_how_an_attempt_ended(outcome: Outcome, said: str) -> None:
    assert how_it_ended(outcome) == said


def test_the_build_says_its_versions() -> None:
    metrics.describe_build()
    labels = next(sample.labels for family in metrics.BUILD.collect() for sample in family.samples)
    assert set(labels) == {"version", "python", "vllm"}
    assert labels["python"].startswith("3.")
