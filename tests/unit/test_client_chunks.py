"""Bulk calls are cut so that no script call stalls the server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.broker.types import Submission
from streamfleet.common.protocol import Lane
from streamfleet.producer.sender import chunked, size


def submission(body_bytes: int) -> Submission:
    return Submission("r", Lane.LOW, {"body": b"x" * body_bytes}, "d")


@given(st.lists(st.integers(0, 60)), st.integers(1, 5), st.integers(1, 100))
def test_every_chunk_keeps_both_bounds(sizes: list[int], max_count: int, max_bytes: int) -> None:
    submissions = [submission(body_bytes) for body_bytes in sizes]
    chunks = list(chunked(submissions, max_count, max_bytes))
    assert [item for chunk in chunks for item in chunk] == submissions
    assert all(chunk for chunk in chunks)
    for chunk in chunks:
        assert len(chunk) <= max_count
        assert len(chunk) == 1 or sum(map(size, chunk)) <= max_bytes
