"""Cutting a bulk into script calls that the server can take without a stall. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamfleet.common.records import Submission

MAX_COUNT = 200
MAX_BYTES = 1_000_000


def size(submission: Submission) -> int:
    """Bytes of a submission's fields."""
    return sum(len(name) + len(value) for name, value in submission.fields.items())


def chunked(
    submissions: Iterable[Submission], max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES
) -> Iterator[list[Submission]]:
    """The submissions in order, in chunks within both bounds; a larger one is a chunk of its own."""
    chunk: list[Submission] = []
    filled = 0
    for submission in submissions:
        weight = size(submission)
        if chunk and (len(chunk) == max_count or filled + weight > max_bytes):
            yield chunk
            chunk, filled = [], 0
        chunk.append(submission)
        filled += weight
    if chunk:
        yield chunk
