"""Text of anybody's, as a terminal shows and does not obey it."""

from __future__ import annotations

import re

from rich.markup import escape

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str | bytes) -> str:
    """Without control characters; these, and bytes that are no UTF-8, are written as ``\\x1b``."""
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    text = text.encode(errors="backslashreplace").decode()
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def one_line(text: str | bytes) -> str:
    """The same on one line: a break in it must not look like a line of ours."""
    return plain(text).replace("\n", "\\n")


def cell(text: str) -> str:
    """The same for a cell of a table, where brackets would be taken for colours."""
    return escape(one_line(text))
