"""Checks the shape of a parsed body, and types that an engine's front end breaks on. Pure.

Engines take longer over many small values than over many bytes: a megabyte of `{"messages": [{}, {}, …]}` blocked
vLLM's front end, and with it all answers, for half a minute. A wrong type that the front end should refuse makes it
answer 500, which looks like a broken engine and counts for the circuit breaker; the engine checks all other types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import (
    CLASSIFY,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    POOLING,
    RESPONSES,
)
from streamfleet.worker.cost.limits import CostLimits, too_expensive

# Fields that may hold a prompt as tokens. In other fields an engine examines each item for other meanings.
_TOKENS = {COMPLETIONS: "prompt", DETOKENIZE: "tokens", EMBEDDINGS: "input", POOLING: "input", CLASSIFY: "input"}

FORMS = 26
"""An item of a conversation's ``input`` may have so many forms: unless it is ordinary, its values count so often."""
_MOST_FIELDS = 8
_ROLES = ("user", "assistant", "system", "developer")
_ITEMS = {
    "message": ("content",),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("id", "summary"),
}
_IN_PARTS = ("content", "summary", "output")
_PARTS = {
    **dict.fromkeys(("input_text", "output_text", "summary_text", "reasoning_text"), "text"),
    "input_image": "image_url",
}
_WORDS = {"status": ("completed", "in_progress", "incomplete"), "detail": ("auto", "low", "high")}

_LISTS = ("tools", "functions")
_OBJECTS = ("structured_outputs",)


def check_shape(body: Mapping[str, Any], limits: CostLimits, endpoint: str = "") -> None:
    """Raise if a body is too deep or has too many values. A prompt in tokens counts as one value.

    Raises:
        InvalidRequest: names the top-level field at fault.
    """
    left = limits.max_values
    for name, field in body.items():
        prompt = name == _TOKENS.get(endpoint)
        level: list[Any] = _children(field, prompt=prompt)
        if name == "input" and endpoint == RESPONSES:
            left -= (FORMS - 1) * sum(_size(item) for item in level if not is_ordinary(item))
        for _ in range(limits.max_depth):
            left -= len(level)
            if left < 0:
                message = f"brings the body beyond {limits.max_values} values: send several requests"
                raise too_expensive(name[:80], message)
            level = [child for value in level for child in _children(value, prompt=prompt)]
            if not level:
                break
        else:
            raise too_expensive(name[:80], f"nests deeper than {limits.max_depth} levels")


def _children(value: Any, *, prompt: bool) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if not isinstance(value, list) or (prompt and is_tokens(value)):
        return []
    return value


def _size(value: Any) -> int:
    """Number of values in a value, itself included."""
    count, level = 0, [value]
    while level:
        count += len(level)
        level = [child for each in level for child in _children(each, prompt=False)]
    return count


def is_ordinary(item: Any) -> bool:
    """True for an item of a conversation's ``input`` that has the fields of its type, as texts or parts."""
    if not isinstance(item, dict) or len(item) > _MOST_FIELDS:
        return False
    kind, role = item.get("type", "message"), item.get("role")
    needed = _ITEMS.get(kind, ()) if isinstance(kind, str) else ()
    if not needed or any(item.get(name) is None for name in needed) or (kind == "message" and role not in _ROLES):
        return False
    for name, value in item.items():
        if isinstance(value, list) and name in _IN_PARTS:
            if not all(_is_part(part, role) for part in value):
                return False
        elif not _is_text(name, value):
            return False
    return True


def _is_part(part: Any, role: Any) -> bool:
    if not isinstance(part, dict) or len(part) > _MOST_FIELDS or not isinstance(part.get("type"), str):
        return False
    needed = _PARTS.get(part["type"])
    if needed is None or part.get(needed) is None or (part["type"] == "output_text" and role != "assistant"):
        return False
    return all((value == [] and name != needed) or _is_text(name, value) for name, value in part.items())


def _is_text(name: str, value: Any) -> bool:
    return value is None or (isinstance(value, str) and value in _WORDS.get(name, (value,)))


def is_tokens(value: list[Any]) -> bool:
    """True if it is a prompt in tokens: only whole numbers of 32 bits."""
    return bool(value) and set(map(type, value)) == {int} and min(value) >= 0 and max(value) < 2**32


def check_forms(body: Mapping[str, Any], endpoint: str = "") -> None:
    """Raise if a field that nobody else checks is not the list or the object that it must be.

    Raises:
        InvalidRequest: names the field.
    """
    if "messages" in body and not isinstance(body["messages"], list):
        raise InvalidRequest("must be a list", "messages", "invalid_type")
    for name in _LISTS:
        if body.get(name) is not None and not isinstance(body[name], list):
            raise InvalidRequest("must be a list", name, "invalid_type")
    for name in _OBJECTS:
        if body.get(name) is not None and not isinstance(body[name], dict):
            raise InvalidRequest("must be an object", name, "invalid_type")
    for message in body.get("messages", []):
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if calls is not None and not isinstance(calls, list):
            raise InvalidRequest("has a message whose tool_calls are no list", "messages", "invalid_type")
    if endpoint in (MESSAGES, COUNT_TOKENS):
        _check_results(body)
        return
    chosen = isinstance(body.get("tool_choice"), dict) and "messages" in body  # the engine looks its name up there
    if chosen and not all(_has_name(tool) for tool in body.get("tools") or []):
        raise InvalidRequest("must be objects, each with a function that has a name", "tools", "invalid_type")


def _check_results(body: Mapping[str, Any]) -> None:
    """Raise if an image in a tool's result has no source, or a tool stands outside of `tools`, where it is checked.

    All else of a message is checked by the engine.
    """
    contents = [message.get("content") for message in body.get("messages", []) if isinstance(message, dict)]
    parts = [block for each in contents if isinstance(each, list) for block in _objects(each)]
    if any(isinstance(tool := block.get("tool"), dict) and "definition" in tool for block in parts):
        raise InvalidRequest("defines a tool; definitions go into tools", "messages", "not_allowed")
    blocks = (block.get("content") for block in parts)
    items = (item for each in blocks if isinstance(each, list) for item in _objects(each))
    if any(item.get("type") == "image" and not isinstance(item.get("source"), dict) for item in items):
        raise InvalidRequest("has an image without a source", "messages", "invalid_type")


def _objects(given: list[Any]) -> list[dict[str, Any]]:
    return [each for each in given if isinstance(each, dict)]


def _has_name(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and "name" in function
