"""Fast path: recognises the bodies of nearly all requests in a few microseconds. All others get the full check.

A parsed body and the limits go in; its output tokens come out, or None for the full check. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfleet.common.protocol import CHAT, COMPLETIONS
from streamfleet.worker.cost.amounts import most_output_tokens
from streamfleet.worker.cost.limits import CostLimits
from streamfleet.worker.cost.prompts import BYTES_PER_TOKEN
from streamfleet.worker.credit import OUTPUT_LIMITS, TYPICAL_OUTPUT

# Each holds one value, and no value costs more than another.
_SCALARS = frozenset(
    {*OUTPUT_LIMITS, "model", "temperature", "top_p", "top_k", "min_p", "seed", "user", "ignore_eos", "stream"}
    | {"presence_penalty", "frequency_penalty", "repetition_penalty"}
)
_SCALAR_TYPES = frozenset({int, float, str, bool, type(None)})
_MESSAGE = frozenset({"role", "content"})


def fast_path_output(
    body: Mapping[str, Any], size: int, limits: CostLimits, longest: int | None, endpoint: str
) -> int | None:
    """Most output tokens of a body that is one conversation or prompt in text with only ordinary options.

    Sound, not complete: a plain body passes `check.check_cost` and runs as one sequence.

    Args:
        body: any JSON object.
        size: its bytes as JSON text; at least the bytes of the text in it.
        limits: the limits to check against.
        longest: most tokens of one sequence; None if the engine does not tell.
        endpoint: OpenAI path of the request.

    Returns:
        The number that it asks for, `TYPICAL_OUTPUT` if it gives none; None if the body is not plain, or beyond a
        limit.
    """
    name = "messages" if endpoint == CHAT else "prompt"
    most_bytes = limits.max_prompt_bytes or (longest * BYTES_PER_TOKEN if longest else size)
    if endpoint not in (CHAT, COMPLETIONS) or size > most_bytes or len(body) > limits.max_options:
        return None
    for key, value in body.items():
        if key == name:
            if not (type(value) is str if endpoint == COMPLETIONS else _is_talk(value, limits)):
                return None
        elif key not in _SCALARS or type(value) not in _SCALAR_TYPES:
            return None
    most_tokens = most_output_tokens(limits, longest)
    asked = None
    for key in OUTPUT_LIMITS:
        value = body.get(key)
        if value is not None:
            if type(value) is not int or not 1 <= value <= most_tokens:
                return None
            asked = asked or value
    return (asked or TYPICAL_OUTPUT) if name in body else None


def _is_talk(messages: Any, limits: CostLimits) -> bool:
    if type(messages) is not list or len(messages) > min(limits.max_messages, limits.max_values // 3):
        return False
    for message in messages:
        if type(message) is not dict or message.keys() != _MESSAGE:
            return False
        if type(message["role"]) is not str or type(message["content"]) is not str:
            return False
    return True
