"""Events of a streamed message, in Anthropic's terms, and the whole message. Pure.

Workers put a message together from an engine's events. The simulated engine streams `events_of` a whole one; so does
the gateway, for a message whose own events were not kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

START, DELTA, END, STOP = "message_start", "content_block_delta", "message_delta", "message_stop"
BLOCK, BLOCK_END = "content_block_start", "content_block_stop"
EVENTS = frozenset({START, BLOCK, DELTA, BLOCK_END, END, STOP, "ping"})
_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Fields of a block to which a delta adds, by the delta's type; the delta's own field has the same name."""
Event = dict[str, Any]


def text_of(event: Mapping[str, Any]) -> str:
    """Text that an event adds to a message; empty for any other event."""
    text = _object(event.get("delta")).get("text") if event.get("type") == DELTA else None
    return text if isinstance(text, str) else ""


def is_beside_text(event: Mapping[str, Any]) -> bool:
    """True if an event has, begins or ends what is not text: no other run of the message has the same."""
    kind = event.get("type")
    if kind == BLOCK:
        return _object(event.get("content_block")).get("type") != "text"
    if kind == DELTA:
        return "text" not in _object(event.get("delta"))
    return kind in (BLOCK_END, END, STOP)


class MessageAssembly:
    """A message, as far as its events tell it."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}

    @property
    def finished(self) -> bool:
        """True if the message has a reason for its end."""
        return bool(self._message.get("stop_reason"))

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the next event."""
        kind, delta, index = event.get("type"), _object(event.get("delta")), event.get("index")
        index = index if isinstance(index, int) else 0
        if kind == START:
            self._message |= _object(event.get("message"))
        elif kind == BLOCK:
            self._blocks[index] = dict(_object(event.get("content_block")))
        elif kind == END:
            usage = {**_object(self._message.get("usage")), **_object(event.get("usage"))}
            self._message |= {**delta, "usage": usage}
        elif kind == DELTA:
            name = "partial_json" if "partial_json" in delta else _PIECES.get(str(delta.get("type")), "")
            if isinstance(piece := delta.get(name), str):
                self._pieces.setdefault((index, name), []).append(piece)

    def answer(self) -> dict[str, Any]:
        """The whole message, as vLLM gives it unstreamed: without null, and never without a block."""
        for (index, name), pieces in self._pieces.items():
            text, block = "".join(pieces), self._blocks.setdefault(index, {"type": "text"})
            block |= {"input": _parsed(text)} if name == "partial_json" else {name: text}
        content = [*self._blocks.values()] or [{"type": "text", "text": ""}]
        return {name: value for name, value in {**self._message, "content": content}.items() if value is not None}


def _object(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one: any server can be the engine."""
    return value if isinstance(value, dict) else {}


def _parsed(text: str) -> dict[str, Any]:
    """A tool's input; empty where the limit of output has cut it off, or the model wrote no object."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return _object(value)


def events_of(message: Mapping[str, Any]) -> list[Event]:
    """Returns the events that stream a whole message, each text as one delta."""
    ends = {name: message.get(name) for name in ("stop_reason", "stop_sequence")}
    usage, content = _object(message.get("usage")), message.get("content")
    begun = {
        **message,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 0},
    }
    events: list[Event] = [{"type": START, "message": begun}]
    for index, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, dict):
            events += [{**event, "index": index} for event in _of_block(block)]
    return [*events, {"type": END, "delta": ends, "usage": usage}, {"type": STOP}]


def _of_block(block: Mapping[str, Any]) -> Iterator[Event]:
    empty: Event = {"input": {}} if "input" in block else {}
    texts = {name: block[name] for name in _PIECES.values() if isinstance(block.get(name), str)}
    yield {"type": BLOCK, "content_block": {**block, **dict.fromkeys(texts, ""), **empty}}
    for kind, name in _PIECES.items():
        if name in texts:
            yield {"type": DELTA, "delta": {"type": kind, name: texts[name]}}
    if empty:
        yield {"type": DELTA, "delta": {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}}
    yield {"type": BLOCK_END}
