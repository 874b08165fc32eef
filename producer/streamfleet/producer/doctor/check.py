"""One thing that was looked at, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How it stands. Unknown: Redis does not say, or not to this user."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at.
        level: how it stands.
        seen: what was seen.
        change: what to change, naming the setting; empty where all is well.
    """

    name: str
    level: Level
    seen: str
    change: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def ok(name: str, seen: str) -> Check:
    """All is well."""
    return Check(name, Level.OK, seen)


def warn(name: str, seen: str, change: str) -> Check:
    """It works, but something can go wrong, or goes slowly."""
    return Check(name, Level.WARN, seen, change)


def fail(name: str, seen: str, change: str) -> Check:
    """Something does not work, or requests are lost by it."""
    return Check(name, Level.FAIL, seen, change)


def unknown(name: str, seen: str, change: str) -> Check:
    """It cannot be told."""
    return Check(name, Level.UNKNOWN, seen, change)
