"""What a request may cost, and what of its body the engine gets."""

from __future__ import annotations

from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.worker.admission import CostLimits, check_cost, for_engine

LIMITS = CostLimits(max_sequences=4, max_grammar_bytes=100)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 5}, "n"),
        ({"n": 4.5}, "n"),
        ({"n": float("inf")}, "n"),
        ({"n": 10**400}, "n"),
        ({"best_of": 5}, "best_of"),
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": ["a", "b"], "n": 3}, "prompt"),
        ({"input": ["a"] * 2_049}, "input"),
        ({"text_2": ["a"] * 2_049}, "text_2"),
        ({"query": "a", "documents": ["a"] * 2_049}, "documents"),
        ({"response_format": {"schema": "x" * 100}}, "response_format"),
        ({"structured_outputs": {"regex": "x" * 100}}, "structured_outputs"),
        ({"guided_regex": "x" * 100}, "guided_regex"),
        ({"guided_json": nested(100_000)}, "guided_json"),
    ],
)
def test_too_much_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_cost(body, LIMITS)
    assert refusal.value.param == param
    assert len(refusal.value.message) < 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 4},
        {"n": "5"},
        {"n": None},
        {"n": -7},
        {"prompt": [1] * 1_000},
        {"prompt": ["a", "b"], "n": 2},
        {"input": ["a"] * 2_048},
        {"input": [1] * 3_000},
        {"guided_regex": "x" * 90},
        {"response_format": None},
    ],
)
def test_what_is_allowed_or_the_engines_to_check_passes(body: dict[str, Any]) -> None:
    check_cost(body, LIMITS)


def test_the_workers_own_business_stays_with_the_worker() -> None:
    body = {"messages": [], "stream": True, "stream_options": {}, "priority": 1, "request_id": "x", "seed": 1}
    assert for_engine(body) == {"messages": [], "seed": 1}
    assert body["stream"] is True
