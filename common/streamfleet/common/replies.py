"""Converts Redis's raw replies into plain values. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from streamfleet.common.broker.types import Claim, Labelled, Lease, TenantRule
from streamfleet.common.protocol import LANES, Lane

_RECORD = re.compile(rf"\S+ ((?:{'|'.join(LANES)}):[0-9]{{1,20}}-[0-9]{{1,20}}) ([!-~]{{0,256}})".encode())
FAR_OFF = 9e15
LEAST_MS = 1_000
"""Least time with something waiting from which a pace is told."""
LAST_PART = 2**64 - 1
"""Largest number in a part of a stream id that Redis accepts."""
_READY = re.compile(rb"[A-Z]([0-9]{1,20})-[A-Z]([0-9]{1,20})(?: .*)?", re.DOTALL)
_LABELLED = re.compile(rb"([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15});")


def lease_row(lease: Lease) -> list[Any]:
    """A lease in the scripts' format: lane number, stream id, attempt."""
    return [lease.lane.number, lease.stream_id, lease.attempt]


def claim(row: list[Any]) -> Claim:
    """Read a claim that pull.lua returned."""
    lane, stream_id, attempt, request_id, flat, lost, staged, interrupted, length, passed = row
    lease = Lease(LANES[lane - 1], stream_id.decode(), attempt, request_id.decode())
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    staged_ms = int(staged) if staged else None
    read = Claim(lease, fields, lost, staged_ms)
    read.length = length.decode()
    if passed:
        read.passed_ms = int(passed)
    if interrupted:
        times, _, kept = interrupted.partition(b" ")
        read.interrupted, read.kept = number(times), kept.partition(b" ")[0].decode(errors="replace")
    return read


def number(value: bytes) -> int:
    """Read a counter; 0 if it was overwritten with another value."""
    return int(value) if len(value) <= 20 and value.removeprefix(b"-").isdigit() else 0


def mapping(reply: Any) -> dict[bytes, bytes]:
    """Convert a flat list of names and values into a mapping."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def texts(reply: Any) -> dict[str, str]:
    """Convert a flat list of names and values into a mapping of text."""
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in mapping(reply).items()}


def entries(reply: Any) -> list[tuple[str, dict[bytes, bytes]]]:
    """Read stream entries: stream id and fields. An entry that was deleted meanwhile has no fields."""
    return [(stream_id.decode(), mapping(fields or [])) for stream_id, fields in reply or []]


def streams(reply: Any) -> list[tuple[str, list[tuple[str, dict[bytes, bytes]]]]]:
    """Read entries of several streams, by key; empty for a read that timed out."""
    return [(key.decode(), entries(found)) for key, found in reply or []]


def tenant_rule(value: str) -> TenantRule:
    """A tenant's weight and limit, as ``<weight> <most> <when> <key or ->``; the weight may stand alone."""
    weight, most, when, key = (*value.split(" "), "", "", "")[:4]
    return TenantRule(float(weight), int(most) if most else None, key.removeprefix("-"), int(when or 0))


def recorded(record: bytes | None) -> tuple[str, str]:
    """Entry and reply stream that a request's record names; both empty if the record is missing or invalid.

    Every producer may write records, so an invalid one must not make its readers fail.
    """
    match = _RECORD.fullmatch(record or b"")
    return (match[1].decode(), match[2].decode()) if match else ("", "")


def first_score(reply: Any) -> int | None:
    """The score of the first member of a range with scores; None for an empty one."""
    return score(reply[1]) if reply else None


def score(value: bytes | None) -> int | None:
    """A score as a whole number, or None; bounded, because a manual command may have written infinity."""
    return None if value is None else int(max(-FAR_OFF, min(FAR_OFF, float(value))))


def labelled_lanes(value: bytes | None) -> dict[Lane, Labelled]:
    """Numbers of requests that wait with a label, for each lane with some, from the field ``labelled`` of `lanes`."""
    rows = [Labelled(*map(int, row)) for row in _LABELLED.findall(value or b"")]
    return {lane: row for lane, row in zip(LANES, rows, strict=False) if any(row)}


def ranked_member(reply: Any) -> tuple[int, int] | None:
    """The one member of a range of one of the ready sets: when it was enqueued, and its rank, both epoch ms.

    None if there is none, or it was not written by a script.
    """
    if not reply:
        return None
    found, score = _READY.fullmatch(reply[0]), float(reply[1])
    return (int(found[1]), int(score)) if found and math.isfinite(score) else None


def ready_entries(reply: Any) -> list[tuple[str, int]]:
    """Members of a set of what waits, with scores: stream ids and ranks, epoch ms, without members added by hand."""
    found = [(_READY.fullmatch(member), score(rank)) for member, rank in zip(reply[::2], reply[1::2], strict=True)]
    return [
        (f"{match[1].decode()}-{match[2].decode()}", rank)
        for match, rank in found
        if match and rank is not None and max(int(match[1]), int(match[2])) <= LAST_PART
    ]


def lane_of(member: bytes) -> Lane | None:
    """Lane of a member of the delayed set, ``<lane number>|<stream id>``; None for an invalid member."""
    known = member[:1].isdigit() and member[1:2] == b"|" and 1 <= int(member[:1]) <= len(LANES)
    return LANES[int(member[:1]) - 1] if known else None


def pending_row(row: Any) -> tuple[str, str, int, int]:
    """Read a row of XPENDING: stream id, consumer, idle ms, deliveries."""
    return row[0].decode(), consumer_name(row[1]), row[2], row[3]


def consumer_name(name: bytes) -> str:
    """A consumer's name. Workers' names are ASCII; one created by hand may contain any bytes."""
    return name.decode(errors="backslashreplace")


def description(text: bytes) -> dict[str, Any]:
    """Read a worker's description of itself; empty if it cannot be read."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def descriptions(reply: Any) -> dict[str, dict[str, Any]]:
    """Read the hash of the workers: name to description."""
    return {consumer_name(name): description(text) for name, text in mapping(reply).items()}


def pace_per_s(pace: bytes | None) -> float | None:
    """Requests that a fleet takes a second, by the key `pace`; None if not known.

    At least one is counted, so that a fleet that stands still gets slower with every look.
    """
    try:
        words = json.loads(pace or b"")
        took_ms, left = float(words["took"]), float(words["left"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
    found = max(left, 1.0) * 1000 / took_ms if took_ms >= LEAST_MS else 0.0
    return found if 0 < found < math.inf else None


def ready_member(stream_id: str) -> str:
    """A stream id as a member of a ready set (encode_id in lua/lib/ids.lua)."""
    ms, seq = stream_id.split("-", 1)
    return f"{chr(64 + len(ms))}{ms}-{chr(64 + len(seq))}{seq}"


def last_delivered(groups: Any, name: str) -> str:
    """Last stream id that was delivered to a group of a stream; ``0-0`` if there is no such group."""
    for group in map(mapping, groups):
        if group[b"name"].decode() == name:
            return group[b"last-delivered-id"].decode()
    return "0-0"


def id_order(stream_id: str) -> tuple[int, int]:
    """Sort key of a stream id."""
    ms, seq = stream_id.split("-", 1)
    return int(ms), int(seq)
