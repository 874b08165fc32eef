"""Long computations in steps, so that the event loop serves others: on a thread, or with pauses in between.

A thread yields every 5 ms, but not inside one call of the JSON decoder or encoder: the input of such a call has to be
bounded, as the body of one request is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from streamfleet.gateway.disconnect import Streamed

P = ParamSpec("P")
T = TypeVar("T")
SMALL_BYTES = 16_384
SLICE_S = 0.005
PIECE_BYTES = 65_536
_THREAD = ThreadPoolExecutor(1, "offload")
"""One thread for all callers: the interpreter runs one at a time, and each more makes the event loop wait longer."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


async def offload(size_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns the result of a pure function; runs it on a thread if its input is large.

    Args:
        size_bytes: approximate size of the input.
        work, args, kwargs: the function and its arguments.
    """
    if size_bytes <= SMALL_BYTES:
        return work(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, lambda: work(*args, **kwargs))


class TimeSlice:
    """Yields to the event loop when a computation has run for 5 ms. Make it where the computation begins."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()  # the loop's own clock is not updated meanwhile

    async def yield_if_over(self) -> None:
        """Yield if the slice is over. Call this between two short steps."""
        if time.monotonic() - self._since_s > SLICE_S:
            await asyncio.sleep(0)
            self._since_s = time.monotonic()


class StreamedJson(Streamed):
    """An object as JSON, encoded and sent in pieces, of any size.

    Args:
        value: any object that `json` can encode, not empty.
        lists: further fields: lists whose items are encoded already, or while they are sent.
    """

    def __init__(self, value: Mapping[str, Any], **lists: Iterable[bytes]) -> None:
        super().__init__(_pieces(value, lists), "application/json")


def encode(value: object) -> bytes:
    """Returns a value as JSON."""
    return _ENCODER.encode(value).encode(errors="backslashreplace")


async def encode_all(values: Iterable[object]) -> list[bytes]:
    """Returns each value as JSON, with pauses in between."""
    time_slice, found = TimeSlice(), []
    for value in values:
        found.append(encode(value))
        await time_slice.yield_if_over()
    return found


async def _pieces(value: Mapping[str, Any], lists: Mapping[str, Iterable[bytes]]) -> AsyncGenerator[bytes, None]:
    time_slice = TimeSlice()
    texts: list[bytes] = []
    size = 0
    for text in _texts(value, lists):
        texts.append(text)
        size += len(text)
        if size >= PIECE_BYTES:
            yield b"".join(texts)
            texts, size = [], 0
        await time_slice.yield_if_over()
    yield b"".join(texts)


def _texts(value: Mapping[str, Any], lists: Mapping[str, Iterable[bytes]]) -> Iterator[bytes]:
    last = ""
    for text in _ENCODER.iterencode(value):
        yield last.encode(errors="backslashreplace")
        last = text  # the closing brace comes behind the lists
    for name, items in lists.items():
        yield b"," + encode(name) + b":["
        for number, item in enumerate(items):
            yield b"," + item if number else item
        yield b"]"
    yield last.encode()
