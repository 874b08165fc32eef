"""Splits many requests into script calls small enough not to stall the server. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

MAX_COUNT = 200
MAX_BYTES = 1_000_000


class Fielded(Protocol):
    """An item to send: a draft or a submission."""

    @property
    def fields(self) -> Mapping[str, bytes]: ...


T = TypeVar("T", bound=Fielded)


def size(item: Fielded) -> int:
    """Bytes of an item's fields."""
    fields = item.fields
    return len("".join(fields)) + sum(map(len, fields.values()))


def chunked(items: Iterable[T], max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> Iterator[list[T]]:
    """The items in order, in chunks within both bounds; an oversized item is a chunk of its own."""
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
