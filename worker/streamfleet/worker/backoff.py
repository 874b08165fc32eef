"""Delay before a request is tried again after a passing fault. Pure: the caller passes the random number."""

from __future__ import annotations


def backoff_ms(attempt: int, base_ms: int, longest_ms: int, random: float) -> int:
    """Exponential backoff with full jitter on its upper half.

    Args:
        attempt: the attempt that failed, from 1.
        base_ms: delay after the first attempt, before jitter.
        longest_ms: cap before jitter.
        random: a number in [0, 1).

    Source: "equal jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    whole = min(longest_ms, base_ms * 2 ** min(attempt - 1, 30))
    return int(whole / 2 + random * whole / 2)
