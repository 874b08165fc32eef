"""Sizes of the measurement of batching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Sizes of one measurement.

    Attributes:
        rounds: number of rounds of everything.
        batches: requests in a run, by batch size.
        tokens: tokens of each answer if all are alike.
        mixed_tokens: lengths that answers are drawn from otherwise.
        mixed_requests: requests in a run with mixed lengths.
        mixed_size: batch size of both policies with mixed lengths.
        targets: targets of the adaptive limit, as multiples of the run time of a request alone.
        adaptive_requests: requests in a run with the adaptive limit.
    """

    rounds: int
    batches: Mapping[int, int]
    tokens: int
    mixed_tokens: tuple[int, ...]
    mixed_requests: int
    mixed_size: int
    targets: tuple[float, ...]
    adaptive_requests: int


PROMPT_WORDS = (8, 16, 32)
QUICK_SIZES = Sizes(
    rounds=1,
    batches={1: 6, 8: 16, 32: 48},
    tokens=24,
    mixed_tokens=(8, 16, 32, 64),
    mixed_requests=24,
    mixed_size=12,
    targets=(2.0, 3.0),
    adaptive_requests=64,
)
FULL_SIZES = Sizes(
    rounds=2,
    batches={1: 12, 2: 16, 4: 16, 8: 24, 16: 48, 32: 96, 64: 128, 128: 256},
    tokens=32,
    mixed_tokens=(8, 16, 32, 64, 128),
    mixed_requests=64,
    mixed_size=32,
    targets=(2.0, 3.0, 5.0),
    adaptive_requests=200,
)
