"""Search for requests: by id exactly, else in a bounded part of the queue, whose size is reported.

`search` reads entries, dead letters and results through the broker, and returns rows of JSON values. Its cost does not
grow with the queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.protocol import LANES, Lane, is_request_id, stream_ms
from streamfleet.common.results import Result
from streamfleet.gateway.broker.responses import PREFIX
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.broker.inspecting import Fields, read_entry_name
from streamfleet.operator.dead_letters import DeadLetter, read_letter
from streamfleet.operator.request_location import own_id
from streamfleet.operator.texts import line, line_or_none
from streamfleet.producer.status import RUNNING, UNKNOWN, StatusView, look_up

WAITING = "waiting"
ENDED = ("succeeded", "failed", "expired", "cancelled", "dead")
STATES = (WAITING, RUNNING, *ENDED)
MOST_ENTRIES, MOST_DEAD_LETTERS = 200, 200
"""Most entries of each lane (the newest, or the oldest that workers hold), and most dead letters (the newest)."""
ROUNDS, AT_ONCE, RESULTS_AT_ONCE, MOST_RESULTS = 8, 500, 10, 100
"""SCAN calls, keys of each; results read together, and results in all."""
MOST_BYTES = 8_388_608


@dataclass(frozen=True, slots=True)
class SearchCriteria:
    """Search criteria; an empty text or None matches everything.

    Attributes:
        text: an id, or part of one.
        lane, state, tenant: of the request.
        limit: most rows.
    """

    text: str = ""
    lane: Lane | None = None
    state: str | None = None
    tenant: str | None = None
    limit: int = 20

    def matches(self, row: Mapping[str, Any]) -> bool:
        """True if a request matches."""
        return (
            self.text in row["id"]
            and self.lane in (None, row["lane"])
            and self.state in (None, row["state"])
            and self.tenant in (None, row["tenant"])
        )


@dataclass(slots=True)
class SearchExtent:
    """Extent of a search: the parts of the queue that it has read."""

    entries: int = 0
    outstanding: int = 0
    results: int = 0
    results_all: bool = False
    dead_letters: int = 0
    dead_letters_total: int = 0
    size_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        names = ("entries", "outstanding", "results", "results_all", "dead_letters", "dead_letters_total")
        return {name: getattr(self, name) for name in names}

    @property
    def note(self) -> str:
        """The extent as a sentence for people."""
        if not self.entries and not self.results and not self.dead_letters and not self.outstanding:
            return "found by its id" if not self.results_all else "there is nothing to look at"
        kept = "all stored results" if self.results_all else f"{self.results} stored results, a sample of them"
        return (
            f"looked at {self.entries} of {self.outstanding} outstanding requests (newest first), at "
            f"{self.dead_letters} of {self.dead_letters_total} dead letters (newest first), and at {kept}"
        )


@dataclass(slots=True)
class SearchResult:
    """Result of a search; `more` is True if it stopped at its limit."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    more: bool = False
    extent: SearchExtent = field(default_factory=SearchExtent)


async def search(broker: OperatorBroker, criteria: SearchCriteria) -> SearchResult:
    """Search for requests, with a bounded number of commands and bytes."""
    found = SearchResult()
    if (exact := await _find_by_id(broker, criteria)) is not None:
        found.rows[exact["id"]] = exact
        return found
    audit = await broker.audit(0)
    found.extent.outstanding, found.extent.dead_letters_total = audit.outstanding, audit.dead_letters
    for look in (_entries, _dead_letters, _results):
        async for row in look(broker, criteria, found.extent):
            if not criteria.matches(row) or row["id"] in found.rows:
                continue
            if len(found.rows) == criteria.limit:
                found.more = True
                return found
            found.rows[row["id"]] = row
    return found


async def _find_by_id(broker: OperatorBroker, criteria: SearchCriteria) -> dict[str, Any] | None:
    name = criteria.text.removeprefix(PREFIX)
    if not (is_request_id(name) or read_entry_name(name)):
        return None
    view = await look_up(ProducerBroker.of(broker), name)
    if view.state == UNKNOWN:
        return None
    if view.ended:
        result = await broker.result(view.id)
        return None if result is None else _result_row(result) | {"exact": True}
    return await _outstanding_row(broker, view)


async def _outstanding_row(broker: OperatorBroker, view: StatusView) -> dict[str, Any] | None:
    named = read_entry_name(view.entry or "")
    if named is None:
        return None
    fields = (await broker.entry_details(*named)).fields or {}
    state = RUNNING if view.state == RUNNING else WAITING
    row = _entry_row(*named, fields, state)
    return row | {"id": line(view.id), "worker": line_or_none(view.worker), "exact": True}


async def _entries(
    broker: OperatorBroker, criteria: SearchCriteria, extent: SearchExtent
) -> AsyncIterator[dict[str, Any]]:
    """Yields outstanding requests: only those that workers hold if these are asked for, else the newest."""
    if criteria.state in ENDED:
        return
    for lane in LANES:
        if criteria.lane in (None, lane):
            rows, running = await (_running_entries if criteria.state == RUNNING else _newest_entries)(
                broker, lane, extent
            )
            for stream_id, fields in rows:
                extent.entries += 1
                yield _entry_row(lane, stream_id, fields, RUNNING if stream_id in running else WAITING)


