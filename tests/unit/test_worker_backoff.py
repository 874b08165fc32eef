"""Delays before a retry: they double, are capped, and spread over their upper half."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamfleet.worker.complete import backoff_ms


def test_delays_double_up_to_the_longest() -> None:
    assert [backoff_ms(attempt, 100, 1_000, 0.999_999) for attempt in (1, 2, 3, 4, 5, 60)] == [
        99,
        199,
        399,
        799,
        999,
        999,
    ]


def test_half_of_a_delay_is_certain() -> None:
    assert backoff_ms(3, 100, 1_000, 0.0) == 200


@given(
    attempt=st.integers(1, 10_000),
    base=st.integers(1, 10**6),
    longest=st.integers(1, 10**7),
    random=st.floats(0, 0.999),
)
def test_a_delay_is_never_longer_than_the_longest(attempt: int, base: int, longest: int, random: float) -> None:
    assert 0 <= backoff_ms(attempt, base, longest, random) <= longest
