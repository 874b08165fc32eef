"""Tokens: about how many a request will use, and how many it used. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfleet.common.protocol import EMBEDDINGS, Status
from streamfleet.common.results import Result

BYTES_A_TOKEN = 4
_LIMITS = ("max_completion_tokens", "max_tokens")


def expected_tokens(endpoint: str, body: Mapping[str, Any], body_bytes: int) -> int:
    """Tokens to reserve: the prompt by the rule of thumb of four bytes each, and all output that is allowed for.

    A body that sets no limit for its output is charged for it afterwards.
    """
    prompt = body_bytes // BYTES_A_TOKEN + 1
    if endpoint == EMBEDDINGS:
        return prompt
    output = next((value for name in _LIMITS if (value := _count(body.get(name)))), 0)
    return prompt + output * max(1, _count(body.get("n")))


def used_tokens(result: Result, reserved: int) -> int:
    """Tokens that a request used. What ended midway is taken at what was reserved: nobody counted."""
    if result.status is Status.SUCCEEDED:
        return _count((result.usage or {}).get("total_tokens")) or reserved
    return 0 if result.status is Status.FAILED and result.http_status < 500 else reserved


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else 0
