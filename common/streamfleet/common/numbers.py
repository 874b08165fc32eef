"""Numbers of a body, as engines read them: a body may write a number as text, and some text is not a number.

A parsed body, or any value of one, goes in; its number comes out, or None. Everything that counts or limits what a body
asks for reads it here, so that all have the number that the engine has. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from streamfleet.common.protocol import CHAT, COMPLETIONS, MESSAGES, RESPONSES

MOST_DIGITS = 400
"""Text longer than this is no number that anybody means, whatever an engine makes of it."""
MOST_TOKENS = 10_000_000
"""No sequence holds more; a body may claim any number."""
DEFAULT_COMPLETION = 16
"""Output tokens of a completion that names no limit, by OpenAI's API."""
BYTES_PER_TOKEN = 4
"""Rough English text per token, until `usage` tells how far it is off."""
DENSE_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 3, 16
"""Bounds of that: a prompt rarely has more tokens than one for each 3 bytes, and one does not fit that has more than 16
bytes for each token that fits."""
USUAL_OUTPUT = 256
"""Output tokens of a sequence that sets no limit, as a guess until some have ended."""
LIMIT_FIELDS = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETIONS: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
}
"""Fields for the limit of output tokens, by endpoint; the first that is there counts, as in vLLM."""
OUTPUT_LIMITS = tuple(dict.fromkeys(name for names in LIMIT_FIELDS.values() for name in names))
"""All names of limits of output tokens."""


def number(value: Any) -> float | None:
    """Value of a number, or of text that an engine reads as one. None for everything else.

    Text of more than `MOST_DIGITS` characters that starts like a number counts as infinite. Booleans are not numbers
    here: as 0 and 1 they cost nothing.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and len(value) > MOST_DIGITS:
        return float("inf") if value[:1] in "+0123456789 " else None
    try:
        read = float(value)
        return None if math.isnan(read) else read
    except OverflowError:
        return float("inf") if isinstance(value, int) and value > 0 else float("-inf")
    except ValueError:
        return None


def whole(value: Any) -> int | None:
    """The same as a whole number of 1 or more; None if it is less, or not finite."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 1 else None
    read = number(value)
    return int(read) if read is not None and 1 <= read < float("inf") else None


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "…"


def output_limit(body: Mapping[str, Any], endpoint: str) -> int | None:
    """Most output tokens of one sequence, by the field that the engine takes; None if the body sets no limit.

    0 for endpoints that generate nothing. Of a chat, `max_completion_tokens` goes before `max_tokens`. What the engine
    reads as 0 counts as 1, and more than `MOST_TOKENS` as that. What is negative, infinite or no number is no limit: an
    engine either refuses or ignores it.
    """
    if endpoint not in LIMIT_FIELDS:
        return 0
    for name in LIMIT_FIELDS[endpoint]:
        if (given := body.get(name)) is not None:
            return given if type(given) is int and 0 < given <= MOST_TOKENS else _limit(given)
    return DEFAULT_COMPLETION if endpoint == COMPLETIONS and "max_tokens" not in body else None


def sequences(body: Mapping[str, Any]) -> int:
    """Number of sequences that run together for a body: its choices, for each of its prompts."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)  # integers: one prompt in tokens
    return (whole(body.get("n")) or 1) * (len(prompt) if isinstance(prompt, list) and several else 1)


def _limit(value: Any) -> int | None:
    read = float(value) if isinstance(value, bool) else number(value)
    if read is None or read < 0 or (read == math.inf and not isinstance(value, int)):
        return None
    return int(min(max(1.0, read), MOST_TOKENS))
