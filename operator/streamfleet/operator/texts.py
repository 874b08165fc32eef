"""Untrusted bytes as bounded text for `json_view`, so that hostile content breaks no answer. Pure.

Every text that comes from Redis passes through here before it is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamfleet.common import jsontext
from streamfleet.common.envelope import MAX_META_BYTES
from streamfleet.common.errors import naming
from streamfleet.common.results import cached_tokens
from streamfleet.operator.commands.plain import plain

MOST_CHARS, SHORT_CHARS, LINE_CHARS = 65_536, 2_048, MAX_META_BYTES
"""Most characters of a body or a result; of one in a list; of a field."""
MOST_FIELDS = 32
MOST_COUNT = 2**53
_ERROR = ("message", "type", "param", "code")
_indented = json.JSONEncoder(ensure_ascii=False, check_circular=False, indent=2)


def line(value: object, most: int = LINE_CHARS) -> str:
    """Returns a text, cut to its bound; an empty one for a value that is no text."""
    if isinstance(value, bytes):
        value = value[: 4 * most].decode(errors="backslashreplace")
    return plain(value[:most])[:most] if isinstance(value, str) else ""


def line_or_none(value: object) -> str | None:
    """Returns a text, cut to its bound; None for an empty one, or a value that is no text."""
    return line(value) or None


def passage(value: bytes | str | None, most: int = MOST_CHARS) -> dict[str, Any] | None:
    """Returns a body, indented if it is JSON; None for None.

    Args:
        value: as Redis holds it.
        most: most characters to show.
    """
    if value is None:
        return None
    raw = value.encode(errors="backslashreplace") if isinstance(value, str) else value
    shown, whole = _as_json(raw, most)
    is_json = shown is not None
    if shown is None:
        text = raw[: 4 * most].decode(errors="backslashreplace")
        shown, whole = text[:most], len(text) <= most and len(raw) <= 4 * most
    clean = plain(shown)
    return {
        "text": clean[:most],
        "json": is_json,
        "bytes": len(raw),
        "cut": not whole or len(clean) > most,
    }


def error_of(error: Mapping[str, Any] | None) -> dict[str, str | None] | None:
    """Returns the four texts of an error object, and nothing else of it."""
    if error is None:
        return None
    said = {name: error.get(name) for name in _ERROR}
    return {name: line(value, SHORT_CHARS) if isinstance(value, str) else None for name, value in said.items()}


def reason_of(error: Mapping[str, Any] | None) -> str:
    """Returns the message of an error, with the wrong field if it names one."""
    said = error_of(error) or {}
    return naming(said.get("message") or "no message", said.get("param"))


def usage_of(usage: Mapping[str, Any] | None) -> dict[str, int] | None:
    """Returns token usage: only numbers that JavaScript can represent exactly; None if there are none.

    `cached_tokens` is among them if the engine tells it.
    """
    counts = {
        line(name, 64): count
        for name, count in list((usage or {}).items())[:MOST_FIELDS]
        if isinstance(count, int) and not isinstance(count, bool) and abs(count) < MOST_COUNT
    }
    if cached := cached_tokens(usage or {}):
        counts["cached_tokens"] = cached
    return counts or None


def fields_of(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """Returns an entry's fields, except its body."""
    others = [(name, value) for name, value in fields.items() if name != b"body"]
    return {line(name, 64): line(value) for name, value in others[:MOST_FIELDS]}


def _as_json(raw: bytes, most: int) -> tuple[str | None, bool]:
    """Returns indented JSON, and True if it is all of it; None for a text that is no JSON. Stops at the bound, because
    the indentation of deeply nested JSON is a thousand times its size."""
    parts: list[str] = []
    size = 0
    try:
        for part in _indented.iterencode(jsontext.parse(raw.decode())):
            parts.append(part)
            size += len(part)
            if size > most:
                return "".join(parts)[:most], False
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None, False
    return "".join(parts), True
