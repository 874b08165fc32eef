"""Checks numbers from files and the command line; errors name the field. Pure."""

from __future__ import annotations

import math
import re
from typing import Any

from streamfleet.common.errors import InvalidRequest

_PER_CENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")


def number(value: Any, name: str, *, least: float = 0.0, above: bool = False, most: float = 1e15) -> float:
    """Check a finite number from `least` (or above it) to `most`.

    Raises:
        InvalidRequest: it is not one; the error names the field.
    """
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or value > most or value < least or (above and value == least):
        words = "more than" if above else "at least"
        raise InvalidRequest(f"must be a number of {words} {least:g} and at most {most:g}, not {value!r:.60}", name)
    return float(value)


def whole(value: Any, name: str, *, least: int = 0, most: int = 10**12) -> int:
    """Check a whole number from `least` to `most`.

    Raises:
        InvalidRequest: it is not one; the error names the field.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidRequest(f"must be a whole number from {least} to {most}, not {value!r:.60}", name)
    return value


def share(text: str, name: str) -> float:
    """Parse a share such as ``0.5%`` into a fraction of 1.

    Raises:
        InvalidRequest: it is not a share, or more than 100 %.
    """
    found = _PER_CENT.fullmatch(text.strip())
    if found is None or float(found[1]) > 100:
        raise InvalidRequest(f"must be per cent, such as 0.5%, not {text[:40]!r}", name)
    return float(found[1]) / 100
