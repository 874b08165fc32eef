"""Parses times and spans of the command line, and formats spans for people. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from streamfleet.common.envelope import check_deadline
from streamfleet.common.errors import InvalidRequest

_SPAN = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,16})?)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_span(text: str, param: str = "ttl") -> int:
    """Milliseconds of a span such as ``500ms``, ``30s``, ``1.5m``, ``2h`` or ``1d``.

    Raises:
        InvalidRequest: the text is not a span.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(f"must be a span such as 500ms, 30s, 10m, 2h or 1d, not {text[:40]!r}", param)
    return round(float(match[1]) * _UNIT_MS[match[2]])


def parse_deadline(text: str, now_ms: int, param: str = "deadline") -> int:
    """Epoch milliseconds of a time (ISO 8601 with its offset), a span from `now_ms`, or epoch milliseconds.

    Raises:
        InvalidRequest: the text is none of these.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{9,16}", text):
        return check_deadline(int(text))
    if _SPAN.fullmatch(text):
        return now_ms + parse_span(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"must be a time such as 2030-01-31T12:00:00Z, a span such as 10m, or epoch ms, not {text[:40]!r}",
            param,
        ) from None
    if moment.tzinfo is None:
        raise InvalidRequest(f"{text} needs its offset, such as {text}Z or {text}+02:00", param)
    return round(moment.timestamp() * 1000)


def in_words(seconds: float | None) -> str:
    """A span for people: ``850 ms``, ``42 s``, ``3 min 10 s``, ``2 h 5 min``, ``3 d 4 h``; a dash for none."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return f"{in_words(-seconds)} ago"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = round(seconds)
    for size, name, below, lesser in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name} {rest} {lesser}" if rest else f"{whole // size} {name}"
    return f"{whole} s"
