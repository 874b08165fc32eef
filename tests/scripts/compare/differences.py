"""Differences between the kept scripts and today's that are meant, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamfleet.common.broker.types import EnqueueCode
from streamfleet.common.connection import Connection
from streamfleet.common.protocol import LANES

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


RENAMED = {"before_reclaiming": "promote", "after_staging": "expire"}
"""Verbs of today's brokers, and what the kept ones call the same."""


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


NOT_PLAYED = (
    "a renewal leaves the charge of an entry that was deleted by hand to the upkeep: all that follows may differ"
)
"""Reason for which histories with tenants renew no such entry."""


async def wake_the_same(today: Connection, kept: Connection) -> None:
    """A home is woken as a delayed request comes back. `promote` did not if it tidied it away in the same call."""
    both = (today, kept)
    for name in {
        name for side in both for pattern in ("*}:wake", "*}:home:*") for name in await side.command("KEYS", pattern)
    }:
        value, other = [await side.command("DUMP", name) for side in both]
        if value is None:
            await kept.command("DEL", name)
        elif value != other:
            await kept.command("RESTORE", name, max(0, await today.command("PTTL", name)), value, "REPLACE")


async def pace_the_same(today: Connection, kept: Connection) -> None:
    """The pace is measured with the limits of tenants that count since the call before. They counted a second later."""
    if pace := await today.command("GET", "{q}:pace"):
        await kept.command("HSET", "{q}:sched", "pace", pace)


MADE_SAME = {"before_reclaiming": wake_the_same, "after_staging": pace_the_same}
"""Keys that are made the same on the kept side behind a verb, because they may differ."""


def _in_any_order(reply: Any) -> Any:
    """A reply that is a mapping, without the order of its names."""
    kind, value = reply
    return (kind, sorted(value["pairs"])) if isinstance(value, dict) and "pairs" in value else reply


def _entries_in_any_order(name: str, value: Any) -> Mapping[str, Any]:
    """A stream, without the order of each entry's fields."""
    if value["type"] != b"stream":
        return {name: value}
    entries, *rest = value["value"]
    sorted_entries = [[entry, sorted(zip(flat[::2], flat[1::2], strict=True))] for entry, flat in entries]
    return {name: {**value, "value": [sorted_entries, *rest]}}


SCHED = {
    r"(?P<lane>\d)": "lanes credit:{lane}",
    r"seen:(?P<lane>\d)": "lanes staged:{lane}",
    r"(again|ahead|paused):(?P<lane>\d)": "lanes {0}:{lane}",
    r"(tenants|sessions|interrupted)": "lanes {0}",
    r"staged": "lanes ever_staged",
    r"((?:interrupted|enqueued):.*|kept_bytes)": "entries {0}",
    r"(turn|turns_from|reclaimed|forgot)": "clock {0}",
    r"looked:(?P<lane>\d)": "clock leases:{lane}",
    r"anew:(?P<lane>\d)": "clock ranks:{lane}",
    r"dead[:_](\w+)": "dead_parts {0}",
    r"listener:(\d)": "listeners {0}",
    r"pace": "pace ",
}
"""Fields of the kept hash `sched`, and key and field of today that have the same."""
KEYS = tuple({place.partition(" ")[0] for place in SCHED.values()})


def _placed(name: str) -> list[str]:
    """Key and field of today for a field of `sched`."""
    found, place = next((found, place) for pattern, place in SCHED.items() if (found := re.fullmatch(pattern, name)))
    lane = found.groupdict().get("lane")
    return place.format(*found.groups(), lane=lane and LANES[int(lane) - 1]).split(" ")


def _split(_: str, key: dict[str, Any]) -> dict[str, Any]:
    """The hash `sched` as the keys of today. A stream id stands where it had a member of a ready set."""
    found: dict[str, Any] = {}
    for name, value in key["value"].items():
        into, part = _placed(name.decode())
        member = re.fullmatch(rb"[A-Z](\d+)-[A-Z](\d+)", value)
        if part:
            values = found.setdefault(into, key | {"value": {}})["value"]
            values[part.encode()] = b"-".join(member.groups()) if member else value
        else:
            found[into] = key | {"type": b"string", "value": value}
    return found


def for_kept(words: Sequence[Any]) -> list[Any]:
    """A command as the kept side gets it."""
    return ["{q}:sched" if word in [f"{{q}}:{name}" for name in KEYS] else word for word in words]


KNOWN = {code.value for code in (EnqueueCode.EXISTING, EnqueueCode.CONFLICT, EnqueueCode.ANSWERED)}


def _known_id(accepted: Any) -> Any:
    """Answers to enqueueing, if they were returned; the id of what came by plain XADD is known by its record, too."""
    answers = accepted[1] if accepted[0] == "reply" else []
    known = [{"known": True} if each["fields"]["code"]["value"] in KNOWN else each for each in answers]
    return (accepted[0], known) if answers else accepted


def _no_record_of_bytes(name: str, key: Any) -> Mapping[str, Any]:
    return {} if len(key["value"].partition(b" ")[0]) == 16 else {name: key}


ALLOWED = Allowed(
    [
        *(
            Reply(verb, _in_any_order, "the configuration has the order of the table of limits")
            for verb in ("agree", "heartbeat", "configuration", "set_configuration")
        ),
        Reply("enqueue", _known_id, "an id that came by plain XADD is known after its end by its record, and compared"),
    ],
    [
        Key("reply:.*", _entries_in_any_order, "fields that come from the entry are the last of a result"),
        Key("request:.*", _no_record_of_bytes, "a request by plain XADD has a record from its end on"),
        Key("sched", _split, "split by owner; fields of lanes have their names"),
    ],
)
