"""What a request may cost, checked before the engine sees it: one request must not starve the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.worker.credit import sequences

_SEQUENCES = ("n", "best_of")
_GRAMMARS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_grammar",
    "guided_choice",
    "text",
)
# Each of their items is a sequence of its own to the engine, one after the other: OpenAI's own limit for embeddings.
_LISTS = ("input", "documents", "text_1", "text_2", "queries")
_MOST_ITEMS = 2_048
# The worker's own business: a result is one whole response, and order inside the engine follows lane and deadline.
_NOT_FOR_THE_ENGINE = frozenset(
    {"stream", "stream_options", "background", "priority", "request_id", "kv_transfer_params"}
)


@dataclass(frozen=True, slots=True)
class CostLimits:
    """Most choices of one request, and bytes of its grammars or schemas."""

    max_sequences: int = 16
    max_grammar_bytes: int = 16_384


def check_cost(body: Mapping[str, Any], limits: CostLimits) -> None:
    """Let a body pass that costs no more than allowed; its types are the engine's to check.

    Raises:
        InvalidRequest: naming the field that asks for too much.
    """
    for name in _SEQUENCES:
        value = body.get(name)
        if isinstance(value, (int, float)) and value > limits.max_sequences:
            shown = str(value)[:40]
            raise InvalidRequest(f"is {shown}; at most {limits.max_sequences} are allowed", name, "too_expensive")
    if (asked := sequences(body)) > limits.max_sequences:
        message = f"asks for {asked} sequences; at most {limits.max_sequences} are allowed: send several requests"
        raise InvalidRequest(message, "prompt", "too_expensive")
    for name in _LISTS:
        value = body.get(name)
        if isinstance(value, list) and len(value) > _MOST_ITEMS and not isinstance(value[0], int):
            message = f"has {len(value)} items; at most {_MOST_ITEMS} are allowed: send several requests"
            raise InvalidRequest(message, name, "too_expensive")
    for name in _GRAMMARS:
        if name in body:
            size = _json_bytes(body[name], name)
            if size > limits.max_grammar_bytes:
                message = f"is {size} bytes; at most {limits.max_grammar_bytes} are allowed"
                raise InvalidRequest(message, name, "too_expensive")


def _json_bytes(value: Any, name: str) -> int:
    try:
        return len(json.dumps(value))
    except RecursionError:
        raise InvalidRequest("is nested too deeply", name, "invalid_json") from None


def for_engine(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without the fields that are not for the engine."""
    return {name: value for name, value in body.items() if name not in _NOT_FOR_THE_ENGINE}
