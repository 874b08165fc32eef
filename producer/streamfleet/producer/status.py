"""State of a request, as far as its id tells."""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.results import Result

QUEUED, RUNNING, UNKNOWN = "queued", "running", "unknown"
_ENTRY = re.compile(rf"(?:{'|'.join(LANES)}):[0-9]+-[0-9]+")


@dataclass(frozen=True, slots=True)
class StatusView:
    """A request at one instant.

    Attributes:
        id: the request id.
        state: ``queued``, ``running``, a terminal status, or ``unknown``: never enqueued by a client, or
            expired. (A request that was added by a plain XADD with an id of its own is unknown until it ends.)
        lane: its lane, if known.
        worker: worker that runs or finished it; None for none.
        attempt: number of the attempt, 0 before the first.
        entry: ``<lane>:<stream id>``, if known.
        place: number of requests of its lane that go first; None if it does not wait in order.
        expected_s: seconds until a worker is likely to take it; None if nobody can tell.
    """

    id: str
    state: str
    lane: Lane | None = None
    worker: str | None = None
    attempt: int = 0
    entry: str | None = None
    place: int | None = None
    expected_s: float | None = None

    @property
    def ended(self) -> bool:
        """True if it has a result."""
        return self.state not in {QUEUED, RUNNING, UNKNOWN}


def ended_view(result: Result) -> StatusView:
    """The view of a request that has ended."""
    lane = result.fields.get("lane")
    return StatusView(
        id=result.id,
        state=result.status.value,
        lane=Lane(lane) if lane in LANES else None,
        worker=result.worker,
        attempt=result.attempt,
        entry=result.fields.get("entry"),
    )


async def look_up(
    broker: ProducerBroker, request_id: str, tenant: str | None = None, rank_ms: int | None = None
) -> StatusView:
    """Current state of a request; `tenant` and `rank_ms` as in `Client.status`."""
    result = await broker.result(request_id)
    if result is not None:
        return ended_view(result)
    entry = request_id if _ENTRY.fullmatch(request_id) else await broker.record(request_id)
    if entry is not None:
        lane = Lane(entry.split(":", 1)[0])
        found = await broker.entry_state(entry)
        if found is not None:
            if found.worker is not None:
                return StatusView(request_id, RUNNING, lane, found.worker, found.attempt, entry)
            (expected,) = await broker.expected([(lane, entry.split(":", 1)[1], rank_ms, None, tenant)])
            wait_s = None if expected.wait_ms is None else expected.wait_ms / 1000
            return StatusView(request_id, QUEUED, lane, None, found.attempt, entry, expected.place, wait_s)
    # It may have ended between the two reads.
    result = await broker.result(request_id)
    return StatusView(request_id, UNKNOWN) if result is None else ended_view(result)
