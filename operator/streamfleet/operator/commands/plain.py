"""Escapes foreign text, so that a terminal shows it and does not obey control characters in it."""

from __future__ import annotations

import re

from rich.markup import escape

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def plain(text: str | bytes) -> str:
    """Escape control characters, and bytes that are not UTF-8, as ``\\x1b``."""
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    text = text.encode(errors="backslashreplace").decode()
    return _CONTROL.sub(lambda found: f"\\{'x' if ord(found[0]) < 256 else 'u'}{ord(found[0]):02x}", text)


def one_line(text: str | bytes) -> str:
    """As `plain`, on one line: a line break in the text must not look like output of the command."""
    return plain(text).replace("\n", "\\n")


def cell(text: str) -> str:
    """As `one_line`, for a cell of a table, where brackets would be read as colours."""
    return escape(one_line(text))
