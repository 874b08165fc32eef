"""Parser of a streamed answer: passes its chunks on as they arrive, and puts the whole answer together.

Bytes of an event stream go in through `feed`; each chunk goes to the request's `on_chunk` at once, and `outcome`
returns the whole answer at the end. Used by the engines that stream over HTTP or ASGI.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from streamfleet.common import jsontext
from streamfleet.common.jsontext import single_line
from streamfleet.common.message_events import DELTA, END, STOP, MessageAssembly
from streamfleet.common.protocol import MESSAGES, RESPONSES
from streamfleet.worker.engine.assembling import Assembly
from streamfleet.worker.engine.base import EngineRequest

MOST_EVENT_BYTES = 4 * 1_048_576
"""Far beyond what one token with all its log probabilities takes."""
EVENT_STREAM = "text/event-stream"
_DONE = b"[DONE]"
_FINAL = ("response.completed", "response.incomplete")
_STATUSES = {
    "overloaded": 503,
    "rate_limit": 429,
    "quota": 429,
    "server_error": 500,
    **dict.fromkeys(("invalid", "BadRequest", "unsupported", "context_length", "image", "policy"), 400),
}
"""HTTP statuses by what a failed answer's code or type contains, the first that does; of all others, 500."""
HIDDEN = "for ChatCompletionStreamResponse"
_NAME = re.compile(rb'^((?:\{"type":"message_start","message":)?\{"id":")chatcmpl-')
_HIDDEN = re.compile(HIDDEN + r".*'code': ([0-9]{3})\}\}", re.DOTALL)
"""Words of vLLM's messages for an error in the place of the first chunk: of the error, only its status can be read."""


