"""Numbers as engines read them: a body may write a number as text, and some text is not a number.

Any value of a body goes in; its number comes out, or None. The checks of this package compare it with their limits.
"""

from __future__ import annotations

import math
from typing import Any

MOST_DIGITS = 400
"""Text longer than this is no number that anybody means, whatever an engine makes of it."""


def number(value: Any) -> float | None:
    """Value of a number, or of text that an engine reads as one. None for everything else.

    Text of more than `MOST_DIGITS` characters that starts like a number counts as infinite. Booleans are not numbers
    here: as 0 and 1 they cost nothing.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and len(value) > MOST_DIGITS:
        return float("inf") if value[:1] in "+0123456789 " else None
    try:
        read = float(value)
        return None if math.isnan(read) else read
    except OverflowError:
        return float("inf") if isinstance(value, int) and value > 0 else float("-inf")
    except ValueError:
        return None


def whole(value: Any) -> int | None:
    """The same as a whole number of 1 or more; None if it is less, or not finite."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 1 else None
    read = number(value)
    return int(read) if read is not None and 1 <= read < float("inf") else None


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    text = str(value)
    return text if len(text) <= 40 else text[:40] + "…"
