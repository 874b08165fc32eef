"""Checks types that an engine's front end should refuse but breaks on, so that it would answer 500.

A 500 looks like a broken engine and counts for the worker's circuit breaker. The engine checks all other types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfleet.common.errors import InvalidRequest

_LISTS = ("tools", "functions")
_OBJECTS = ("structured_outputs",)


def check_forms(body: Mapping[str, Any]) -> None:
    """Raise if a field that nobody else checks is not the list or the object that it must be.

    Raises:
        InvalidRequest: names the field.
    """
    if "messages" in body and not isinstance(body["messages"], list):
        raise InvalidRequest("must be a list of messages", "messages", "invalid_type")
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
    chosen = isinstance(body.get("tool_choice"), dict) and "messages" in body  # the engine looks its name up there
    if chosen and not all(_has_name(tool) for tool in body.get("tools") or []):
        raise InvalidRequest("must be objects, each with a function that has a name", "tools", "invalid_type")


def _has_name(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and "name" in function
