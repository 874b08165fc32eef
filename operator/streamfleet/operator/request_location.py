"""Traces one request from all that Redis holds of it. Bounded: never reads a whole backlog."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

from streamfleet.common.keys import NOBODY
from streamfleet.common.protocol import LANES, Lane, is_request_id
from streamfleet.common.results import Result
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.broker.inspecting import EntryDetails, Fields, StoredRequest, read_entry_name
from streamfleet.operator.dead_letters import DeadLetter, read_letter
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.snapshot import read_workers

MOST_PENDING, MOST_ENTRIES, MOST_LETTERS = 1_000, 500, 200
"""Bounds of searches: pending and oldest entries per lane for an id without a record, dead letters for a result."""
MOST_BYTES = 16_777_216
"""Bound of a search in bytes, because reading an entry reads its body."""
LETTER_SLACK_MS = 2_000


@dataclass(frozen=True, slots=True)
class Search:
    """Extent of the search for an id without a record.

    Attributes:
        looked_at: number of entries that were read.
        outstanding: number of entries in the queue.
    """

    looked_at: int
    outstanding: int


@dataclass(frozen=True, slots=True)
class Place:
    """The request's entry in its lane.

    Attributes:
        lane, stream_id: name of the entry.
        details: state of the entry.
        worker: worker that holds it, with its description; None for none.
        wait_ms: time until a worker is likely to take it; None if nobody can tell, or it does not wait in order.
        paused: true if its lane is paused.
    """

    lane: Lane
    stream_id: str
    details: EntryDetails
    worker: WorkerView | None
    wait_ms: int | None = None
    paused: bool = False

    @property
    def entry(self) -> str:
        return f"{self.lane}:{self.stream_id}"


@dataclass(frozen=True, slots=True)
class Trace:
    """All data about one request.

    Attributes:
        asked: the name that was asked for.
        request_id: its id; differs from `asked` if an entry was asked for and has an id of its own.
        now_ms: Redis's clock, epoch ms.
        recorded: its id has a record: a client enqueued it, or it was requeued.
        reply: the reply stream that its record names, or empty.
        place: its entry, while it is in its lane.
        result, result_ttl_ms: its result; None before its end.
        letter: its dead letter; None for none, or if it was not found.
        search: the search for its entry; None if none was needed.
    """

    asked: str
    request_id: str
    now_ms: int
    recorded: bool = False
    reply: str = ""
    place: Place | None = None
    result: Result | None = None
    result_ttl_ms: int | None = None
    letter: DeadLetter | None = None
    search: Search | None = None

    @property
    def known(self) -> bool:
        """True if Redis holds its entry or its result."""
        return self.place is not None or self.result is not None

    @property
    def entry(self) -> str:
        """``<lane>:<stream id>``; empty if unknown."""
        if self.place is not None:
            return self.place.entry
        return self.result.fields.get("entry", "") if self.result is not None else ""


async def trace(broker: OperatorBroker, asked: str) -> Trace:
    """Trace one request.

    Args:
        broker: the queue.
        asked: a request id, or ``<lane>:<stream id>``.
    """
    found = await _trace(broker, asked)
    # It may have ended or moved between the reads.
    return found if found.known else await _trace(broker, asked)


async def _trace(broker: OperatorBroker, asked: str) -> Trace:
    named = read_entry_name(asked)
    place = await _place(broker, *named) if named else None
    name = ":".join(named) if named else asked
    request_id = name if place is None else own_id(name, place.details.fields or {})
    if not is_request_id(request_id):
        return Trace(asked, request_id, await broker.now_ms())
    known = await broker.stored_request(request_id)
    search = None
    if place is None and (recorded := read_entry_name(known.entry)):
        place = await _place(broker, *recorded)
    elif place is None and named is None and known.result is None:
        place, search = await _find(broker, request_id)
    return Trace(
        asked=asked,
        request_id=request_id,
        now_ms=await broker.now_ms(),
        recorded=bool(known.entry),
        reply=known.reply,
        place=place,
        result=known.result,
        result_ttl_ms=known.result_ttl_ms,
        letter=await _letter(broker, known),
        search=search,
    )


async def _place(broker: OperatorBroker, lane: Lane, stream_id: str) -> Place | None:
    details = await broker.entry_details(lane, stream_id)
    if details.fields is None:
        return None
    worker = None
    if details.worker not in (None, NOBODY):
        views = await read_workers(broker)
        worker = next((view for view in views if view.name == details.worker), None)
    (expected,) = await broker.expected([(lane, stream_id)])
    details = replace(details, before=expected.place, rank_ms=expected.rank_ms)
    return Place(lane, stream_id, details, worker, expected.wait_ms, lane in await broker.paused())


def own_id(entry: str, fields: Mapping[bytes, bytes]) -> str:
    """The id of an entry's request: its own, or the entry's name."""
    given = fields.get(b"id", b"").decode(errors="replace")
    return given if is_request_id(given) and read_entry_name(given) is None else entry


async def _find(broker: OperatorBroker, request_id: str) -> tuple[Place | None, Search]:
    """Search an id without a record among the pending and the oldest entries of each lane."""
    outstanding = (await broker.audit(0)).outstanding
    looked, size = 0, 0
    async for lane, stream_id, fields in _candidates(broker):
        looked, size = looked + 1, size + sum(map(len, fields.values()))
        if fields.get(b"id") == request_id.encode():
            return await _place(broker, lane, stream_id), Search(looked, outstanding)
        if size > MOST_BYTES:
            break
    return None, Search(looked, outstanding)


async def _candidates(broker: OperatorBroker) -> AsyncIterator[tuple[Lane, str, Fields]]:
    for lane in LANES:
        held = await broker.pending_ids(lane, MOST_PENDING)
        async for stream_id, fields in broker.entries_of(lane, held):
            yield lane, stream_id, fields
        seen = set(held)
        async for stream_id, fields in broker.stream_entries(broker.keys.lane(lane), "-", MOST_ENTRIES):
            if stream_id not in seen:
                yield lane, stream_id, fields


async def _letter(broker: OperatorBroker, known: StoredRequest) -> DeadLetter | None:
    """The dead letter of a result; searched from its end on, with some slack for the worker's clock."""
    result = known.result
    if result is None or result.status in ("succeeded", "cancelled"):
        return None
    finished_ms = result.moment("finished_ms")
    if finished_ms is None:
        return None
    first, size = str(max(0, finished_ms - LETTER_SLACK_MS)), 0
    async for letter_id, fields in broker.stream_entries(broker.keys.dead, first, MOST_LETTERS):
        letter = read_letter(letter_id, fields)
        if letter.request_id == result.id:
            return letter
        size += sum(map(len, fields.values()))
        if size > MOST_BYTES:
            break
    return None
