"""Events of a streamed response, in OpenAI's terms, made of the whole one. Pure.

The simulated engine streams these. The gateway sends them for a response whose own events were not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_TYPE = re.compile(r"[a-z0-9_.]{1,80}")
TEXT_DELTA = "response.output_text.delta"
Event = dict[str, Any]


def event_type(raw: str) -> str:
    """Returns the type of an event; empty for a chunk of chats, which has none.

    Args:
        raw: a JSON object. vLLM writes the type last, of a message first, where it is found without parsing.
    """
    if raw.startswith('{"type":"'):
        kind: Any = raw[9 : raw.find('"', 9)]
    else:
        kind = raw[:-2].rpartition('"type":"')[2] if raw.endswith('"}') else ""
    if not _TYPE.fullmatch(kind):
        kind = json.loads(raw).get("type")
    return kind if isinstance(kind, str) and _TYPE.fullmatch(kind) else ""


def events_of(response: Mapping[str, Any]) -> list[Event]:
    """Returns the events that stream a whole response, each text as one delta, with sequence numbers from 0."""
    begun = {**response, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    last = "incomplete" if response.get("status") == "incomplete" else "completed"
    events: list[Event] = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]
    items = response.get("output")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict):
            events += ({"output_index": index, **event} for event in _of_item(item))
    events.append({"type": f"response.{last}", "response": dict(response)})
    return [{"sequence_number": number, **event} for number, event in enumerate(events)]


def _of_item(item: Mapping[str, Any]) -> Iterator[Event]:
    named, begun = {"item_id": item.get("id")}, {**item, "status": "in_progress"}
    arguments, parts = item.get("arguments"), item.get("content")
    if isinstance(arguments, str):
        kind = "response.function_call_arguments"
        yield {"type": "response.output_item.added", "item": {**begun, "arguments": ""}}
        yield {"type": f"{kind}.delta", **named, "delta": arguments}
        yield {"type": f"{kind}.done", **named, "arguments": arguments, "name": item.get("name")}
    elif isinstance(parts, list):
        yield {"type": "response.output_item.added", "item": {**begun, "content": []}}
        for index, part in enumerate(parts):
            if isinstance(part, dict):
                yield from ({**named, "content_index": index, **event} for event in _of_part(part))
    else:
        yield {"type": "response.output_item.added", "item": begun}
    yield {"type": "response.output_item.done", "item": dict(item)}


def _of_part(part: Mapping[str, Any]) -> Iterator[Event]:
    kind, text = f"response.{part.get('type')}", part.get("text")
    more: Event = {"logprobs": []} if part.get("type") == "output_text" else {}
    if isinstance(text, str):
        yield {"type": "response.content_part.added", "part": {**part, "text": ""}}
        yield {"type": f"{kind}.delta", "delta": text, **more}
        yield {"type": f"{kind}.done", "text": text, **more}
    else:
        yield {"type": "response.content_part.added", "part": dict(part)}
    yield {"type": "response.content_part.done", "part": dict(part)}
