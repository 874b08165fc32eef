"""Terminal output of `streamfleet trace`: lines, each with a name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from streamfleet.common.durations import in_words
from streamfleet.common.results import Result
from streamfleet.operator.commands.plain import one_line
from streamfleet.operator.request_location import Trace
from streamfleet.operator.request_trace import NO_DEADLINE_MS, TraceSummary, summarize
from streamfleet.operator.texts import reason_of


def page(trace: Trace) -> str:
    """All details of one request."""
    return "\n".join(f"{name:<14}{one_line(text)}" for name, text in _lines(trace, summarize(trace)))


def _lines(trace: Trace, summary: TraceSummary) -> Iterator[tuple[str, str]]:
    yield "request", trace.request_id
    yield "now", summary.text
    yield from _origin(trace, summary)
    if summary.attempts.former:
        yield "tries before", _former(summary)
    if trace.place is not None and trace.place.details.interrupted:
        yield "interrupted", _interrupted(trace.place.details.interrupted)
    if trace.result is not None:
        yield from _ending(trace, trace.result)
    if trace.letter is not None:
        yield "dead letter", f"{trace.letter.letter_id}: {reason_of(trace.letter.error)}"
    later = " is told when it ends" if trace.result is None else " was not told yet"
    for name, told in summary.told.items():
        yield "notified", name if told else name + later
    for warning in summary.warnings:
        yield "warning", warning
    for name, value in summary.carried.items():
        yield name, value
    if trace.search is not None:
        yield "found by", f"looking through {trace.search.looked_at} entries: there is no record of its id"


def _origin(trace: Trace, summary: TraceSummary) -> Iterator[tuple[str, str]]:
    if trace.entry:
        yield "entry", trace.entry
    if summary.enqueued_ms is not None:
        by = "by a client" if trace.recorded else "by a plain XADD, or its record has expired"
        yield "enqueued", f"{_moment(summary.enqueued_ms)}, {_ago(trace.now_ms, summary.enqueued_ms)}, {by}"
    yield from _deadline(trace, summary)
    if summary.body_bytes is not None:
        yield "body", f"{summary.body_bytes} bytes"


def _deadline(trace: Trace, summary: TraceSummary) -> Iterator[tuple[str, str]]:
    details = trace.place.details if trace.place else None
    if summary.deadline_ms is not None and summary.deadline_ms < NO_DEADLINE_MS:
        left = summary.deadline_ms - trace.now_ms
        when = "passed" if left < 0 else "in"
        yield "deadline", f"{_moment(summary.deadline_ms)}, {when} {in_words(left / 1000)}"
    elif details is not None:
        ranks = f": it ranks as if it were {_moment(details.rank_ms)}" if details.rank_ms is not None else ""
        yield "deadline", f"none{ranks}"


def _former(summary: TraceSummary) -> str:
    lost = ", ".join(summary.attempts.lost_with)
    return f"{summary.attempts.former}" + (f"; lost with {lost}" if lost else "; no worker was lost with it")


def _interrupted(record: str) -> str:
    times, *output = record.split(" ")
    kept = f"{output[1]} bytes of output are kept" if len(output) > 1 else "nothing is kept of its output"
    last = f", last at {output[3]}" if len(output) > 3 else ""
    return f"gave way to urgent requests {times} times{last}; {kept}"


def _ending(trace: Trace, result: Result) -> Iterator[tuple[str, str]]:
    if (finished_ms := result.moment("finished_ms")) is not None:
        yield "ended", f"{_moment(finished_ms)}, {_ago(trace.now_ms, finished_ms)}"
    if result.worker:
        yield "written by", f"{result.worker}, attempt {result.attempt}"
    if tokens := result.fields.get("resumed_tokens"):
        yield "went on", f"behind token {tokens}, which interrupted runs had generated"
    timings = {
        "queued": result.timings.queued_ms,
        "waited for the engine": result.timings.waited_ms,
        "first token": result.timings.first_token_ms,
        "total": result.timings.total_ms,
    }
    known = [f"{name} {in_words(value / 1000)}" for name, value in timings.items() if value is not None]
    if known:
        yield "took", ", ".join(known)
    if not result.ok:
        error = result.error or {}
        yield "error", f"{reason_of(error)} ({error.get('code') or result.http_status})"
    if trace.result_ttl_ms is not None:
        yield "kept for", f"another {in_words(trace.result_ttl_ms / 1000)}"


def _ago(now_ms: int, then_ms: int) -> str:
    return f"{in_words(max(0.0, (now_ms - then_ms) / 1000))} ago"


def _moment(epoch_ms: int | None) -> str:
    """A time for people; in ms if it is outside the calendar."""
    try:
        moment = datetime.fromtimestamp((epoch_ms or 0) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{epoch_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
