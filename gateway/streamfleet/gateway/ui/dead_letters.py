"""Dead letters as the page shows them, and requeueing them.

Reads pages of dead letters through the broker and returns JSON values. Nothing that Redis holds is trusted to be valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.dead_letters import DeadLetter, NotRequeued, read_letter, requeue
from streamfleet.operator.json_view import letter_object
from streamfleet.operator.texts import SHORT_CHARS, line, passage

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
    async for letter_id, fields in broker.stream_entries(broker.keys.dead, newest, limit + 1, newest_first=True):
        if len(dead_letters) == limit or size > MOST_BYTES:
            return DeadLetterPage(dead_letters, dead_letters[-1].letter_id)
        dead_letters.append(read_letter(letter_id, fields))
        size += sum(map(len, fields.values()))
    return DeadLetterPage(dead_letters, None)


def dead_letter_object(dead_letter: DeadLetter, now_ms: int) -> dict[str, Any]:
    """Returns a dead letter as JSON values, with the beginning of its body."""
    return letter_object(dead_letter, now_ms) | {"body": passage(dead_letter.original.get(b"body"), SHORT_CHARS)}


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
