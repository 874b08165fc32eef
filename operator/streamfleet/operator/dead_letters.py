"""Dead letters: reads and selects them, and enqueues their requests again."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from streamfleet.common.errors import InvalidRequest, StreamfleetError
from streamfleet.common.protocol import LANES, Lane, decode, digest, digest_of_bytes, stream_ms
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.broker.control import OUTSTANDING

_STREAM_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


class NotRequeued(StreamfleetError):
    """A dead letter cannot be enqueued again; the message says why.

    Attributes:
        code: `truncated`, `no_fields` or `id_in_use`.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter.

    Attributes:
        letter_id: its stream id; the first part is the time of writing, epoch ms.
        request_id, status, attempts: of the request that ended.
        error: its OpenAI error object.
        entry: its former ``<lane>:<stream id>``.
        workers: workers that were lost with it (killed, hung, or engine died); at most the last 16.
        truncated: its original fields were too large to be kept whole.
        original: the fields as they were enqueued.
    """

    letter_id: str
    request_id: str
    status: str
    attempts: int
    error: Mapping[str, Any]
    entry: str
    workers: tuple[str, ...]
    truncated: bool
    original: Mapping[bytes, bytes]

    @property
    def written_ms(self) -> int:
        return stream_ms(self.letter_id)

    @property
    def code(self) -> str:
        """Machine-readable reason."""
        return str(self.error.get("code") or "")

    def is_about(self, reason: str) -> bool:
        """True if `reason` is its status or its error's code."""
        return reason in (self.status, self.code)


@dataclass(frozen=True, slots=True)
class RequeuedEntry:
    """Request to enqueue for a dead letter.

    Attributes:
        lane: its former lane.
        fields: flat names and values.
        dropped: names of time limits left out because they have passed.
    """

    lane: Lane
    fields: list[bytes]
    dropped: list[str]


def read_letter(letter_id: str, fields: Mapping[bytes, bytes]) -> DeadLetter:
    """A dead letter from its fields."""

    def own(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    return DeadLetter(
        letter_id=letter_id,
        request_id=own(b"_id"),
        status=own(b"_status"),
        attempts=_digits(fields.get(b"_attempts")) or 0,
        error=_error(own(b"_error")),
        entry=own(b"_entry"),
        workers=tuple(own(b"_workers").split()),
        truncated=b"_truncated" in fields,
        original={name: value for name, value in fields.items() if not name.startswith(b"_")},
    )


def requeued_entry(letter: DeadLetter, now_ms: int) -> RequeuedEntry:
    """Build the request to enqueue again: its original fields without time limits that have passed.

    Raises:
        NotRequeued: its fields were not kept whole, or its lane is unknown.
    """
    if letter.truncated:
        raise NotRequeued(
            f"{letter.letter_id}: its fields were too large to be kept, there is nothing to enqueue", "truncated"
        )
    lane, _, stream_id = letter.entry.partition(":")
    if lane not in LANES or not _STREAM_ID.fullmatch(stream_id) or not letter.original:
        raise NotRequeued(f"{letter.letter_id}: it has no lane or no fields of its own", "no_fields")
    enqueued_ms = stream_ms(stream_id)
    limits = {
        b"deadline": _digits(letter.original.get(b"deadline")),
        b"ttl": _later(enqueued_ms, _digits(letter.original.get(b"ttl"))),
    }
    passed = [name for name, limit in limits.items() if limit is not None and limit <= now_ms]
    kept = [part for name, value in letter.original.items() if name not in passed for part in (name, value)]
    return RequeuedEntry(Lane(lane), kept, [name.decode() for name in passed])


async def find_letter(broker: OperatorBroker, name: str) -> DeadLetter:
    """Find a dead letter by its own id, or the newest one of a request id.

    Raises:
        InvalidRequest: there is none.
    """
    if _STREAM_ID.fullmatch(name):
        fields = await broker.dead_letter(name)
        if fields is not None:
            return read_letter(name, fields)
    newest: DeadLetter | None = None
    async for letter_id, fields in broker.stream_entries(broker.keys.dead, "-"):
        if fields.get(b"_id", b"").decode(errors="replace") == name:
            newest = read_letter(letter_id, fields)
    if newest is None:
        raise InvalidRequest(f"there is no dead letter {name}: `streamfleet dead list` shows them", None, "not_found")
    return newest


async def letters(broker: OperatorBroker, reason: str | None = None) -> AsyncIterator[DeadLetter]:
    """All dead letters, oldest first; with `reason`, those of that status or error code."""
    async for letter_id, fields in broker.stream_entries(broker.keys.dead, "-"):
        letter = read_letter(letter_id, fields)
        if reason is None or letter.is_about(reason):
            yield letter


async def requeue(broker: OperatorBroker, letter: DeadLetter, now_ms: int) -> tuple[str, list[str]] | None:
    """Enqueue a dead letter's request again.

    Returns:
        Its new entry and the dropped time limits; None if the letter no longer exists.

    Raises:
        NotRequeued: as `requeued_entry`; or its id has another result or names another request by now.
    """
    entry = requeued_entry(letter, now_ms)
    known, reply = _recognised(letter, entry.lane)
    stream_id, newer = await broker.requeue(
        letter.letter_id,
        letter.request_id,
        entry.lane,
        entry.fields,
        entry=letter.entry,
        digest=known,
        reply=reply,
    )
    if newer:
        became = "has not ended" if newer == OUTSTANDING else f"ended as {newer}"
        raise NotRequeued(
            f"{letter.letter_id}: the id {letter.request_id} is that of another request, which {became}: enqueue "
            "the fields of this one under another id, or purge it",
            "id_in_use",
        )
    return None if stream_id is None else (f"{entry.lane}:{stream_id}", entry.dropped)


def _recognised(letter: DeadLetter, lane: Lane) -> tuple[str, str]:
    """Digest of the request for its record, and its reply name; of its bytes alone, and empty, if it is malformed."""
    of_bytes = digest_of_bytes(letter.original)
    try:
        request = decode(letter.original, lane, letter.entry.partition(":")[2], sys.maxsize)
    except InvalidRequest:
        return of_bytes, ""
    return digest(request) + of_bytes, request.reply or ""


def _error(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"message": text}
    inner = value.get("error", value) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {"message": text}


def _digits(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) <= 16 else None


def _later(start_ms: int, span_ms: int | None) -> int | None:
    return None if span_ms is None else start_ms + span_ms
