"""JSON text in the forms that are needed: sent and compared form of requests, records on a line each. Pure.

Encoders are created once: `json.dumps` and `json.loads` create one in each call with options, which is half of the cost
of a small body. Circular references are not detected; they end in a RecursionError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json import encoder as json_encoder
from typing import Any

from pydantic_core import from_json

_QUOTE_CHARS = 1_048_576
"""Of a longer string, so much is quoted at once: no call of the encoder's C part can be interrupted."""
_NUMBERS_AT_ONCE = 4_096
"""Of a list of numbers, so many are written at once, for the same reason: about 0.4 ms."""
_MESSAGE = ("role", "content")
_ALIKE = frozenset({bool, float, int, type(None)})
_DELETE = "\x7f"
_LINE_END = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def _quote(text: str) -> str:
    return json_encoder.encode_basestring(text) if len(text) <= _QUOTE_CHARS else _in_pieces(text, _quote)


def _quote_ascii(text: str) -> str:
    return json_encoder.encode_basestring_ascii(text) if len(text) <= _QUOTE_CHARS else _in_pieces(text, _quote_ascii)


def _in_pieces(text: str, quote: Callable[[str], str]) -> str:
    pieces = [quote(text[at : at + _QUOTE_CHARS])[1:-1] for at in range(0, len(text), _QUOTE_CHARS)]
    return f'"{"".join(pieces)}"'


def encoder(*, ascii_only: bool, sort_keys: bool, allow_nan: bool) -> Callable[[Any], str]:
    """Returns an encoder that writes without blanks, as `json.dumps` does with these options."""
    make: Any = getattr(json_encoder, "c_make_encoder", None)
    if make is None:  # a Python whose json has no C part
        return json.JSONEncoder(
            check_circular=False,
            ensure_ascii=ascii_only,
            sort_keys=sort_keys,
            allow_nan=allow_nan,
            separators=(",", ":"),
        ).encode
    quote = _quote_ascii if ascii_only else _quote
    pieces = make(None, json.JSONEncoder().default, quote, None, ":", ",", sort_keys, False, allow_nan)
    return lambda value: "".join(pieces(value, 0))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


compact = encoder(ascii_only=False, sort_keys=False, allow_nan=False)
"""Sent form of a value: no blanks, keys in the order given. Raises TypeError, ValueError or RecursionError."""

canonical = encoder(ascii_only=True, sort_keys=True, allow_nan=True)
"""Compared form of a parsed value: no blanks, keys sorted, ASCII."""

_decoder: Any = json.JSONDecoder(parse_constant=_refuse_constant)


def parse(text: bytes | str) -> Any:
    """The value of a JSON text; no NaN and no Infinity. Raises ValueError or RecursionError.

    pydantic's parser takes a third of the time of Python's, which reads what that one refuses: halves of surrogate
    pairs, deep nesting. Errors are Python's.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        text = text if isinstance(text, str) else text.decode()
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
    return _decoder.decode(text)


def parse_first(text: str) -> tuple[Any, int]:
    """The value at the start of a text, as `parse` reads it, and the position of its end. Raises also StopIteration."""
    value, end = _decoder.scan_once(text, 0)
    return value, end


def parse_compact(text: str) -> Any:
    """The value of a text that `compact` wrote. Raises RecursionError."""
    return _decoder.scan_once(text, 0)[0]


def single_line(text: str) -> str:
    """A JSON text without any character at which a reader may end a line: those inside of strings become escapes.

    JSON lets U+0085, U+2028 and U+2029 stand in strings as they are, but `str.splitlines` of Python, `iter_lines` of
    httpx and others end a line there. Line breaks between tokens become blanks. Most texts return unchanged, fast.
    """
    breaks = not text.isascii() and ("\u2028" in text or "\u2029" in text or "\x85" in text)
    return _LINE_END.sub(_escaped, text) if breaks or "\r" in text or "\n" in text else text


def _escaped(found: re.Match[str]) -> str:
    return " " if found[0] in "\r\n" else f"\\u{ord(found[0]):04x}"


def json_line(value: Any) -> str:
    """A value as a record of a file or output that has one on each line, readable: with blanks, not ASCII alone."""
    return single_line(json.dumps(value, ensure_ascii=False))


def texts(body: dict[Any, Any]) -> tuple[str, str]:
    """An object in its sent form (`compact`), and in its compared form (`canonical`).

    Most bytes of a body are texts, at the top or in messages. They are quoted once for both forms and not parsed again,
    which halves the cost. Raises TypeError, ValueError or RecursionError.
    """
    sent: list[str] = []
    compared: list[tuple[str, str]] = []
    for key, value in body.items():
        if type(key) is not str or not key.isascii():
            return _both(body)
        kind = type(value)
        if kind is str:
            text = _quote(value)
            other = text if text.isascii() else _quote_ascii(value)
        elif kind is int:
            text = other = int.__repr__(value)
        elif kind is list:
            text, other = _messages(value)
        else:
            text, other = _both(value)
        name = _quote(key)
        sent.append(f"{name}:{text}")
        compared.append((key, f"{name}:{other}"))
    whole = "{" + ",".join(sent) + "}"
    if _DELETE in whole:  # only `canonical` escapes it
        return _both(body)
    compared.sort()
    return whole, "{" + ",".join([text for _, text in compared]) + "}"


def _messages(values: list[Any]) -> tuple[str, str]:
    sent: list[str] = []
    compared: list[str] = []
    for value in values:
        if type(value) is not dict or tuple(value) != _MESSAGE:
            return _tokens(values) or _both(values)
        role, content = value.values()
        if type(role) is not str or type(content) is not str:
            return _both(values)
        if not role.isascii():
            return _both(values)
        role, text = _quote(role), _quote(content)
        other = text if text.isascii() else _quote_ascii(content)
        sent.append(f'{{"role":{role},"content":{text}}}')
        compared.append(f'{{"content":{other},"role":{role}}}')
    return f"[{','.join(sent)}]", f"[{','.join(compared)}]"


def _tokens(values: list[Any]) -> tuple[str, str] | None:
    """Both forms of a prompt in tokens, or of a list of them, which are the same; None for anything else."""
    lists = values if set(map(type, values)) == {list} else [values]
    texts: list[str] = []
    for each in lists:
        if set(map(type, each)) != {int}:
            return None
        parts = [compact(each[at : at + _NUMBERS_AT_ONCE])[1:-1] for at in range(0, len(each), _NUMBERS_AT_ONCE)]
        texts.append(f"[{','.join(parts)}]")
    text = texts[0] if lists is not values else f"[{','.join(texts)}]"
    return text, text


def _both(value: Any) -> tuple[str, str]:
    text = compact(value)
    return text, text if type(value) in _ALIKE else canonical(parse_compact(text))
