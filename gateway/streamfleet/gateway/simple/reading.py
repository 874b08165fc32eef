"""The body of a call with many prompts, read value by value: none of them takes long, whatever is in it. Pure.

`read_call` takes the bytes and returns the fields, or raises an error that names one. A single call of the JSON decoder
would hold up all other threads for as long as megabytes take.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json import decoder
from typing import Any

from streamfleet.common import jsontext
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import check_plain

PROMPTS = "prompts"
SHORT_CHARS = 256
MOST_SHARED_CHARS = 1_048_576
"""Most characters of all fields but the prompts together, even where a request may have more: many get a copy."""
MANY_ESCAPES = 250_000
"""Backslashes of a call from which its strings are decoded in pieces: the decoder takes about 30 ns for an escape."""
_PIECE_CHARS = 262_144
_BLANK = re.compile(r"[ \t\n\r]*")
_PIECE = re.compile(r'(?:[^"\\]+|\\u[dD][89abAB]..\\u.{4}|\\u.{4}|\\[^u]){1,20000}', re.DOTALL)
"""Part of a JSON string that ends between two escapes, and never within a surrogate pair."""


def utf8_bytes(text: str) -> int:
    """Returns the length of a text in UTF-8, measured in pieces: a copy of the whole would hold up other threads.

    Raises:
        UnicodeEncodeError: it has half of a surrogate pair.
    """
    return sum(len(text[at : at + _PIECE_CHARS].encode()) for at in range(0, len(text), _PIECE_CHARS))


def read_call(raw: bytes, most_prompts: int, most_shared: int) -> dict[str, Any]:
    """The fields of a call.

    Args:
        raw: the body.
        most_prompts: longest list of prompts.
        most_shared: how long all other fields may be together, in characters: they go into each request.

    Raises:
        InvalidRequest: it is no JSON object, or a field is too long; `param` names it.
    """
    try:
        return _Reader(raw.decode()).fields(most_prompts, most_shared)
    except UnicodeDecodeError as error:
        text = f"is not UTF-8: byte {error.start} is {raw[error.start]:#04x}"
        raise InvalidRequest(text, "body", "invalid_encoding") from None
    except UnicodeEncodeError:
        text = "holds half of a surrogate pair, which is no character"
        raise InvalidRequest(text, "body", "invalid_encoding") from None
    except RecursionError:
        raise InvalidRequest("is nested too deeply", "body", "invalid_json") from None
    except ValueError as error:
        raise InvalidRequest(f"is not JSON: {error}", "body", "invalid_json") from None


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._in_pieces = text.count("\\") > MANY_ESCAPES

    def fields(self, most_prompts: int, most_shared: int) -> dict[str, Any]:
        if not self._comes("{"):
            raise InvalidRequest("must be a JSON object", "body", "invalid_type")
        found: dict[str, Any] = {}
        left = most_shared
        more = not self._comes("}")
        while more:
            begin = self._at
            name = self._string()
            self._need(":")
            if name == PROMPTS and self._comes("["):
                found[name] = self._prompts(most_prompts)
            else:
                found[name] = self._value(name, left)
                left -= self._at - begin
                if left < 0:
                    raise _too_long(name, most_shared)
            more = self._comes(",")
            if not more:
                self._need("}")
        if self._blank() < len(self._text):
            raise json.JSONDecodeError("Extra data", self._text, self._at)
        return found

    def _prompts(self, most: int) -> list[str]:
        found: list[str] = []
        more = not self._comes("]")
        while more:
            if len(found) == most:
                text = f"has more than {most} prompts, which is the limit: split it, or use /v1/batches"
                raise InvalidRequest(text, PROMPTS, "too_many_prompts")
            if self._blank() < len(self._text) and self._text[self._at] != '"':
                raise InvalidRequest("must be a text", f"{PROMPTS}[{len(found)}]", "invalid_type")
            found.append(self._string())
            more = self._comes(",")
            if not more:
                self._need("]")
        return found

    def _value(self, name: str, most: int) -> Any:
        """Any value. The decoder gets no more of the text than that may have: it does not stop before the end of it."""
        begin = self._blank()
        for chars in (SHORT_CHARS, most + 1):
            some = self._text[begin : begin + chars]
            if chars > SHORT_CHARS:
                check_plain(some.encode(errors="replace"), most, name)
            whole = begin + len(some) == len(self._text)
            try:
                value, end = jsontext.parse_first(some)
            except StopIteration:
                if whole:
                    raise json.JSONDecodeError("Expecting value", self._text, begin) from None
            except json.JSONDecodeError as error:
                if whole:
                    raise json.JSONDecodeError(error.msg, self._text, begin + error.pos) from None
            else:
                if whole or end < len(some):  # else a number may go on
                    jsontext.compact(value).encode()  # as in `_string`
                    self._at = begin + end
                    return value
        raise _too_long(name, most)

    def _string(self) -> str:
        self._need('"')
        begin = self._at
        pieces = [*self._pieces()] if self._in_pieces else []
        try:
            rest, self._at = decoder.scanstring(self._text, self._at)  # type: ignore[attr-defined]
        except json.JSONDecodeError as error:
            at = begin - 1 if error.msg.startswith("Unterminated") else error.pos  # not where the last piece ends
            raise json.JSONDecodeError(error.msg, self._text, at) from None
        utf8_bytes(rest)
        return "".join((*pieces, rest))

    def _pieces(self) -> Iterator[str]:
        """Yields what comes before the end of a string. Other threads run between two pieces."""
        while match := _PIECE.match(self._text, self._at):
            try:
                piece, _ = decoder.scanstring(f'{match[0]}"', 0)  # type: ignore[attr-defined]
            except json.JSONDecodeError:
                return  # the decoder finds the same again, and says where
            utf8_bytes(piece)
            self._at = match.end()
            yield piece

    def _blank(self) -> int:
        match = _BLANK.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _comes(self, char: str) -> bool:
        if not self._text.startswith(char, self._blank()):
            return False
        self._at += 1
        return True

    def _need(self, char: str) -> None:
        if not self._comes(char):
            raise json.JSONDecodeError(f"Expecting {char!r}", self._text, self._at)


def _too_long(name: str, most: int) -> InvalidRequest:
    text = f"is no JSON value of at most {most} characters, which is what all fields but {PROMPTS} may have together"
    return InvalidRequest(text, name, "request_too_large")
