"""What Redis's raw replies mean, as plain values. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.records import Claim, LaneAudit, Lease

_RECORD = re.compile(rb"\S+ ((?:critical|high|normal|low):[0-9]{1,20}-[0-9]{1,20}) ([!-~]{0,256})")
FAR_OFF = 9e15
LAST_PART = 2**64 - 1
"""Of a stream id: Redis takes no larger one."""
_READY = re.compile(rb"[A-Z]([0-9]{1,20})-[A-Z]([0-9]{1,20})")


def lease_row(lease: Lease) -> list[Any]:
    """A lease as the scripts take it: lane number, stream id, attempt."""
    return [lease.lane.number, lease.stream_id, lease.attempt]


def claim(row: list[Any]) -> Claim:
    """A claim as pull.lua returns it."""
    number, stream_id, attempt, request_id, flat, lost, staged = row
    lease = Lease(LANES[number - 1], stream_id.decode(), attempt, request_id.decode())
    return Claim(lease, dict(zip(flat[::2], flat[1::2], strict=True)), lost, int(staged) if staged else None)


def lane_audit(lane: Lane, row: list[int]) -> LaneAudit:
    """A lane as audit.lua returns it."""
    length, ready, running, handed_out, undelivered, added = row
    return LaneAudit(
        lane,
        length,
        ready,
        running,
        handed_out,
        None if undelivered < 0 else undelivered,
        None if added < 0 else added,
    )


def number(value: bytes) -> int:
    """A counter; 0 for one that somebody made something else of."""
    return int(value) if len(value) <= 20 and value.removeprefix(b"-").isdigit() else 0


def mapping(reply: Any) -> dict[bytes, bytes]:
    """A flat list of names and values as a mapping."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def entries(reply: Any) -> list[tuple[str, dict[bytes, bytes]]]:
    """Stream entries: stream id and fields. An entry that was deleted meanwhile has none."""
    return [(stream_id.decode(), mapping(fields or [])) for stream_id, fields in reply or []]


def streams(reply: Any) -> list[tuple[str, list[tuple[str, dict[bytes, bytes]]]]]:
    """Entries of several streams, by key; nothing for the reply of a read that timed out."""
    return [(key.decode(), entries(found)) for key, found in reply or []]


def recorded(record: bytes | None) -> tuple[str, str]:
    """Entry and reply stream that a request's record names; both empty where it is none.

    Whoever may enqueue may write records: an odd one must stop nobody who reads it.
    """
    match = _RECORD.fullmatch(record or b"")
    return (match[1].decode(), match[2].decode()) if match else ("", "")


def first_score(reply: Any) -> int | None:
    """The score of the first member of a range with scores; None for an empty one."""
    return score(reply[1]) if reply else None


def score(value: bytes | None) -> int | None:
    """A score, if there is one, as a whole number; what was put there by hand may be endless."""
    return None if value is None else int(max(-FAR_OFF, min(FAR_OFF, float(value))))


def ranked_member(reply: Any) -> tuple[int, int] | None:
    """The one member of a range of a ready set: when it was enqueued, and its rank, both epoch ms.

    None where there is none, or one that somebody put there who is no worker.
    """
    if not reply:
        return None
    found, score = _READY.fullmatch(reply[0]), float(reply[1])
    return (int(found[1]), int(score)) if found and math.isfinite(score) else None


def ready_entries(reply: Any) -> list[tuple[str, int]]:
    """Some of a ready set with their scores: stream ids and ranks, epoch ms; not what somebody put there by hand."""
    found = [(_READY.fullmatch(member), score(rank)) for member, rank in zip(reply[::2], reply[1::2], strict=True)]
    return [
        (f"{match[1].decode()}-{match[2].decode()}", rank)
        for match, rank in found
        if match and rank is not None and max(int(match[1]), int(match[2])) <= LAST_PART
    ]


def lane_of(member: bytes) -> Lane | None:
    """The lane that a member of the delayed set is of: ``<lane number>|<stream id>``; None for what is none."""
    known = member[:1].isdigit() and member[1:2] == b"|" and 1 <= int(member[:1]) <= len(LANES)
    return LANES[int(member[:1]) - 1] if known else None


def pending_row(row: Any) -> tuple[str, str, int, int]:
    """A row of XPENDING: stream id, consumer, idle ms, deliveries."""
    return row[0].decode(), consumer_name(row[1]), row[2], row[3]


def consumer_name(name: bytes) -> str:
    """A consumer's name. Those of workers are ASCII; one that was made by hand may be anything."""
    return name.decode(errors="backslashreplace")


def description(text: bytes) -> dict[str, Any]:
    """How a worker describes itself; nothing where that cannot be read, because anybody may have written it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def ready_member(stream_id: str) -> str:
    """A stream id as a member of a ready set (encode_id in lua/lib/entry.lua)."""
    ms, seq = stream_id.split("-", 1)
    return f"{chr(64 + len(ms))}{ms}-{chr(64 + len(seq))}{seq}"


def last_delivered(groups: Any, name: str) -> str:
    """Up to where a group of a stream was delivered; the very beginning where there is no such group."""
    for group in map(mapping, groups):
        if group[b"name"].decode() == name:
            return group[b"last-delivered-id"].decode()
    return "0-0"


def id_order(stream_id: str) -> tuple[int, int]:
    """What stream ids are ordered by."""
    ms, seq = stream_id.split("-", 1)
    return int(ms), int(seq)
