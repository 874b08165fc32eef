"""Checks the shape of a parsed body: engines take longer over many small values than over many bytes.

A megabyte of `{"messages": [{}, {}, …]}` blocked vLLM's front end, and with it all answers, for half a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfleet.common.protocol import COMPLETIONS, EMBEDDINGS, RESPONSES
from streamfleet.worker.cost.limits import CostLimits, too_expensive

# Fields that may hold a prompt as tokens. In other fields an engine examines each item for other meanings.
_TOKENS = {COMPLETIONS: "prompt", EMBEDDINGS: "input", "/pooling": "input", "/classify": "input"}

FORMS = 8
"""An item of a conversation's ``input``, and all within it, may be of so many forms that it counts as many values."""


def check_shape(body: Mapping[str, Any], limits: CostLimits, endpoint: str = "") -> None:
    """Raise if a body is too deep or has too many values. A prompt in tokens counts as one value.

    Raises:
        InvalidRequest: names the top-level field at fault.
    """
    left = limits.max_values
    for name, field in body.items():
        prompt = name == _TOKENS.get(endpoint)
        forms = FORMS if name == "input" and endpoint == RESPONSES else 1
        level: list[Any] = _children(field, prompt=prompt)
        for _ in range(limits.max_depth):
            left -= len(level) * forms
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


def is_tokens(value: list[Any]) -> bool:
    """True if it is a prompt in tokens: only whole numbers of 32 bits."""
    return bool(value) and set(map(type, value)) == {int} and min(value) >= 0 and max(value) < 2**32
