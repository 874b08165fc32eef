"""Cutting a bulk into script calls that the server can take without a stall. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

MAX_COUNT = 200
MAX_BYTES = 1_000_000


class Fielded(Protocol):
    """Something to send: a draft or a submission."""

    @property
    def fields(self) -> Mapping[str, bytes]: ...


T = TypeVar("T", bound=Fielded)


def size(item: Fielded) -> int:
    """Bytes of its fields."""
    fields = item.fields
    return len("".join(fields)) + sum(map(len, fields.values()))


def chunked(items: Iterable[T], max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> Iterator[list[T]]:
    """The items in order, in chunks within both bounds; a larger one is a chunk of its own."""
    chunk: list[T] = []
    filled = 0
    for item in items:
        weight = size(item)
        if chunk and (len(chunk) == max_count or filled + weight > max_bytes):
            yield chunk
            chunk, filled = [], 0
        chunk.append(item)
        filled += weight
    if chunk:
        yield chunk
