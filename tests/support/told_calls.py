"""A simulated engine that is told its calls: agents run whole sessions with it, and no model decides anything.

A line `call NAME ARGUMENTS` of a user's message is a function to call, its arguments as JSON. The engine makes these
calls one by one, each as an answer, in their order; when it has the output of the last one, it answers with that
output. The newest message that names calls counts. A function that the request does not offer is not called.

Workers run it by `tests.integration.worker_patches told`. Another API needs a form of `FORMS`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from streamfleet.common import message_events, response_events
from streamfleet.common.protocol import COUNT_TOKENS, MESSAGES, RESPONSES
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.engine.simulated_api import MODEL, Plan, response

_CALL = re.compile(r"^call (\S+) (\{.*\})$", re.MULTILINE)
_PIECE = re.compile(r"(?s).{1,8}")
Call = tuple[str, str]
"""Name of a function, and its arguments as JSON."""
Body = Mapping[str, Any]
Said = Iterator[tuple[bool, str]]
"""Texts in their order: True with one of the user, False with the output of a call."""


async def run(_: object, request: EngineRequest) -> EngineReply:
    """Answer a request, in place of `SimulatedEngine.run`."""
    if request.endpoint == COUNT_TOKENS:
        return EngineReply(200, b'{"input_tokens": 1}')
    said, answered = FORMS[request.endpoint]
    answer, events = answered(request, next_step(said(request.body), offered(request.body)))
    if request.on_chunk is not None:
        for event in events:
            request.on_chunk(json.dumps(event).encode())
    return EngineReply(200, json.dumps(answer).encode())


def offered(body: Body) -> set[str]:
    """Names of the functions that a request offers."""
    return {tool["name"] for tool in body.get("tools") or () if "name" in tool}


def next_step(said: Said, functions: set[str]) -> Call | str:
    """The call to make, of these functions, or the text to answer with."""
    calls: list[Call] = []
    outputs: list[str] = []
    for of_user, text in said:
        if not of_user:
            outputs.append(text)
        elif told := _CALL.findall(text):
            calls, outputs = told, []
    left = [call for call in calls[len(outputs) :] if call[0] in functions]
    return left[0] if left else f"[simulated] {outputs[-1] if outputs else 'no call'}"


def _text(content: Any) -> str:
    """The text of a content, which is a string or has parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    return "\n".join(str(part.get("text") or "") for part in parts)


def _said_in_input(body: Body) -> Said:
    given = body["input"]
    for item in given if isinstance(given, list) else [{"role": "user", "content": given}]:
        if item.get("role") == "user":
            yield True, _text(item["content"])
        elif "output" in item:
            yield False, _text(item["output"])


def _response(request: EngineRequest, step: Call | str) -> tuple[Body, list[Body]]:
    """The response, and its events; text and arguments come in pieces, as those of vLLM do."""
    named = {"id": f"item_{request.id}", "status": "completed"}
    if isinstance(step, str):
        content = [{"type": "output_text", "text": step, "annotations": []}]
        item = {**named, "type": "message", "role": "assistant", "content": content}
    else:
        call_id = f"call_{request.id}"
        item = {**named, "type": "function_call", "call_id": call_id, "name": step[0], "arguments": step[1]}
    whole = response(Plan(request, ("",), 1, (1,), ("stop",)), int(time.time())) | {"output": [item]}
    events: list[Body] = []
    for event in response_events.events_of(whole):
        pieces = _PIECE.findall(event["delta"]) if "delta" in event else ()
        events += [{**event, "delta": piece} for piece in pieces] or [event]
    return whole, [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _said_in_messages(body: Body) -> Said:
    for message in body["messages"]:
        content = message["content"]
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if message["role"] == "user" and block["type"] in ("text", "tool_result"):
                yield block["type"] == "text", _text(block.get("text") or block.get("content"))


def _message(request: EngineRequest, step: Call | str) -> tuple[Body, list[Body]]:
    """The message, and its events."""
    block: Body = {"type": "text", "text": step}
    if not isinstance(step, str):
        block = {"type": "tool_use", "id": f"call_{request.id}", "name": step[0], "input": json.loads(step[1])}
    whole: Body = {
        "id": f"msg_{request.id}",
        "type": "message",
        "role": "assistant",
        "content": [block],
        "model": MODEL,
        "stop_reason": "end_turn" if isinstance(step, str) else "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    return whole, [*message_events.events_of(whole)]


Form = tuple[Callable[[Body], Said], Callable[[EngineRequest, Call | str], tuple[Body, list[Body]]]]
FORMS: dict[str, Form] = {RESPONSES: (_said_in_input, _response), MESSAGES: (_said_in_messages, _message)}
"""Of each endpoint: what was said in a body, and the answer with its events."""
