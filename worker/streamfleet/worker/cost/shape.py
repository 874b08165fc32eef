"""How large a body is once it is read: engines take longer over many small values than over many bytes.

A megabyte of `{"messages": [{}, {}, …]}` held vLLM's front end, and everybody's answers, for half a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfleet.common.protocol import COMPLETIONS, EMBEDDINGS, RESPONSES
from streamfleet.worker.cost.limits import CostLimits, too_expensive

# Where a prompt may stand as tokens. Elsewhere an engine would look at each of them for what else it might be.
_TOKENS = {COMPLETIONS: "prompt", EMBEDDINGS: "input", "/pooling": "input", "/classify": "input"}

FORMS = 8
"""An item of a conversation's ``input``, and all within it, may be of so many forms that it counts as many values."""


def check_shape(body: Mapping[str, Any], limits: CostLimits, endpoint: str = "") -> None:
    """Let a body pass that is neither too deep nor of too many values. A prompt in tokens is one value.

    Raises:
        InvalidRequest: naming the top-level field that is too much.
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
    """Is it a prompt in tokens: whole numbers of 32 bits, and nothing else?"""
    return bool(value) and set(map(type, value)) == {int} and min(value) >= 0 and max(value) < 2**32
