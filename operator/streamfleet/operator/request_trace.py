"""Summarises a trace: state of the request, its deadline, its earlier attempts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from streamfleet.common.durations import in_words
from streamfleet.common.envelope import CARRIED, unknown_fields
from streamfleet.common.keys import NOBODY
from streamfleet.common.protocol import stream_ms
from streamfleet.operator.commands.plain import plain
from streamfleet.operator.dead_letters import DeadLetter
from streamfleet.operator.request_location import Place, Trace

NO_DEADLINE_MS = 9 * 10**15
MOST_NAME = 200
_DIGITS = re.compile(rb"[0-9]{1,16}")
_TRIES = re.compile(r"([0-9]{1,9})((?: [!-~]+)*)")


@dataclass(frozen=True, slots=True)
class Attempts:
    """Number of attempts before the present one, and the workers lost with the request (at most the last 16)."""

    former: int
    lost_with: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A request at one instant.

    Attributes:
        state: ``undelivered``, ``ready``, ``delayed``, ``handed_out``, ``running``, ``nowhere``, a terminal status, or
            ``unknown``.
        text: the state for people.
        enqueued_ms, deadline_ms: epoch ms; None if unknown, or for no deadline.
        attempts: attempts before the present or last one.
        told: reply name to True if it was notified of the end.
        carried: the fields that results have too, as far as given.
        body_bytes: size of its body; None once the entry is gone.
        warnings: its mistakes that do not keep it from running.
    """

    state: str
    text: str
    enqueued_ms: int | None
    deadline_ms: int | None
    attempts: Attempts
    told: Mapping[str, bool]
    carried: Mapping[str, str]
    body_bytes: int | None
    warnings: tuple[str, ...]


def summarize(trace: Trace) -> TraceSummary:
    """Summarise a trace."""
    place, result, letter = trace.place, trace.result, trace.letter
    state, text = _state(trace)
    enqueued_ms = _enqueued_ms(trace)
    fields = (place.details.fields if place else None) or (letter.original if letter else {})
    result_fields = result.fields if result else {}
    carried = {name: result_fields[name] for name in CARRIED if name in result_fields}
    if not carried:
        carried = {name: _text(fields[name.encode()]) for name in CARRIED if fields.get(name.encode())}
    return TraceSummary(
        state=state,
        text=text,
        enqueued_ms=enqueued_ms,
        deadline_ms=deadline_ms(fields, enqueued_ms),
        attempts=_attempts(place, letter, result.attempt if result else 0),
        told=_told(trace, result_fields),
        carried=carried,
        body_bytes=len(fields.get(b"body", b"")) if fields else None,
        warnings=(result.warnings if result else ()) or tuple(warning for _, warning in unknown_fields(fields)),
    )


def not_found(trace: Trace) -> str:
    """Reason why nothing was found, and what to try."""
    name = plain(trace.asked[:MOST_NAME])
    if trace.recorded:
        return (
            f"request {name} was enqueued, but its entry is gone and it has no result: somebody deleted it by hand. "
            "`streamfleet audit --repair` ends it"
        )
    if trace.search is None:
        return (
            f"request {name}: no such entry in its lane, and no result under this name. It never was there, or it is "
            "long gone; if it had an id of its own, ask by that"
        )
    looked = f"nor is it among the {trace.search.looked_at} entries that were looked at"
    if trace.search.looked_at < trace.search.outstanding:
        looked += f" of {trace.search.outstanding}; if it was put in by a plain XADD, ask by <lane>:<stream id>"
    return f"request {name}: no client enqueued it, or it is long gone; {looked}"


def deadline_ms(fields: Mapping[bytes, bytes], enqueued_ms: int | None) -> int | None:
    """An entry's deadline by the scripts' own rule (lua/lib/entry.lua), epoch ms; None for none or an invalid one."""
    deadline, ttl = _milliseconds(fields.get(b"deadline")), _milliseconds(fields.get(b"ttl"))
    if deadline is not None:
        return deadline
    return None if ttl is None or enqueued_ms is None else enqueued_ms + ttl


def read_tries(text: str) -> Attempts:
    """Parse ``<attempts>[ <worker>…]`` as the scripts store it; zero attempts for an invalid text."""
    match = _TRIES.fullmatch(text)
    return Attempts(int(match[1]), tuple(match[2].split())) if match else Attempts(0, ())


def _state(trace: Trace) -> tuple[str, str]:
    place, result = trace.place, trace.result
    if result is not None:
        by = f" by {result.worker}, attempt {result.attempt}" if result.worker else ""
        rest = "; its entry stands in its lane until its turn comes" if place is not None else ""
        return result.status.value, f"ended: {result.status}{by}{rest}"
    if place is None:
        return "unknown", "unknown"
    if place.details.worker is not None:
        return _held(trace.now_ms, place)
    state, text = _waiting(trace.now_ms, place)
    return state, f"{text}; its lane is paused: `streamfleet resume {place.lane}`" if place.paused else text


def _held(now_ms: int, place: Place) -> tuple[str, str]:
    if place.details.worker == NOBODY:
        return "handed_out", "on its way to a worker"
    return "running", _running(now_ms, place)


def _waiting(now_ms: int, place: Place) -> tuple[str, str]:
    details = place.details
    if details.due_ms is not None:
        return "delayed", f"delayed: its next try is due in {in_words((details.due_ms - now_ms) / 1000)}"
    if details.before is not None:
        when = "" if place.wait_ms is None else f", expected to be taken in {in_words(place.wait_ms / 1000)}"
        return "ready", f"ready: {_requests(details.before)} before it in its lane{when}"
    if not details.delivered:
        return "undelivered", "not delivered yet: no worker has pulled since it came"
    return "nowhere", "in its lane, but neither ready nor delayed nor running: `streamfleet audit --repair` mends that"


def _running(now_ms: int, place: Place) -> str:
    details, worker = place.details, place.worker
    spans = [max(0.0, (now_ms - stream_ms(place.stream_id)) / 1000)]
    if worker is not None and worker.oldest_held_s is not None:
        spans.append(worker.oldest_held_s)
    held = f"for at most {in_words(min(spans))}, renewed {in_words(details.idle_ms / 1000)} ago"
    if worker is None or not worker.alive:
        held += "; that worker is silent: others take it over when the lease is over"
    return f"running with {details.worker}, attempt {details.attempt}, {held}"


def _attempts(place: Place | None, letter: DeadLetter | None, attempt: int) -> Attempts:
    if place is not None:
        return read_tries(place.details.tries)
    return Attempts(max(0, attempt - 1), letter.workers if letter else ())


def _told(trace: Trace, fields: Mapping[str, str]) -> dict[str, bool]:
    told = {name.partition(":")[2]: value == "1" for name, value in fields.items() if name.startswith("notified:")}
    asked = trace.reply or _text((trace.place.details.fields or {}).get(b"reply", b"") if trace.place else b"")
    return {asked: False, **told} if asked else told


def _enqueued_ms(trace: Trace) -> int | None:
    if trace.place is not None:
        return stream_ms(trace.place.stream_id)
    return trace.result.moment("enqueued_ms") if trace.result else None


def _milliseconds(value: bytes | None) -> int | None:
    return min(int(value), NO_DEADLINE_MS) if value and _DIGITS.fullmatch(value) else None


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
