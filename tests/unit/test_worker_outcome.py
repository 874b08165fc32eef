"""Judgement of an engine's reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Status
from streamfleet.worker.engine.base import EngineReply
from streamfleet.worker.outcome import Finished, Outcome, Postponed, broken, cancelled, expired, judge, refused

ANSWER = {"choices": [{"finish_reason": "length"}], "usage": {"completion_tokens": 3}}


def judged(status: int, body: Any) -> Outcome:
    return judge(EngineReply(status, body if isinstance(body, bytes) else json.dumps(body).encode(), 7.5))


def failed(status: int, body: Any) -> tuple[Finished, dict[str, Any]]:
    outcome = judged(status, body)
    assert isinstance(outcome, Finished)
    assert outcome.status is Status.FAILED
    error = json.loads(outcome.error)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return outcome, error


def test_success_keeps_the_response_as_it_came() -> None:
    text = json.dumps(ANSWER).encode()
    assert judge(EngineReply(200, text, 7.5)) == Finished(
        Status.SUCCEEDED,
        200,
        response=text,
        finish_reason="length",
        usage={"completion_tokens": 3},
        first_token_ms=7.5,
        engine_ok=True,
    )


@pytest.mark.parametrize("body", [{"data": [1]}, {"choices": []}, {"choices": "x", "usage": 4}, {"choices": [None]}])
def test_success_without_choices_or_usage_is_a_success(body: Any) -> None:
    outcome = judged(200, body)
    assert isinstance(outcome, Finished)
    assert (outcome.status, outcome.finish_reason, outcome.usage) == (Status.SUCCEEDED, "", {})


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"\xff", b'"x"', b"1" * 5_000, b'{"x": NaN}'])
def test_a_success_that_is_no_object_is_the_engines_fault(body: bytes) -> None:
    outcome, error = failed(200, body)
    assert (outcome.http_status, outcome.engine_ok, error["code"]) == (500, False, "internal_error")


def test_an_error_under_status_200_is_an_error() -> None:
    outcome, error = failed(200, {"error": {"message": "bad", "type": "BadRequestError", "param": "seed", "code": 400}})
    assert (outcome.http_status, error) == (
        400,
        {"message": "seed: bad", "type": "BadRequestError", "param": "seed", "code": "400"},
    )


@pytest.mark.parametrize("status", [408, 409, 425, 429, 502, 503, 504])
def test_some_statuses_may_pass(status: int) -> None:
    outcome = judged(status, {"error": {"message": "later"}})
    assert outcome == Postponed(f"the engine answered {status}", said="later")
    assert isinstance(outcome, Postponed)
    assert outcome.whole == f"the engine answered {status}: later"


@pytest.mark.parametrize(("status", "engine_ok"), [(400, None), (404, None), (422, None), (500, False), (501, None)])
def test_other_errors_are_final(status: int, engine_ok: bool | None) -> None:
    outcome, error = failed(status, {"error": {"message": "no", "type": "t", "param": "p", "code": None}})
    assert (outcome.http_status, outcome.engine_ok) == (status, engine_ok)
    text = "p: no" if status < 500 else "no"
    assert error == {"message": text, "type": "t", "param": "p", "code": None}


@pytest.mark.parametrize(
    "body", [b"", b"Not found", {"detail": "Not found"}, {"error": "Not found"}, [], {"error": []}]
)
def test_errors_of_another_shape_get_the_openai_shape(body: Any) -> None:
    _, error = failed(404, body)
    assert error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_long_message_is_cut() -> None:
    _, error = failed(400, {"error": {"message": "x" * 100_000}})
    assert len(error["message"]) == 4_000


def test_what_never_reached_the_engine_says_nothing_about_it() -> None:
    for outcome in (refused(InvalidRequest("no", "n")), expired("before it could start"), cancelled()):
        assert outcome.engine_ok is None
    assert broken("a bug").engine_ok is False


def test_refusals_carry_the_field() -> None:
    outcome = refused(InvalidRequest("is wrong", "deadline"))
    assert (outcome.status, outcome.http_status) == (Status.FAILED, 400)
    assert json.loads(outcome.error)["error"]["param"] == "deadline"


def test_an_answer_nested_beyond_the_stack_is_judged_like_any_other() -> None:
    deep = b'{"choices":' + b"[" * 100_000
    assert failed(200, deep)[0].http_status == 500
    assert failed(400, deep)[1]["message"]


def test_a_finish_reason_that_no_utf_8_can_hold_is_stored_as_what_it_can() -> None:
    outcome = judged(200, b'{"choices":[{"finish_reason":"st\\ud800p"}]}')
    assert isinstance(outcome, Finished)
    assert (outcome.status, outcome.finish_reason) == (Status.SUCCEEDED, "st?p")
