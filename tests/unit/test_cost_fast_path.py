"""The short way through admission: whatever it lets pass, the long way lets pass too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import CHAT, COMPLETIONS
from streamfleet.worker.cost.check import check_cost, checked_demand, is_plain
from streamfleet.worker.cost.limits import CostLimits
from streamfleet.worker.credit import Demand, estimate

LONGEST = 256
LIMITS = CostLimits(max_messages=4, max_values=40)
TEXT = st.text(max_size=40) | st.sampled_from(["data:x", "http://a/b", "x" * 5_000, "é" * 900])
SCALAR = st.none() | st.booleans() | st.integers(-2, 2_000) | st.floats() | TEXT
MESSAGE = st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "image_url"]), TEXT | SCALAR, max_size=3)
PLAIN_MESSAGE = st.fixed_dictionaries({"role": TEXT, "content": TEXT})
NAMES = st.sampled_from(
    (
        *("model", "max_tokens", "max_completion_tokens", "temperature", "n", "best_of", "logprobs", "echo", "tools"),
        *(
            "user",
            "min_tokens",
            "prompt_logprobs",
            "chat_template",
            "guided_regex",
            "prompt",
            "use_beam_search",
            "seed",
        ),
    )
)
BODY = st.builds(
    lambda options, talk: {**options, **talk},
    st.dictionaries(NAMES, SCALAR | st.lists(SCALAR, max_size=3), max_size=4),
    st.fixed_dictionaries({}, optional={"messages": st.lists(PLAIN_MESSAGE | MESSAGE, max_size=6), "prompt": TEXT}),
)


@given(BODY, st.sampled_from([CHAT, COMPLETIONS, "/v1/embeddings"]))
@example({"messages": [{"role": "user", "content": "hi"}], "max_tokens": LONGEST + 1}, CHAT)
@example({"messages": [{"role": "user", "content": "x" * (16 * LONGEST + 1)}]}, CHAT)
@example({"messages": [{"role": "user", "content": "hi"}] * 5}, CHAT)
@example({"prompt": "hi", "max_tokens": True}, COMPLETIONS)
@example({"prompt": "hi", "n": 33}, COMPLETIONS)
def test_what_is_plain_passes_every_check(body: dict[str, Any], endpoint: str) -> None:
    size = len(json.dumps(body, ensure_ascii=False).encode(errors="replace"))
    if is_plain(body, size, LIMITS, LONGEST, endpoint):
        check_cost(body, LIMITS, LONGEST, endpoint)
        assert checked_demand(body, size, LIMITS, LONGEST, endpoint) == estimate(body, size, LONGEST, endpoint)


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, "temperature": 0.5, "model": "m"}, CHAT),
        ({"prompt": "hi", "max_tokens": 16, "seed": 1, "ignore_eos": True}, COMPLETIONS),
    ],
)
def test_ordinary_bodies_are_plain(body: dict[str, Any], endpoint: str) -> None:
    assert is_plain(body, 60, LIMITS, LONGEST, endpoint)
    assert checked_demand(body, 60, LIMITS, LONGEST, endpoint) == Demand(1, 60 // 4 + 16)


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({"prompt": "x" * 5_000}, 5_013),
        ({"prompt": "hi", "max_tokens": LONGEST + 1}, 60),
        ({"prompt": "hi", "tools": []}, 60),
        ({"prompt": ["hi"]}, 60),
        ({"messages": [{"role": "user", "content": "hi"}]}, 60),
        ({}, 2),
    ],
)
def test_all_else_is_looked_at_closely(body: dict[str, Any], size: int) -> None:
    assert not is_plain(body, size, LIMITS, LONGEST, COMPLETIONS)


def test_what_is_refused_is_refused_the_long_way() -> None:
    with pytest.raises(InvalidRequest, match="at most 256"):
        checked_demand({"prompt": "hi", "max_tokens": 257}, 60, LIMITS, LONGEST, COMPLETIONS)