def streamed_body(request: EngineRequest, body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body that asks for a streamed answer, always with token counts, which the result needs."""
    if request.endpoint in (RESPONSES, MESSAGES):  # their last events count the tokens
        return {**body, "stream": True}
    along = {"continuous_usage_stats": True} if request.counts_along else {}
    return {**body, "stream": True, "stream_options": {"include_usage": True, **along}}


class SseParser:
    """Parses the server-sent events of one answer.

    Args:
        request: the request that is answered; its `on_chunk` gets the chunks.
        clock: monotonic seconds.

    Attributes:
        first_at: time of the first chunk with content; None before.
        chunks: number of chunks with content, which is about the number of tokens so far.
    """

    def __init__(self, request: EngineRequest, clock: Callable[[], float]) -> None:
        self.first_at: float | None = None
        self.chunks = 0
        self._request, self._clock = request, clock
        self._assembly: Assembly | MessageAssembly = MessageAssembly() if request.endpoint == MESSAGES else Assembly()
        self._response: Any = None  # as the last event of a response has it
        self._events = 0
        self._rest = b""
        self._lines: list[bytes] = []
        self._error: tuple[int, bytes] | None = None
        self._done = self._aborted = self._broken = False

    def feed(self, part: bytes) -> None:
        """Add bytes as they arrive, cut anywhere."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._take(line.removesuffix(b"\r"))
        if len(self._rest) > MOST_EVENT_BYTES:
            self._broken, self._rest = True, b""

    def outcome(self) -> tuple[int, bytes] | None:
        """HTTP status and body of the same answer without streaming; None if it broke off, or a choice has no end.

        An answer that the engine broke off by itself has the finish reason ``abort``.
        """
        if self._error is not None:
            return self._error
        ended = self._assembly.finished if self._response is None else self._done
        if self._broken or not (self._aborted or (self._done and ended)):
            return None
        answer = self._response or self._assembly.answer()
        return 200, json.dumps(answer, separators=(",", ":")).encode("ascii")

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._lines.append(line[5:].removeprefix(b" "))
        elif not line and self._lines:
            data, self._lines = b" ".join(self._lines), []
            if not (self._done or self._aborted or self._broken or self._error):
                self._event(data)

    def _event(self, data: bytes) -> None:
        if data == _DONE:
            self._done = True
            return
        if self._request.endpoint == MESSAGES:
            data = named(data)
        try:
            chunk = jsontext.parse(data.decode(errors="surrogatepass"))
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            self._broken = True
        elif self._request.endpoint == RESPONSES:
            self._response_event(chunk, data)
        elif self._request.endpoint == MESSAGES:
            self._message_event(chunk, data)
        elif chunk.get("error") and "choices" not in chunk:
            self._error = (_status_of(chunk["error"]), data)
        else:
            self._chunk(chunk, data)

    def _chunk(self, chunk: dict[str, Any], data: bytes) -> None:
        self._assembly.add(chunk)
        choices = chunk.get("choices")
        said = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        if any(choice.get("finish_reason") == "abort" for choice in said):
            self._aborted = True  # no reader may mistake it for an end
            return
        if some := sum(map(says_something, said)):
            self.chunks += some
            self.first_at = self.first_at or self._clock()
        if self._request.on_chunk is not None and (said or self._request.tells_usage):
            self._request.on_chunk(_on_one_line(data))

    def _response_event(self, event: dict[str, Any], data: bytes) -> None:
        """Hand on an event of a response, numbered without a hole. The last one has the answer; one that tells of an
        error is an error's answer, so that the reader gets the queue's own.
        """
        kind, response = str(event.get("type")), event.get("response")
        response = response if isinstance(response, dict) else {}
        if kind in {"error", "response.failed"} or (event.get("error") and "type" not in event):
            flat = (
                {**event, "type": None} if kind == "error" else {"message": "the response failed, for no told reason"}
            )
            error = response.get("error") or event.get("error") or flat
            told = error if isinstance(error, dict) else {"message": str(error)}
            self._fail(told)
            return
        if kind in _FINAL:
            self._response, self._done = response, True
            if response.get("status") not in ("completed", "incomplete"):
                self._broken = True
                return
        elif kind.endswith(".delta"):
            self.chunks += 1
            self.first_at = self.first_at or self._clock()
        if event.get("sequence_number") != self._events:
            data = json.dumps({**event, "sequence_number": self._events}, separators=(",", ":")).encode("ascii")
        self._events += 1
        if self._request.on_chunk is not None:
            self._request.on_chunk(_on_one_line(data))

    def _message_event(self, event: dict[str, Any], data: bytes) -> None:
        """Hand on an event of a message. One without a reason for the end is the engine's own breaking off."""
        kind = event.get("type")
        if kind == "error":
            error = event.get("error")
            told = error if isinstance(error, dict) else {"message": str(error)}
            hidden = _HIDDEN.search(str(told.get("message")))
            if self._events and HIDDEN in str(told.get("message")):  # the reader has a part: nobody may run it again
                told, hidden = {**told, "message": "the engine failed in the middle of the answer"}, None
            self._fail(told, int(hidden[1]) if hidden else 0)
            return
        self._events += 1
        self._assembly.add(event)
        if kind == END and not self._assembly.finished:
            self._aborted = True
            return
        if kind == STOP:
            self._done = True
        elif kind == DELTA:
            self.chunks += 1
            self.first_at = self.first_at or self._clock()
        if self._request.on_chunk is not None and kind != "ping":
            self._request.on_chunk(_on_one_line(data))

    def _fail(self, told: Mapping[str, Any], other: int = 0) -> None:
        names = f"{told.get('code')} {told.get('type')}"
        other = other or next((status for name, status in _STATUSES.items() if name in names), 500)
        self._error = _status_of(told, other), json.dumps({"error": told}).encode()


def named(data: bytes) -> bytes:
    """A whole message, or an event of one, where vLLM's name of a chat is the beginning of the message's id."""
    return _NAME.sub(rb"\1msg_", data)


def _on_one_line(data: bytes) -> bytes:
    if data.isascii() and b"\r" not in data:
        return data
    return single_line(data.decode(errors="surrogatepass")).encode(errors="surrogatepass")


def says_something(choice: Mapping[str, Any]) -> bool:
    """True if a chunk's choice has content: the first chunk of a chat only names the role."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for name, value in delta.items() if name != "role")
    return bool(choice.get("text"))


def _status_of(error: Any, other: int = 400) -> int:
    """HTTP status by the `code` of an error object that came after the status 200; `other` where that is none."""
    code = error.get("code") if isinstance(error, dict) else None
    code = int(code) if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3 else code
    return code if isinstance(code, int) and 400 <= code < 600 else other