async def _running_entries(
    broker: OperatorBroker, lane: Lane, extent: SearchExtent
) -> tuple[list[tuple[str, Fields]], set[str]]:
    """Returns the oldest entries that workers hold, and the ids of those that run: all of them."""
    ids = await broker.pending_ids(lane, MOST_ENTRIES)
    return await _read_within_bytes(broker.entries_of(lane, ids), extent), set(ids)


async def _newest_entries(
    broker: OperatorBroker, lane: Lane, extent: SearchExtent
) -> tuple[list[tuple[str, Fields]], set[str]]:
    """Returns the newest entries, and the ids of those that run."""
    newest = broker.stream_entries(broker.keys.lane(lane), "+", MOST_ENTRIES, newest_first=True)
    rows = await _read_within_bytes(newest, extent)
    # Twice as many as rows, because deleted entries that workers still hold count here.
    running = await broker.pending_ids(lane, 2 * MOST_ENTRIES, rows[-1][0]) if rows else []
    return rows, set(running)


async def _read_within_bytes(some: AsyncIterator[tuple[str, Fields]], extent: SearchExtent) -> list[tuple[str, Fields]]:
    rows = []
    async for stream_id, fields in some:
        if not _count_bytes(extent, fields):
            break
        rows.append((stream_id, fields))
    return rows


async def _dead_letters(
    broker: OperatorBroker, criteria: SearchCriteria, extent: SearchExtent
) -> AsyncIterator[dict[str, Any]]:
    if criteria.state not in (None, "failed", "expired", "dead"):
        return
    async for letter_id, fields in broker.stream_entries(broker.keys.dead, "+", MOST_DEAD_LETTERS, newest_first=True):
        if not _count_bytes(extent, fields):
            return
        extent.dead_letters += 1
        yield _dead_letter_row(read_letter(letter_id, fields))


async def _results(
    broker: OperatorBroker, criteria: SearchCriteria, extent: SearchExtent
) -> AsyncIterator[dict[str, Any]]:
    if criteria.state in (WAITING, RUNNING):
        return
    before = broker.keys.result("")
    keys, extent.results_all = await broker.some_keys(ROUNDS, AT_ONCE)
    ids = [key.removeprefix(before) for key in keys if key.startswith(before)]
    fitting = [each for each in ids if criteria.text in each]
    extent.results = len(ids)
    extent.results_all &= len(fitting) <= MOST_RESULTS
    for at in range(0, min(len(fitting), MOST_RESULTS), RESULTS_AT_ONCE):
        for result in await broker.results(fitting[at : at + RESULTS_AT_ONCE]):
            if result is not None:
                extent.size_bytes += sum(map(len, result.fields.values()))
                yield _result_row(result)
        if extent.size_bytes > MOST_BYTES:
            extent.results_all = False
            return


def _count_bytes(extent: SearchExtent, fields: Mapping[bytes, bytes]) -> bool:
    extent.size_bytes += sum(map(len, fields.values()))
    return extent.size_bytes <= MOST_BYTES


def _entry_row(lane: Lane, stream_id: str, fields: Mapping[bytes, bytes], state: str) -> dict[str, Any]:
    entry = f"{lane}:{stream_id}"
    return _row(
        line(own_id(entry, fields)),
        state,
        lane=lane.value,
        tenant=line_or_none(fields.get(b"tenant")),
        entry=entry,
        enqueued_ms=stream_ms(stream_id),
        size_bytes=len(fields.get(b"body", b"")),
    )


def _dead_letter_row(dead_letter: DeadLetter) -> dict[str, Any]:
    named = read_entry_name(dead_letter.entry)
    return _row(
        line(dead_letter.request_id),
        line(dead_letter.status, 40),
        lane=named[0].value if named else None,
        tenant=line_or_none(dead_letter.original.get(b"tenant")),
        entry=line(dead_letter.entry) or None,
        enqueued_ms=stream_ms(named[1]) if named else None,
        worker=line_or_none(dead_letter.workers[-1]) if dead_letter.workers else None,
        size_bytes=len(dead_letter.original.get(b"body", b"")),
    )


def _result_row(result: Result) -> dict[str, Any]:
    said = result.fields
    lane = said.get("lane")
    return _row(
        line(result.id),
        result.status.value,
        lane=lane if lane in LANES else None,
        tenant=line_or_none(said.get("tenant")),
        entry=line_or_none(said.get("entry")),
        enqueued_ms=result.moment("enqueued_ms"),
        worker=line_or_none(result.worker),
    )


def _row(
    request_id: str,
    state: str,
    *,
    lane: str | None,
    tenant: str | None,
    entry: str | None,
    enqueued_ms: int | None,
    worker: str | None = None,
    size_bytes: int | None = None,
) -> dict[str, Any]:
    return {
        "id": request_id,
        "state": state,
        "lane": lane,
        "tenant": tenant,
        "entry": entry,
        "enqueued_ms": enqueued_ms,
        "worker": worker,
        "bytes": size_bytes,
        "exact": False,
    }
