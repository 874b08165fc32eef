"""How many requests to pull: sequences, KV tokens, prefetch, caps."""

from __future__ import annotations

import pytest

from streamfleet.worker.credit import MOST_TOKENS, Demand, Load, Typical, credit, estimate, output_tokens, sequences
from streamfleet.worker.engine.base import Capacity

FREE = Load()


def room(capacity: Capacity, load: Load = FREE, *, typical: float = 100, prefetch: int = 0, most: int = 0) -> int:
    return credit(capacity, load, typical_tokens=typical, prefetch=prefetch, most=most)


def test_free_slots_and_the_prefetch() -> None:
    assert room(Capacity(8), prefetch=2) == 10
    assert room(Capacity(8), Load(3, 3, 0), prefetch=2) == 7
    assert room(Capacity(8), Load(10, 10, 0), prefetch=2) == 0
    assert room(Capacity(8), Load(1, 40, 0), prefetch=2) == 0


def test_a_cap_counts_requests_and_includes_the_prefetch() -> None:
    assert room(Capacity(8), prefetch=2, most=3) == 3
    assert room(Capacity(8), Load(2, 6, 0), prefetch=2, most=3) == 1
    assert room(Capacity(2), prefetch=0, most=9) == 2


def test_kv_tokens_limit_as_well() -> None:
    assert room(Capacity(8, kv_tokens=450)) == 4
    assert room(Capacity(8, kv_tokens=450), Load(1, 1, 200)) == 2
    assert room(Capacity(8, kv_tokens=450), Load(1, 1, 900)) == 0


def test_an_idle_engine_takes_one_however_large() -> None:
    assert room(Capacity(8, kv_tokens=450), typical=10_000) == 1
    assert room(Capacity(8, kv_tokens=450), Load(1, 1, 1), typical=10_000) == 0


def test_a_typical_request_of_no_tokens_divides_by_nothing() -> None:
    assert room(Capacity(8, kv_tokens=450), typical=0) == 8


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 256),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9),
        ({"max_output_tokens": 5}, 5),
        ({"max_tokens": "7"}, 7),  # as engines read it
        ({"max_tokens": "many"}, 256),
        ({"max_tokens": True}, 256),
        ({"max_tokens": -1}, 256),
        ({"max_tokens": None}, 256),
    ],
)
def test_output_tokens_go_by_the_bodys_own_limit(body: dict[str, object], expected: int) -> None:
    assert output_tokens(body, 256) == expected


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
