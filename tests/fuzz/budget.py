"""Number of examples of a test: the same few in every ordinary run, many random ones in a long one.

`pytest tests/fuzz --hypothesis-profile=fuzz-long` is the long one: fifty times as many, new ones each time.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

LONG = "fuzz-long"
TIMES, OF = 50, 2
"""A long run has so many times the examples, an ordinary run one of so many."""

settings.register_profile(LONG)


def examples(count: int) -> settings:
    """Settings for so many examples in an ordinary run."""
    long = settings.get_current_profile_name() == LONG
    return settings(
        max_examples=count * TIMES if long else count // OF,
        derandomize=not long,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )
