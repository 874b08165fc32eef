"""Tools for families of hostile bodies.

A family is a function of a random generator; each call makes one more variant. What it makes is whatever may stand in
a lane's entry: not only bodies, and not only JSON.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Entry:
    """The fields of one entry, without its id."""

    body: bytes
    more: dict[str, bytes] = field(default_factory=dict)


Family = Callable[[random.Random], Entry]
FAMILIES: dict[str, Family] = {}


def family(maker: Family) -> Family:
    """Takes a family in, under its function's name."""
    FAMILIES[maker.__name__] = maker
    return maker


def entry(body: Any, endpoint: str = "", **more: str) -> Entry:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {name: value.encode() for name, value in more.items()}
    return Entry(text, {**fields, "endpoint": endpoint.encode()} if endpoint else fields)


def chat(content: Any = "Say hi.", **more: Any) -> dict[str, Any]:
    """A chat that would be harmless, and what makes it another one."""
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}


def shaped(rng: random.Random, schema: Any) -> Entry:
    """A chat whose answer is to follow a schema, in one of the ways in which that can be asked for."""
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    named = {"type": "function", "function": {"name": "f"}}
    asked: list[dict[str, Any]] = [
        {"response_format": wrapped},
        {"structured_outputs": {"json": schema}},
        {"structured_outputs": {"json": json.dumps(schema)}},
        {"guided_json": schema},
        {"tools": [tool], "tool_choice": named},
    ]
    return entry(chat(**rng.choice(asked)))


def properties(count: int, make: Callable[[int], Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": make(number) for number in range(count)}}
