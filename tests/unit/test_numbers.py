"""Limits of output as engines take them: which field counts, and what its value is."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from streamfleet.common import jsontext
from streamfleet.common.numbers import DEFAULT_COMPLETION, MOST_TOKENS, OUTPUT_LIMITS, output_limit
from streamfleet.common.protocol import CHAT, COMPLETIONS, ENDPOINTS, MESSAGES, RESPONSES
from streamfleet.worker.cost.check import for_engine
from streamfleet.worker.cost.limits import CostLimits
from streamfleet.worker.credit import estimate

WRITING = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


class Read(BaseModel):
    """Reads a number as the fields of vLLM's requests do."""

    limit: int


@pytest.mark.parametrize(
    ("endpoint", "text", "limit"),
    [
        (CHAT, '{"max_tokens": 8, "max_completion_tokens": 800}', 800),
        (CHAT, '{"max_completion_tokens": 8, "max_tokens": 800}', 8),
        (CHAT, '{"max_completion_tokens": null, "max_tokens": 800}', 800),
        (CHAT, '{"max_tokens": 8, "max_tokens": 800}', 800),
        (CHAT, '{"max_tokens": 8, "max_tok\\u0065ns": 800}', 800),
        (CHAT, '{"max_tokens": 800, "metadata": {"max_tokens": 8}}', 800),
        (CHAT, '{"max_output_tokens": 8}', None),
        (CHAT, "{}", None),
        (COMPLETIONS, '{"max_completion_tokens": 8, "max_tokens": 800}', 800),
        (COMPLETIONS, '{"max_completion_tokens": 800}', DEFAULT_COMPLETION),
        (COMPLETIONS, '{"max_tokens": null}', None),
        (RESPONSES, '{"max_output_tokens": 800, "max_tokens": 8}', 800),
        (RESPONSES, '{"max_tokens": 8}', None),
    ],
)
def test_the_limit_is_that_of_the_field_which_the_engine_takes(endpoint: str, text: str, limit: int | None) -> None:
    body = jsontext.parse(text)
    assert output_limit(body, endpoint) == limit
    assert estimate(body, 0, None, endpoint, usual_output=256).tokens == (256 if limit is None else limit)


@pytest.mark.parametrize(
    "value",
    [
        1,
        800,
        True,
        "2000",
        " 2000 ",
        "2_000",
        "+5",
        "00012",
        2.0,
        1e3,
        "2.0",
        "2.00",
        "12\n",
        "9" * 30,
        10**40,
        10**400,
    ],
)
@pytest.mark.parametrize("endpoint", WRITING)
def test_a_limit_is_the_number_that_the_engine_reads(endpoint: str, value: Any) -> None:
    name = {CHAT: "max_completion_tokens", COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens"}.get(
        endpoint, "max_tokens"
    )
    assert output_limit({name: value}, endpoint) == min(Read(limit=value).limit, MOST_TOKENS)


@pytest.mark.parametrize("value", ["many", "1e400", -1, "-1", [8], {"a": 8}, "9" * 500, ""])
def test_what_is_no_number_is_no_limit(value: Any) -> None:
    assert output_limit({"max_tokens": value}, CHAT) is None


@pytest.mark.parametrize("value", [0, False, "0", 0.0])
def test_a_limit_of_nothing_counts_as_one(value: Any) -> None:
    assert Read(limit=value).limit == 0
    assert output_limit({"max_tokens": value}, COMPLETIONS) == 1


@pytest.mark.parametrize("endpoint", sorted(ENDPOINTS - set(WRITING)))
def test_what_generates_nothing_is_limited_to_nothing(endpoint: str) -> None:
    assert output_limit(dict.fromkeys(OUTPUT_LIMITS, 800), endpoint) == 0


def test_an_engine_gets_one_limit() -> None:
    """A server that knows the older name alone, or prefers it, takes the same limit as vLLM."""
    body = {"messages": [], "max_tokens": 800, "max_completion_tokens": 8}
    assert for_engine(body, CHAT) == {"messages": [], "max_tokens": 8, "max_completion_tokens": 8}
    assert body["max_tokens"] == 800
    alone = {"messages": [], "max_tokens": 800, "max_completion_tokens": None}
    assert for_engine(alone, CHAT) == alone


@pytest.mark.parametrize("name", ["max_output_tokens", "max_length"])
def test_a_limit_that_the_engine_ignores_does_not_replace_the_cap(name: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], name: 8, "n": 4}
    assert for_engine(body, CHAT, CostLimits(max_output_tokens=400), 4_096)["max_tokens"] == 100
