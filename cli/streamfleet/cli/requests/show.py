"""Shows a result on a terminal, and an answer while it is generated."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from streamfleet.common.envelope import CARRIED
from streamfleet.operator.commands.common import fail, out, out_record, say

if TYPE_CHECKING:
    from streamfleet.common.results import Result
    from streamfleet.producer.events import Chunk, Missed, Restarted
    from streamfleet.producer.handle import Handle


def show_result(result: Result, as_json: bool = False) -> None:
    """Print a result: its text, or all of it as JSON. Exits with status 1 if it did not succeed."""
    if as_json:
        out(json.dumps(result_json(result), ensure_ascii=False, indent=2))
    elif result.ok:
        out(result.text) if result.text else out_record(result.response)
    if not as_json:
        _show_warnings(result)
    if not result.ok:
        from streamfleet.common.errors import naming

        error = result.error or {}
        message = naming(error.get("message", "no message"), error.get("param"))
        fail(f"request {result.id} {result.status}: {message}")


def _show_warnings(result: Result) -> None:
    """Print to stderr what the request's entry has wrong that did not keep it from running."""
    for warning in result.warnings:
        say(f"warning: {warning}")


def result_json(result: Result) -> dict[str, Any]:
    """All of a result as JSON values."""
    timings = result.timings
    return {
        "id": result.id,
        "status": result.status.value,
        "http_status": result.http_status,
        "response": result.response,
        "error": result.error,
        "warnings": list(result.warnings),
        "finish_reason": result.finish_reason,
        "usage": result.usage,
        "worker": result.worker,
        "attempt": result.attempt,
        "queued_ms": timings.queued_ms,
        "waited_ms": timings.waited_ms,
        "first_token_ms": timings.first_token_ms,
        "total_ms": timings.total_ms,
        **{name: result.fields[name] for name in ("lane", "entry", *CARRIED) if name in result.fields},
    }


async def show_stream(handle: Handle, timeout: float | None, as_json: bool = False) -> None:
    """Print an answer's text as it is generated, or each chunk as a line of JSON. Exits with status 1 without success.

    Args:
        handle: the request.
        timeout: seconds for the whole answer; None for no limit.
        as_json: print chunks in place of text.

    Raises:
        ResultTimeout: the request did not end in time; it continues.
    """
    import asyncio

    from streamfleet.common.errors import ResultTimeout

    screen = _Screen(handle.id, as_json)
    try:
        async with asyncio.timeout(timeout):
            result = await _follow(handle, screen)
    except TimeoutError:
        screen.end()
        raise ResultTimeout(f"request {handle.id} has not ended after {timeout:g} s; it goes on") from None
    if screen.chunks == 0 or not result.ok:
        show_result(result, as_json)
    else:
        _show_warnings(result)


async def _follow(handle: Handle, screen: _Screen) -> Result:
    from streamfleet.common.errors import RequestFailed
    from streamfleet.producer.events import Chunk

    try:
        async with aclosing(handle.stream(restarts="tell")) as events:
            async for event in events:
                screen.chunk(event) if isinstance(event, Chunk) else screen.tell(event)
    except RequestFailed:
        pass  # the result below has the error
    screen.end()
    return await handle.result()


class _Screen:
    """Prints chunks to stdout, and messages about restarts and gaps to stderr."""

    def __init__(self, request_id: str, as_json: bool) -> None:
        self.chunks = 0
        self._id, self._as_json = request_id, as_json
        self._on_a_line = False

    def chunk(self, chunk: Chunk) -> None:
        self.chunks += 1
        if self._as_json:
            out_record(chunk.data)
        elif chunk.text:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            self._on_a_line = not chunk.text.endswith("\n")

    def tell(self, event: Restarted | Missed) -> None:
        from streamfleet.producer.events import Restarted

        self.end()
        if isinstance(event, Restarted):
            say(f"request {self._id} runs anew, attempt {event.attempt}: what came before does not count")
        else:
            say(f"{event.chunks} chunks are missing here; `streamfleet result {self._id}` has the whole answer")

    def end(self) -> None:
        """End the current line, so that the next output starts on a new one."""
        if self._on_a_line:
            out("")
        self._on_a_line = False
