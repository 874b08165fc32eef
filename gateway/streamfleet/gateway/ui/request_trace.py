"""Everything that is known of one request, as the page shows it. Pure.

A `Trace` goes in; JSON values come out, with the events of the request in order and every text cut to its bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from streamfleet.common.envelope import CARRIED
from streamfleet.common.results import Result
from streamfleet.gateway.ui.texts import LINE_CHARS, MOST_CHARS, error_of, fields_of, line, passage, usage_of
from streamfleet.operator.request_location import Trace
from streamfleet.operator.request_trace import NO_DEADLINE_MS, TraceSummary, as_json_value, summarize

CANCELLABLE = frozenset({"undelivered", "ready", "delayed", "handed_out", "running", "nowhere"})
_TEXTS = ("id", "text", "entry", "lane", "worker", "finished_ms", *CARRIED)


class Event(NamedTuple):
    """An event in a request's life, past or expected; its time (epoch ms) is None if unknown."""

    at_ms: float | None
    kind: str
    text: str


def trace_object(trace: Trace) -> dict[str, Any]:
    """Returns everything as JSON values, each text cut to its bound."""
    summary, result, dead_letter = summarize(trace), trace.result, trace.letter
    values = as_json_value(trace)
    fields = (trace.place.details.fields if trace.place else None) or (dead_letter.original if dead_letter else {})
    return {
        **values,
        **{name: line(values[name]) if isinstance(values[name], str) else values[name] for name in _TEXTS},
        "lost_with": [line(name) for name in values["lost_with"]],
        "notified": {line(name): value for name, value in list(values["notified"].items())[:32]},
        "error": error_of(values["error"]),
        "warnings": [line(warning) for warning in values["warnings"][:32]],
        "events": [event._asdict() for event in events(trace, summary)],
        "body": passage(fields.get(b"body")),
        "fields": fields_of(fields),
        "result": passage(result.fields.get("response") or result.fields.get("error")) if result else None,
        "output": line(result.text, MOST_CHARS) if result else None,
        "usage": usage_of(result.usage) if result else None,
        "can_cancel": summary.state in CANCELLABLE,
    }


def not_found_text(trace: Trace) -> str:
    """Returns a sentence for a request of which nothing is known; it says how much was searched."""
    name = line(trace.asked, 200)
    if trace.recorded:
        return f"request {name} was enqueued, but its entry is gone and it has no result: somebody deleted it by hand"
    if trace.search is None:
        return f"there is no request {name}, or none any more"
    search = trace.search
    return (
        f"there is no request {name}, or none any more: no client enqueued it, and it is not among the "
        f"{search.looked_at} entries looked at, of {search.outstanding} outstanding"
    )


def events(trace: Trace, summary: TraceSummary) -> list[Event]:
    """Returns the events, oldest first; an event without a known time keeps its place between the others."""
    found = [*_enqueue_events(trace, summary), *_run_events(trace, summary), *_end_events(trace, summary)]
    keyed, last_ms = [], float("-inf")
    for event in found:
        last_ms = max(last_ms, event.at_ms) if event.at_ms is not None and event.kind != "deadline" else last_ms
        keyed.append((event.at_ms if event.at_ms is not None else last_ms, event))
    return [event for _, event in sorted(keyed, key=lambda pair: pair[0])]


def _enqueue_events(trace: Trace, summary: TraceSummary) -> Iterator[Event]:
    if summary.enqueued_ms is not None:
        by = "by a client" if trace.recorded else "by a plain XADD, or its record has expired"
        yield Event(summary.enqueued_ms, "enqueued", f"enqueued {by}")
    if summary.attempts.former:
        lost = ", ".join(line(name) for name in summary.attempts.lost_with)
        text = f"{summary.attempts.former} attempts before" + (f"; lost with {lost}" if lost else "")
        yield Event(None, "lost", text)
    details = trace.place.details if trace.place else None
    if details is not None and details.due_ms is not None:
        yield Event(details.due_ms, "delayed_until", "its next try is due")


def _run_events(trace: Trace, summary: TraceSummary) -> Iterator[Event]:
    result = trace.result
    if result is None:
        if summary.state == "running":
            yield Event(None, "started", summary.text)
        return
    queued, waited, first = result.timings[:3]
    if not result.worker or summary.enqueued_ms is None or queued is None:
        return
    at_ms = summary.enqueued_ms + queued
    yield Event(at_ms, "started", f"taken by {line(result.worker)}, attempt {result.attempt}")
    if first is not None:
        yield Event(at_ms + (waited or 0) + first, "first_token", f"first token after {first:g} ms in the engine")


def _end_events(trace: Trace, summary: TraceSummary) -> Iterator[Event]:
    if trace.result is not None:
        yield Event(_finished_ms(trace.result), "ended", line(summary.text, LINE_CHARS))
    elif summary.deadline_ms is not None and summary.deadline_ms < NO_DEADLINE_MS:
        yield Event(summary.deadline_ms, "deadline", "its deadline")
    if trace.letter is not None:
        yield Event(trace.letter.written_ms, "dead_letter", f"dead letter {trace.letter.letter_id}")
    if trace.result_ttl_ms is not None:
        yield Event(trace.now_ms + trace.result_ttl_ms, "expires", "its result is forgotten")


def _finished_ms(result: Result) -> int | None:
    said = result.fields.get("finished_ms", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 16 else None
