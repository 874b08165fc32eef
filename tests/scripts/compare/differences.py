"""Differences between the kept scripts and today's that are meant, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Dump = Mapping[str, Mapping[str, Any]]
"""By key, without the queue's prefix: its type, TTL and value."""


class Reply(NamedTuple):
    """Replies of a verb that are the same once `change` was applied to both."""

    verb: str
    change: Callable[[Any], Any]
    reason: str


class Key(NamedTuple):
    """Keys that are the same once `change` was applied to both sides.

    Attributes:
        pattern: matches the whole name, without the queue's prefix.
        change: takes name and value; returns values by the names under which they are compared. Hashes that come under
            one name are one.
    """

    pattern: str
    change: Callable[[str, Any], Mapping[str, Any]]
    reason: str


@dataclass(frozen=True)
class Allowed:
    """All differences that are meant."""

    replies: Sequence[Reply] = field(default=())
    keys: Sequence[Key] = field(default=())

    def reply(self, verb: str, reply: Any) -> Any:
        """A reply as it is compared."""
        for rule in self.replies:
            reply = rule.change(reply) if rule.verb == verb else reply
        return reply

    def dump(self, dump: Dump) -> dict[str, Any]:
        """All keys as they are compared."""
        found: dict[str, Any] = {}
        for name, value in dump.items():
            rule = next((rule for rule in self.keys if re.fullmatch(rule.pattern, name)), None)
            for new, part in ({name: value} if rule is None else rule.change(name, value)).items():
                both = [each["value"] for each in (found.get(new), part) if each]
                joined = {**both[0], **both[1]} if len(both) > 1 else both[0]
                found[new] = {**part, "value": joined}
        return found


ALLOWED = Allowed()
