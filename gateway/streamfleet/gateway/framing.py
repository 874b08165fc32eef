"""Events of a stream as bytes, for readers that can resume, and for those that know only `data:` lines. Pure.

OpenAI's chunks come in as the engine made them; each goes out as one server-sent event with one line of data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common.jsontext import single_line
from streamfleet.common.protocol import CHAT
from streamfleet.gateway.errors import ApiError

DONE = b"data: [DONE]\n\n"
COMMENT = b": still here\n"
"""No empty line after it: once an event had an id, OpenAI's client would take this for an event without JSON."""
WHOLE = "0-0/0"
"""Id of a whole answer as one chunk: it is before all chunks, and who has it lacks nothing but the end."""
_HEAD = ("id", "object", "created", "model")


def frame(data: Mapping[str, Any], chunk_id: str = "", event: str = "") -> bytes:
    """Returns one event, with one line of data."""
    head = (f"event: {event}\n" if event else "") + (f"id: {chunk_id}\n" if chunk_id else "")
    text = single_line(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    return f"{head}data: {text}\n\n".encode(errors="backslashreplace")


def tier_field(tier: str | None) -> dict[str, str]:
    """The `service_tier` field of an answer; empty for None."""
    return {} if tier is None else {"service_tier": tier}


def error_frame(error: ApiError) -> bytes:
    """Returns an error inside a stream, as OpenAI's clients raise it."""
    return frame({"error": error.error})


@dataclass(slots=True)
class Framing:
    """The form in which one reader gets one answer.

    Attributes:
        event_ids: True for a reader that can resume: its chunks have ids, and a comment breaks a silence. For others
            a chunk without text does, because many readers know only `data:` lines.
        tier: `service_tier` in every chunk; None for none.
        endpoint, request_id, model: of the request, for chunks before the engine's first.
    """

    event_ids: bool
    tier: str | None = None
    endpoint: str = CHAT
    request_id: str = ""
    model: str = ""
    _first: str = ""
    _head: dict[str, Any] = field(default_factory=dict)
    _imposed: bool = False  # a chunk of our own came first, so all others have its id, and not the engine's

    def chunk(self, chunk_id: str, raw: str) -> bytes:
        """Returns a chunk as one event, with its JSON unchanged if that is one line for every reader."""
        if self._imposed or "\r" in raw:
            return self.answer(json.loads(raw), chunk_id)
        if self.tier is not None and raw.startswith('{"'):
            raw = f'{{"service_tier":"{self.tier}",{raw[1:]}'
        line = raw if raw.isascii() else single_line(raw)
        text = f"id: {chunk_id}\ndata: {line}\n\n" if self.event_ids else f"data: {line}\n\n"
        return text.encode(errors="backslashreplace")

    def group(self, stream_id: str, chunks: Sequence[str]) -> bytes:
        """Returns the chunks of an event of the queue's stream, each as one event; their ids count from 0."""
        if not (self.event_ids or self._imposed or self.tier):  # at once: most readers are so
            text = "\n\ndata: ".join(chunks)
            if text.isascii() and "\r" not in text:
                return f"data: {text}\n\n".encode()
        return b"".join([self.chunk(f"{stream_id}/{at}", raw) for at, raw in enumerate(chunks)])

    def answer(self, chunk: Mapping[str, Any], chunk_id: str = WHOLE) -> bytes:
        """Returns a parsed chunk as one event, such as a whole answer."""
        head = self._head if self._imposed else {}
        return frame({**chunk, **head, **tier_field(self.tier)}, chunk_id if self.event_ids else "")

    def learn(self, raw: str) -> None:
        """Keep the engine's first chunk, for what all chunks of the answer have in common."""
        self._first = raw

    def keep_alive(self, now_s: int, default_model: str) -> bytes:
        """Returns what is sent after a silence.

        Args:
            now_s: epoch seconds.
            default_model: the model of requests that name none.
        """
        if self.event_ids:
            return COMMENT
        chat = self.endpoint == CHAT
        if not self._head and self._first:
            first = json.loads(self._first)
            self._head = {name: first[name] for name in _HEAD if name in first}
        if not self._head:
            name, kind = ("chatcmpl", "chat.completion.chunk") if chat else ("cmpl", "text_completion")
            self._head = {
                "id": f"{name}-{self.request_id}",  # vLLM gives it the same
                "object": kind,
                "created": now_s,
                "model": self.model or default_model,
            }
            self._imposed = True
        nothing: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        choice = {"index": 0, **nothing, "logprobs": None, "finish_reason": None}
        return frame({**self._head, "choices": [choice], **tier_field(self.tier)})


def whole_answer_chunk(response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a whole answer as one chunk, for a request whose tokens were not kept."""
    chat = response.get("object") == "chat.completion"
    choices = response.get("choices")
    kept = {name: value for name, value in response.items() if name not in ("choices", "object", "usage")}
    some = [dict(choice) for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    for choice in some:
        if chat:
            choice["delta"] = choice.pop("message", {})
    return {**kept, "object": "chat.completion.chunk" if chat else "text_completion", "choices": some}
