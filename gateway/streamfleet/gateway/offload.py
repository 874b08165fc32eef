"""Long computations in steps, so that the event loop serves others: on a thread, or with pauses in between.

A thread yields every 5 ms, but not inside one call of the JSON decoder or encoder: the input of such a call has to be
bounded, as the body of one request is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from fastapi.responses import StreamingResponse

P = ParamSpec("P")
T = TypeVar("T")
SMALL_BYTES = 16_384
SLICE_S = 0.005
PIECE_CHARS = 65_536
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


class StreamedJson(StreamingResponse):
    """An object as JSON, encoded and sent in pieces, of any size.

    Args:
        value: any object that `json` can encode.
    """

    def __init__(self, value: Mapping[str, Any]) -> None:
        super().__init__(_pieces(value), media_type="application/json")


async def _pieces(value: Mapping[str, Any]) -> AsyncIterator[bytes]:
    time_slice = TimeSlice()
    texts: list[str] = []
    chars = 0
    for text in _ENCODER.iterencode(value):
        texts.append(text)
        chars += len(text)
        if chars >= PIECE_CHARS:
            yield "".join(texts).encode(errors="backslashreplace")
            texts, chars = [], 0
        await time_slice.yield_if_over()
    yield "".join(texts).encode(errors="backslashreplace")
