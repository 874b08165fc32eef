"""Number of requests to pull: sequences, KV tokens, prefetch, caps."""

from __future__ import annotations

import pytest

from streamfleet.common.numbers import MOST_TOKENS, sequences
from streamfleet.common.protocol import CHAT, EMBEDDINGS
from streamfleet.worker.credit import (
    LEAST_RATIO,
    MOST_RATIO,
    Demand,
    Load,
    Typical,
    credit,
    estimate,
    inputs,
    within,
)
from streamfleet.worker.engine.base import Capacity

FREE = Load()


def room(capacity: Capacity, load: Load = FREE, *, typical: float = 100, prefetch: int = 0, most: int = 0) -> int:
    return credit(capacity, load, typical_tokens=typical, prefetch=prefetch, most=most)


def test_a_cap_counts_requests_and_includes_the_prefetch() -> None:
    assert room(Capacity(8), prefetch=2, most=3) == 3
    assert room(Capacity(8), Load(2, 6, 0), prefetch=2, most=3) == 1
    assert room(Capacity(2), prefetch=0, most=9) == 2


def test_an_idle_engine_takes_one_however_large() -> None:
    assert room(Capacity(8, kv_tokens=450), typical=10_000) == 1
    assert room(Capacity(8, kv_tokens=450), Load(1, 1, 1), typical=10_000) == 0


def test_a_typical_request_of_no_tokens_divides_by_nothing() -> None:
    assert room(Capacity(8, kv_tokens=450), typical=0) == 8


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": 0}, 1),
        ({"n": True}, 1),
        ({"n": 2.0}, 2),
        ({"n": "3"}, 3),
        ({"n": "x"}, 1),
        ({"prompt": "x"}, 1),
        ({"prompt": ["x", "y"], "n": 3}, 6),
        ({"prompt": []}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
    ],
)
def test_sequences_are_choices_times_prompts(body: dict[str, object], expected: int) -> None:
    assert sequences(body) == expected


def test_an_estimate_is_prompt_and_output() -> None:
    assert estimate({"max_tokens": 10}, 400, None) == Demand(1, 110)
    assert estimate({"max_tokens": 10, "n": 4}, 400, None) == Demand(4, 140)


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (EMBEDDINGS, {}, 1),
        (EMBEDDINGS, {"input": "x"}, 1),
        (EMBEDDINGS, {"input": []}, 1),
        (EMBEDDINGS, {"input": ["x"] * 2_048}, 2_048),
        (EMBEDDINGS, {"input": [1, 2, 3]}, 1),
        (EMBEDDINGS, {"input": [[1, 2], [3]]}, 2),
        (EMBEDDINGS, {"input": "x", "documents": ["y"] * 9}, 1),
        ("/pooling", {"input": [{"role": "user", "content": "x"}] * 3}, 1),
        ("/pooling", {"messages": [{"role": "user", "content": "x"}] * 3}, 1),
        (EMBEDDINGS, {"messages": [[{"role": "user", "content": "x"}]] * 3}, 3),
        ("/classify", {"input": ["x", "y"]}, 2),
        ("/v1/score", {"text_1": "x", "text_2": ["y"] * 5}, 5),
        ("/v1/score", {"queries": ["x"] * 4, "documents": ["y"] * 4}, 4),
        ("/v1/rerank", {"query": "x", "documents": [{"content": []}, {"content": []}]}, 2),
    ],
)
def test_each_input_is_a_sequence_where_nothing_is_generated(
    endpoint: str, body: dict[str, object], expected: int
) -> None:
    assert inputs(body, endpoint) == expected
    assert estimate(body, 400, None, endpoint).sequences == expected


def test_what_generates_nothing_asks_for_its_prompts_alone() -> None:
    assert estimate({"input": ["x"] * 10, "max_tokens": 9}, 400, None, EMBEDDINGS) == Demand(10, 100)
    assert estimate({"input": ["x"] * 10}, 400, None, CHAT) == Demand(1, 100 + 256)


def test_a_query_is_read_with_each_document() -> None:
    body = {"query": "q" * 40, "documents": ["d" * 40] * 10}
    assert estimate(body, 440, None, "/v1/rerank") == Demand(10, 200)


def test_of_more_sequences_than_slots_those_that_run_together_count() -> None:
    assert within(Demand(2_048, 40_960), 256) == Demand(256, 5_120)
    assert within(Demand(8, 100), 8) == Demand(8, 100)


def test_one_odd_prompt_corrects_little_and_no_count_nothing() -> None:
    typical = Typical()
    typical.counted(Demand(prompt=10), None)
    typical.counted(Demand(prompt=10), 0)
    typical.counted(Demand(prompt=0), 1_000)
    assert typical.prompt_ratio == 1
    typical.counted(Demand(prompt=10), 40)
    assert 1 < typical.prompt_ratio < 1.01


@pytest.mark.parametrize(("told", "ratio"), [(10**400, MOST_RATIO), (1, LEAST_RATIO)])
def test_the_correction_is_bounded_whatever_an_engine_says(told: int, ratio: float) -> None:
    typical = Typical()
    for _ in range(200):
        typical.counted(Demand(prompt=1_000), told)
    assert typical.prompt_ratio == ratio


def test_no_claim_goes_beyond_what_the_engine_can_hold_in_one_sequence() -> None:
    assert estimate({"max_tokens": 10**400, "n": 2}, 400, 2_048) == Demand(2, 4_096)
    assert estimate({"max_tokens": 10**400}, 400, None) == Demand(1, MOST_TOKENS)
    assert estimate({}, 10**9, 2_048).tokens == 2_048


def test_the_first_demands_replace_the_guess_and_later_ones_move_it_slowly() -> None:
    typical = Typical()
    assert typical.tokens == Demand().tokens
    typical.saw(Demand(1, 100))
    assert typical.tokens == 100
    for _ in range(100):
        typical.saw(Demand(1, 100))
    typical.saw(Demand(1, 1_100))
    assert 100 < typical.tokens < 200


def test_output_without_a_limit_is_learnt_for_each_choice() -> None:
    typical = Typical()
    typical.generated(None, 1)
    assert typical.output == 256
    typical.generated(60, 2)
    assert typical.output == 30
    for _ in range(200):
        typical.generated(100, 1)
    assert typical.output == pytest.approx(100, rel=0.01)
    usual = round(typical.output)
    assert estimate({"n": 2}, 400, None, CHAT, 1.0, usual).tokens == 100 + 2 * usual
    assert estimate({"max_tokens": 7}, 400, None, CHAT, 1.0, usual).tokens == 107


def test_the_pace_follows_an_engine_that_becomes_slower() -> None:
    typical = Typical()
    for run_s in (1.0, 10.0):
        for _ in range(3_000):
            typical.took(run_s, 100, 1)
    assert typical.made_in(10.0, 3_000, 1) == pytest.approx(100, rel=0.15)


def test_each_choice_is_written_for_its_time() -> None:
    typical = Typical()
    for _ in range(20):
        typical.took(2.0, 400, 4)
    assert typical.made_in(4.0, 3_000, 1) == pytest.approx(200)
    assert typical.made_in(4.0, 3_000, 2) == pytest.approx(400)
    assert typical.made_in(400.0, 3_000, 2) == 6_000
