"""Events of a stream as bytes, for readers that can resume, and for those that know only `data:` lines. Pure.

OpenAI's chunks come in as the engine made them, and so do the events of responses; each goes out as one server-sent
event with one line of data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common import message_events
from streamfleet.common.jsontext import single_line
from streamfleet.common.protocol import CHAT, MESSAGES, RESPONSES
from streamfleet.common.response_events import event_type, events_of
from streamfleet.gateway.errors import ApiError, request_not_found
from streamfleet.gateway.messages.translation import error_object

DONE = b"data: [DONE]\n\n"
COMMENT = b": still here\n"
"""No empty line after it: once an event had an id, OpenAI's client would take this for an event without JSON."""
WHOLE = "0-0/0"
"""Id of a whole answer as one chunk: it is before all chunks, and who has it lacks nothing but the end."""
NAMED_EVENTS = (RESPONSES, MESSAGES)
"""Endpoints whose streams are events that are named by their types."""
_HEAD = ("id", "object", "created", "model")
_OF_RESPONSES = "response."
"""Beginning of the types of a response's events."""


def frame(data: Mapping[str, Any], chunk_id: str = "", event: str = "") -> bytes:
    """Returns one event, with one line of data."""
    head = (f"event: {event}\n" if event else "") + (f"id: {chunk_id}\n" if chunk_id else "")
    text = single_line(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    return f"{head}data: {text}\n\n".encode(errors="backslashreplace")


def tier_field(tier: str | None) -> dict[str, str]:
    """The `service_tier` field of an answer; empty for None."""
    return {} if tier is None else {"service_tier": tier}


@dataclass(slots=True)
class Framing:
    """The form in which one reader gets one answer.

    Attributes:
        event_ids: True for a reader that can resume: its chunks have ids, and a comment breaks a silence. For others
            a chunk without text does, because many readers know only `data:` lines. For a message a ping does.
        tier: `service_tier` in every chunk; None for none.
        said: fields of a response object that the gateway says, such as `previous_response_id`.
        endpoint: of the request; empty where the first chunk has to tell whether it is a response.
        request_id, model: of the request, for chunks before the engine's first.
        had: number of events that a reader of a response has.
    """

    event_ids: bool
    tier: str | None = None
    endpoint: str = CHAT
    request_id: str = ""
    model: str = ""
    had: int = 0
    said: Mapping[str, Any] = field(default_factory=dict)
    _first: str = ""
    _head: dict[str, Any] = field(default_factory=dict)
    _last: str = ""  # event of a response
    _imposed: bool = False  # a chunk of our own came first, so all others have its id, and not the engine's

    def chunk(self, chunk_id: str, raw: str) -> bytes:
        """Returns a chunk as one event, with its JSON unchanged if that is one line for every reader.

        Raises:
            ApiError: a response is asked for, and it is a chat's.
        """
        if not self.endpoint:
            kind = event_type(raw)
            of_responses, of_messages = kind.startswith(_OF_RESPONSES), kind in message_events.EVENTS
            self.endpoint = RESPONSES if of_responses else MESSAGES if of_messages else CHAT
        if self.endpoint in NAMED_EVENTS:
            return self._event(chunk_id, raw)
        if self._imposed or "\r" in raw:
            return self.answer(json.loads(raw), chunk_id)
        if self.tier is not None and raw.startswith('{"'):
            raw = f'{{"service_tier":"{self.tier}",{raw[1:]}'
        line = raw if raw.isascii() else single_line(raw)
        text = f"id: {chunk_id}\ndata: {line}\n\n" if self.event_ids else f"data: {line}\n\n"
        return text.encode(errors="backslashreplace")

    def group(self, stream_id: str, chunks: Sequence[str]) -> bytes:
        """Returns the chunks of an event of the queue's stream, each as one event; their ids count from 0."""
        # At once: most readers are so.
        if not (self.event_ids or self._imposed or self.tier or self.endpoint in NAMED_EVENTS):
            text = "\n\ndata: ".join(chunks)
            if text.isascii() and "\r" not in text:
                return f"data: {text}\n\n".encode()
        return b"".join([self.chunk(f"{stream_id}/{at}", raw) for at, raw in enumerate(chunks)])

    def answer(self, chunk: Mapping[str, Any], chunk_id: str = WHOLE) -> bytes:
        """Returns a parsed chunk as one event, such as a whole answer."""
        head = self._head if self._imposed else {}
        return frame({**chunk, **head, **tier_field(self.tier)}, chunk_id if self.event_ids else "")

    def whole(self, response: Mapping[str, Any], streamed: int = 0) -> bytes:
        """Returns a whole answer as events, for a reader that was sent none; empty for one that has all.

        Args:
            response: the answer.
            streamed: number of its own chunks; 0 if it has none. A reader that has some has them of these.

        Raises:
            ApiError: a response is asked for, and it is none; or the reader has more events than there are.
        """
        if self.endpoint != RESPONSES and response.get("type") == "message":
            *before, end = message_events.events_of(response)
            self.endpoint, named = MESSAGES, WHOLE if self.event_ids else ""
            return b"".join([frame(each, event=each["type"]) for each in before]) + frame(end, named, end["type"])
        if self.endpoint != RESPONSES and response.get("object") != "response":
            return self.answer(whole_answer_chunk(response))
        if "output" not in response:
            raise request_not_found()
        *told, last = (json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events_of(response))
        self.endpoint, number = RESPONSES, streamed or len(told) + 1
        if self.had > number:
            text = f"must be the sequence_number of an event: the last one has {number - 1}"
            raise ApiError(400, text, "invalid_value", param="starting_after")
        if self.had and (streamed or self.had == number):
            return b""
        return b"".join([self._event("", raw) for raw in told[self.had :]]) + self._event(WHOLE, last)

    def error(self, error: ApiError) -> bytes:
        """Returns an error inside a stream, as clients of its API raise it."""
        if self.endpoint == MESSAGES:
            return frame(error_object(error), event="error")
        if self.endpoint != RESPONSES:
            return frame({"error": error.error})
        number = json.loads(self._last).get("sequence_number", -1) + 1 if self._last else self.had
        told = {"type": "error", "code": error.code, "message": error.error["message"], "param": error.param}
        # OpenAI documents these fields, and sends `error`; its Python client raises only what has that.
        return frame({**told, "sequence_number": number, "error": error.error}, event="error")

    def _event(self, chunk_id: str, raw: str) -> bytes:
        """Returns an event of a response, named by its type; what the gateway says is in the response itself."""
        kind, self._last = event_type(raw), raw
        strange = self.endpoint == RESPONSES and not kind.startswith(_OF_RESPONSES)
        if strange and (kind in message_events.EVENTS or "choices" in json.loads(raw)):
            raise request_not_found()
        if "\r" in raw or (self.said and '"response"' in raw):
            data = json.loads(raw)
            if isinstance(data.get("response"), dict):
                data["response"] |= self.said
            raw = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        line = raw if raw.isascii() else single_line(raw)
        named = f"event: {kind}\n" if kind else ""
        numbered = f"id: {chunk_id}\n" if self.event_ids and chunk_id else ""
        return f"{named}{numbered}data: {line}\n\n".encode(errors="backslashreplace")

    def learn(self, raw: str) -> None:
        """Keep the engine's first chunk, for what all chunks of the answer have in common."""
        self._first = raw

    def keep_alive(self, now_s: int, default_model: str) -> bytes:
        """Returns what is sent after a silence.

        Args:
            now_s: epoch seconds.
            default_model: the model of requests that name none.
        """
        if self.endpoint == MESSAGES:
            return frame({"type": "ping"}, event="ping")
        if self.event_ids or self.endpoint == RESPONSES:  # which has no event without content
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
