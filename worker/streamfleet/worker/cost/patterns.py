"""Cost of a regular expression to an engine that constrains a model's output to match it.

A pattern goes in; bounds of its ways and its size come out, in time linear in its length. **Ways** are the places in it
that one text can have reached: an engine follows all of them for every token of its vocabulary, at every step, and
every request in it waits; `(.?){100}x` has 101. **Size** counts characters once repeats are written out: compiling may
take time in its square. The length shows neither. Pure.
"""

from __future__ import annotations

import re
from dataclasses import replace

from streamfleet.worker.cost.parts import (
    ASCII,
    MOST,
    OTHERS,
    Part,
    joined,
    mask_of,
    one_of,
    one_of_these,
    plain,
    repeated,
)

_HEX = re.compile("[0-9a-fA-F]{1,8}")
_PAIR_MS = 1 / 7_000  # of CPU for each pair of characters, where a schema holds the pattern
MOST_GROUPS = 50
"""Groups within groups; no engine reads more."""
_ANY = ASCII | OTHERS
_DIGITS = mask_of("0123456789")
_WORD = _DIGITS | mask_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE = mask_of(" \t\n\r\f\v")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CLASSES |= {name.upper(): _ANY & ~mask for name, mask in _CLASSES.items()}
_LAST = 0x10FFFF
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}


class Unreadable(ValueError):
    """The cost of the pattern cannot be told; the message names the part at fault."""


class Empty(ValueError):
    """The pattern has a class of no character; an engine's compiler finds no token for that."""


def weigh(pattern: str) -> Part:
    """Cost of the whole pattern.

    Raises:
        Unreadable: it looks around or back, sets flags, nests deeper than `MOST_GROUPS`, or is not well formed.
        Empty: it has a class of no character.
    """
    reader = _Reader(pattern)
    whole = reader.alternatives(0)
    if reader.at < len(pattern):
        raise Unreadable("has a ')' without its '('")
    return replace(whole, compile_ms=whole.compile_ms + min(whole.size, MOST) ** 2 * _PAIR_MS)


class _Reader:
    """Reads a pattern from left to right, each character once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self._codes = (0, 0)  # first and last beyond ASCII of what was read last

    def alternatives(self, depth: int) -> Part:
        if depth > MOST_GROUPS:
            raise Unreadable(f"nests more than {MOST_GROUPS} groups")
        found = [self._sequence(depth)]
        while self._skip("|"):
            found.append(self._sequence(depth))
        return found[0] if len(found) == 1 else one_of_these(found)

    def _sequence(self, depth: int) -> Part:
        found = Part()
        while self.at < len(self._text) and self._text[self.at] not in "|)":
            found = joined(found, self._quantified(self._atom(depth)))
        return found

    def _quantified(self, part: Part) -> Part:
        while (times := self._times()) is not None:
            part = repeated(part, *times)
            self._skip("?")  # lazy: the same texts match
        return part

    def _times(self) -> tuple[int, int | None] | None:
        for sign, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(sign):
                return times
        if not self._text.startswith("{", self.at):
            return None
        end = self._text.find("}", self.at, self.at + 40)
        low, comma, high = self._text[self.at + 1 : max(end, self.at + 1)].partition(",")
        if end < 0 or not (low + high).isascii() or not (low + high).isdigit():
            return None  # a brace is like any other character here
        self.at = end + 1
        least = min(MOST, int(low or 0))
        return (least, least) if not comma else (least, max(least, min(MOST, int(high)))) if high else (least, None)

    def _atom(self, depth: int) -> Part:
        char = self._next()
        if char == "(":
            self._group_kind()
            inside = self.alternatives(depth + 1)
            if not self._skip(")"):
                raise Unreadable("has a '(' without its ')'")
            return replace(inside, one_class=False)
        if char == "[":
            return one_of(self._class())
        if char == ".":
            return one_of(_ANY)
        if char in "^$":
            return Part()
        return one_of(self._escape()) if char == "\\" else plain(char)

    def _group_kind(self) -> None:
        if not self._skip("?"):
            return
        if self._skip(":"):
            return
        self._skip("P")
        named = self._text.startswith("<", self.at) and self._text[self.at + 1 : self.at + 2] not in ("=", "!")
        end = self._text.find(">", self.at, self.at + 80) if named else -1
        if end < 0:
            raise Unreadable("looks around, or sets flags: a '(?' other than '(?:' and '(?<name>'")
        self.at = end + 1

    def _escape(self) -> int:
        char = self._next()
        if char in _CLASSES:
            if _CLASSES[char] & OTHERS:
                self._codes = (128, _LAST)
            return _CLASSES[char]
        if char in _CONTROLS:
            return mask_of(_CONTROLS[char])
        if char in "pP":
            self._braced()
            return _ANY  # some of them, nobody knows which
        if char in "xu":
            return self._code(char)
        if char.isalnum():
            raise Unreadable(f"uses \\{char}, which has no meaning here")
        return mask_of(char)

    def _code(self, kind: str) -> int:
        digits = self._braced()
        if digits is None:
            width = 2 if kind == "x" else 4
            digits = self._text[self.at : self.at + width].ljust(width)
            self.at += width
        if not _HEX.fullmatch(digits):
            raise Unreadable(f"has a \\{kind} without its digits")
        code = int(digits, 16)
        if code > _LAST:
            raise Unreadable(f"has a \\{kind} beyond the last character of Unicode")
        self._codes = (code, code)
        return 1 << min(code, 128)

    def _braced(self) -> str | None:
        if not self._text.startswith("{", self.at):
            return None
        end = self._text.find("}", self.at, self.at + 80)
        if end < 0:
            raise Unreadable("has a '{' without its '}'")
        inside = self._text[self.at + 1 : end]
        self.at = end + 1
        return inside

    def _class(self) -> int:
        negated = self._skip("^")
        found, first = 0, True
        beyond: set[tuple[int, int]] = set()
        while first or not self._skip("]"):
            found |= self._range(beyond)
            first = False
        found = (ASCII & ~found) | (OTHERS * _leave_some(beyond)) if negated else found
        if not found:
            raise Empty("has a class of no character, so no text can match it")
        return found

    def _range(self, beyond: set[tuple[int, int]]) -> int:
        low, first = self._member(), self._codes
        beyond.add(first)
        if not (self._text.startswith("-", self.at) and self._text[self.at + 1 : self.at + 2] not in ("", "]")):
            return low
        self.at += 1
        high, last = self._member(), self._codes
        beyond.add(last)
        if low.bit_count() != 1 or high.bit_count() != 1:
            return low | high | mask_of("-")
        beyond.add((first[0], last[1]))
        return ((high << 1) - 1) & ~(low - 1)  # none if it runs backwards

    def _member(self) -> int:
        char = self._next()
        self._codes = (ord(char), ord(char))
        return self._escape() if char == "\\" else mask_of(char)

    def _next(self) -> str:
        if self.at >= len(self._text):
            raise Unreadable("ends too early")
        self.at += 1
        return self._text[self.at - 1]

    def _skip(self, sign: str) -> bool:
        if not self._text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True


def _leave_some(ranges: set[tuple[int, int]]) -> bool:
    """True if the ranges do not cover all characters beyond ASCII."""
    covered = 127
    for low, high in sorted(ranges):
        if low > covered + 1:
            break
        covered = max(covered, high)
    return covered < _LAST
