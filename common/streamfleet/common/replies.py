"""What Redis's raw replies mean, as plain values. Pure."""

from __future__ import annotations

from typing import Any

from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.records import Claim, LaneAudit, Lease


def lease_row(lease: Lease) -> list[Any]:
    """A lease as the scripts take it: lane number, stream id, attempt."""
    return [lease.lane.number, lease.stream_id, lease.attempt]


def claim(row: list[Any]) -> Claim:
    """A claim as pull.lua returns it."""
    number, stream_id, attempt, request_id, flat = row
    lease = Lease(LANES[number - 1], stream_id.decode(), attempt, request_id.decode())
    return Claim(lease, dict(zip(flat[::2], flat[1::2], strict=True)))


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


def mapping(reply: Any) -> dict[bytes, bytes]:
    """A flat list of names and values as a mapping."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def entries(reply: Any) -> list[tuple[str, dict[bytes, bytes]]]:
    """Stream entries: stream id and fields. An entry that was deleted meanwhile has none."""
    return [(stream_id.decode(), mapping(fields or {})) for stream_id, fields in reply or []]


def streams(reply: Any) -> list[tuple[str, list[tuple[str, dict[bytes, bytes]]]]]:
    """Entries of several streams, by key; nothing for the reply of a read that timed out."""
    return [(key.decode(), entries(found)) for key, found in reply or []]


def first_score(reply: Any) -> int | None:
    """The score of the first member of a range with scores; None for an empty one."""
    return int(float(reply[1])) if reply else None


def pending_row(row: Any) -> tuple[str, str, int, int]:
    """A row of XPENDING: stream id, consumer, idle ms, deliveries."""
    return row[0].decode(), row[1].decode(), row[2], row[3]
