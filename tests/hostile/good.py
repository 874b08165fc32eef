"""Requests that anybody might send: short chats, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

_QUESTIONS = (
    "What is the capital of {}?",
    "Say something nice about {}.",
    "Which language do people speak in {}?",
    "Write one line on the weather in {}.",
)
_PLACES = ("France", "Norway", "Peru", "Kenya", "Japan", "Chile", "India", "Greece", "Canada", "Ghana")


def good(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """So many bodies, each of 8 to 24 tokens of output; every tenth has its answer follow a small schema."""
    rng = random.Random(seed)
    for number in range(count):
        question = rng.choice(_QUESTIONS).format(rng.choice(_PLACES))
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"{question} ({number})"}],
            "max_tokens": rng.randrange(8, 25),
            "temperature": 0.7,
        }
        if number % 10 == 9:
            schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        yield body
