"""Dead letters as the page shows them, and requeueing them.

Reads pages of dead letters through the broker and returns JSON values. Nothing that Redis holds is trusted to be valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfleet.gateway.ui.texts import SHORT_CHARS, error_of, line, line_or_none, passage, reason_of
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.broker.inspecting import read_entry_name
from streamfleet.operator.dead_letters import DeadLetter, NotRequeued, read_letter, requeue, requeued_entry

MOST_BYTES = 4_194_304
"""Bytes of one page: dead letters contain the request's body."""
GONE = "there is no such dead letter any more"


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters, newest first, and the id after which the next page begins; None for the last page."""

    dead_letters: Sequence[DeadLetter]
    next: str | None


async def read_page(broker: OperatorBroker, before: str | None, limit: int) -> DeadLetterPage:
    """Returns one page of dead letters.

    Args:
        broker: the queue.
        before: only dead letters older than this id; None for the newest.
        limit: most dead letters on the page.
    """
    dead_letters: list[DeadLetter] = []
    size = 0
    newest = "+" if before is None else f"({before}"
    async for letter_id, fields in broker.newest_entries(broker.keys.dead, newest, limit + 1):
        if len(dead_letters) == limit or size > MOST_BYTES:
            return DeadLetterPage(dead_letters, dead_letters[-1].letter_id)
        dead_letters.append(read_letter(letter_id, fields))
        size += sum(map(len, fields.values()))
    return DeadLetterPage(dead_letters, None)


def dead_letter_object(dead_letter: DeadLetter, now_ms: int) -> dict[str, Any]:
    """Returns a dead letter as JSON values."""
    why_not = ""
    try:
        requeued_entry(dead_letter, now_ms)
    except NotRequeued as error:
        why_not = line(str(error))
    named = read_entry_name(dead_letter.entry)
    return {
        "letter_id": dead_letter.letter_id,
        "request_id": line(dead_letter.request_id),
        "status": line(dead_letter.status, 40),
        "lane": named[0].value if named else None,
        "entry": line_or_none(dead_letter.entry),
        "attempts": dead_letter.attempts,
        "written_ms": dead_letter.written_ms,
        "workers": [line(name) for name in dead_letter.workers[:16]],
        "code": line(dead_letter.code) or None,
        "error": error_of(dead_letter.error),
        "reason": reason_of(dead_letter.error),
        "can_requeue": not why_not,
        "why_not": why_not,
        "tenant": line_or_none(dead_letter.original.get(b"tenant")),
        "body": passage(dead_letter.original.get(b"body"), SHORT_CHARS),
    }


async def requeue_all(broker: OperatorBroker, letter_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Enqueue the requests of these dead letters again. Returns the outcome of each."""
    now_ms = await broker.now_ms()
    return [await _requeue(broker, letter_id, now_ms) for letter_id in letter_ids]


async def _requeue(broker: OperatorBroker, letter_id: str, now_ms: int) -> dict[str, Any]:
    fields: Mapping[bytes, bytes] | None = await broker.dead_letter(letter_id)
    if fields is None:
        return _outcome(letter_id, error=GONE, code="gone")
    dead_letter = read_letter(letter_id, fields)
    try:
        revived = await requeue(broker, dead_letter, now_ms)
    except NotRequeued as error:
        return _outcome(letter_id, dead_letter, error=line(str(error)), code=error.code)
    if revived is None:
        return _outcome(letter_id, dead_letter, error=GONE, code="gone")
    return _outcome(letter_id, dead_letter, *revived)


def _outcome(
    letter_id: str,
    dead_letter: DeadLetter | None = None,
    entry: str | None = None,
    dropped: Sequence[str] = (),
    error: str | None = None,
    code: str | None = None,
) -> dict[str, Any]:
    return {
        "letter_id": letter_id,
        "ok": error is None,
        "request_id": line(dead_letter.request_id) if dead_letter else None,
        "entry": entry,
        "dropped": list(dropped),
        "error": error,
        "code": code,
    }
