"""One check of `streamfleet doctor`, and its finding."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """Level of a finding. Unknown: Redis does not tell, or not to this user."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        name: name of the check.
        level: its level.
        seen: the observed state.
        change: the setting to change; empty if nothing is wrong.
    """

    name: str
    level: Level
    seen: str
    change: str = ""

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return asdict(self)


def ok(name: str, seen: str) -> Check:
    """A finding without a problem."""
    return Check(name, Level.OK, seen)


def warn(name: str, seen: str, change: str) -> Check:
    """A finding of a risk or of slowness."""
    return Check(name, Level.WARN, seen, change)


def fail(name: str, seen: str, change: str) -> Check:
    """A finding of a fault that stops the work or loses requests."""
    return Check(name, Level.FAIL, seen, change)


def unknown(name: str, seen: str, change: str) -> Check:
    """A finding that could not be determined."""
    return Check(name, Level.UNKNOWN, seen, change)
