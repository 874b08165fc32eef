"""A queue, its workers, its dead letters and a request's trace as JSON values. Pure.

`--json` of the commands and the gateway's page show the same. Every text that any producer or worker could have written
is cut to its bound and has its control characters escaped (`texts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from streamfleet.common.envelope import CARRIED
from streamfleet.common.keys import NOBODY
from streamfleet.operator.broker.inspecting import read_entry_name
from streamfleet.operator.dead_letters import DeadLetter, NotRequeued, requeued_entry
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.lateness import Lateness, lateness
from streamfleet.operator.rates import Rates
from streamfleet.operator.request_location import Trace
from streamfleet.operator.request_trace import NO_DEADLINE_MS, TraceSummary, summarize
from streamfleet.operator.snapshot import LaneView, Snapshot
from streamfleet.operator.texts import MOST_CHARS, error_of, fields_of, line, line_or_none, passage, reason_of, usage_of

WITHIN_S = (0, 10, 60, 300)
CANCELLABLE = frozenset({"undelivered", "ready", "delayed", "handed_out", "running", "nowhere"})


# -- a queue -----------------------------------------------------------------------------------------------


def queue_object(snapshot: Snapshot, rates: Rates | None) -> dict[str, Any]:
    """Returns a queue at one instant.

    Args:
        snapshot: its state.
        rates: its change up to now; None if unknown.
    """
    late = lateness(snapshot)
    return {
        "queue": snapshot.queue,
        "now_ms": snapshot.now_ms,
        "lanes": [_lane(lane, judged) for lane, judged in zip(snapshot.lanes, late, strict=True)],
        "outstanding": snapshot.outstanding,
        "ready": sum(lane.ready for lane in snapshot.lanes),
        "running": snapshot.running,
        "delayed": snapshot.delayed,
        "dead_letters": snapshot.dead_letters,
        "accepted": snapshot.accepted,
        "finished": snapshot.finished,
        "ended": dict(snapshot.ended),
        "shares": list(snapshot.shares),
        "pace_per_s": snapshot.pace_per_s,
        "rates": rates.to_json() if rates else None,
        "workers": [worker_object(worker) for worker in snapshot.workers],
    }


def _lane(lane: LaneView, judged: Lateness) -> dict[str, Any]:
    counts, exact = pressure(lane)
    values = asdict(lane)
    del values["due"], values["deadlines"]
    return values | {
        "pressure": counts,
        "pressure_exact": exact,
        "late": judged.late,
        "will_be_late": judged.will_be,
        "cause": judged.cause.value,
        "why": line(judged.text),
    }


def pressure(lane: LaneView) -> tuple[list[dict[str, int]], bool]:
    """Returns the ready requests that are due soon (deadline, or default patience), by time, and True if that is exact.

    Of a long lane only some places were read; between two of them, due times are taken to be evenly spread.
    """
    points = [(0.0, float("-inf")), *((place + 1.0, left_s) for place, left_s in lane.due)]
    counts = [{"within_s": within_s, "count": min(lane.ready, _due_by(within_s, points))} for within_s in WITHIN_S]
    return counts, len(lane.due) >= lane.ready


def _due_by(within_s: float, points: Sequence[tuple[float, float]]) -> int:
    """Number of requests due by then, interpolated between points that give a number and its due time."""
    reached = max(index for index, (_, left_s) in enumerate(points) if left_s <= within_s)
    count, left_s = points[reached]
    if reached + 1 == len(points):
        return int(count)
    above, above_s = points[reached + 1]
    if left_s == float("-inf") or above_s <= left_s:
        return int(count)
    return int(count + (above - count - 1) * (within_s - left_s) / (above_s - left_s))


def worker_object(worker: WorkerView) -> dict[str, Any]:
    """Returns a worker, as it last described itself."""
    return {
        "name": line(worker.name, 200),
        "state": line(worker.state),
        "alive": worker.alive,
        "takes_requests": worker.takes_requests,
        "why_not": line_or_none(worker.why_not),
        "engine": line(worker.engine),
        "models": [line(model) for model in worker.models],
        "endpoints": [line(endpoint) for endpoint in worker.endpoints],
        "version": line(worker.version),
        "running": worker.running,
        "slots": worker.slots,
        "limited": worker.limited,
        "held": dict(worker.held),
        "oldest_held_s": worker.oldest_held_s,
        "kv_use": worker.kv_use,
        "mean_batch": worker.mean_batch,
        "max_model_len": worker.max_model_len,
        "age_s": worker.age_s,
        "silent_s": worker.silent_s,
        "silent_after_s": worker.silent_after_s,
    }


# -- a dead letter -----------------------------------------------------------------------------------------


def letter_object(letter: DeadLetter, now_ms: int) -> dict[str, Any]:
    """Returns a dead letter, without the fields that were enqueued."""
    why_not = ""
    try:
        requeued_entry(letter, now_ms)
    except NotRequeued as error:
        why_not = line(str(error))
    named = read_entry_name(letter.entry)
    return {
        "letter_id": letter.letter_id,
        "request_id": line(letter.request_id),
        "status": line(letter.status, 40),
        "lane": named[0].value if named else None,
        "entry": line_or_none(letter.entry),
        "attempts": letter.attempts,
        "written_ms": letter.written_ms,
        "workers": [line(name) for name in letter.workers[:16]],
        "code": line(letter.code) or None,
        "error": error_of(letter.error),
        "reason": reason_of(letter.error),
        "truncated": letter.truncated,
        "can_requeue": not why_not,
        "why_not": why_not or None,
        "tenant": line_or_none(letter.original.get(b"tenant")),
    }


# -- a request ---------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """An event in a request's life, past or expected; its time (epoch ms) is None if unknown."""

    at_ms: float | None
    kind: str
    text: str


def trace_object(trace: Trace) -> dict[str, Any]:
    """Returns everything that is known of a request, with its events in order; times in epoch ms."""
    summary, place, result, letter = summarize(trace), trace.place, trace.result, trace.letter
    details = place.details if place else None
    fields = (details.fields if details else None) or (letter.original if letter else {})
    return {
        "id": line(trace.request_id),
        "state": summary.state,
        "text": line(summary.text),
        "now_ms": trace.now_ms,
        "entry": line_or_none(trace.entry),
        "lane": line_or_none(trace.entry.partition(":")[0]),
        "recorded": trace.recorded,
        "enqueued_ms": summary.enqueued_ms,
        "deadline_ms": summary.deadline_ms,
        "left_ms": None if summary.deadline_ms is None else summary.deadline_ms - trace.now_ms,
        "requests_before": details.before if details else None,
        "expected_ms": place.wait_ms if place else None,
        "due_ms": details.due_ms if details else None,
        "worker": line_or_none(
            (details.worker if details and details.worker != NOBODY else None) or (result.worker if result else None)
        ),
        "attempt": (details.attempt if details else 0) or (result.attempt if result else 0),
        "renewed_ms_ago": details.idle_ms if details and details.worker else None,
        "former_attempts": summary.attempts.former,
        "lost_with": [line(name) for name in summary.attempts.lost_with],
        "timings_ms": result.timings._asdict() if result else None,
        "finished_ms": result.moment("finished_ms") if result else None,
        "error": error_of(result.error) if result else None,
        "warnings": [line(warning) for warning in summary.warnings[:32]],
        "kept_ms": trace.result_ttl_ms,
        "dead_letter": letter.letter_id if letter else None,
        "notified": {line(name): told for name, told in list(summary.told.items())[:32]},
        **{name: line_or_none(summary.carried.get(name)) for name in CARRIED},
        "looked_through": trace.search.looked_at if trace.search else None,
        "events": [event._asdict() for event in events(trace, summary)],
        "body": passage(fields.get(b"body")),
        "fields": fields_of(fields),
        "result": passage(result.fields.get("response") or result.fields.get("error")) if result else None,
        "output": line(result.text, MOST_CHARS) if result else None,
        "usage": usage_of(result.usage) if result else None,
        "can_cancel": summary.state in CANCELLABLE,
    }


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
            yield Event(None, "started", line(summary.text))
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
        yield Event(trace.result.moment("finished_ms"), "ended", line(summary.text))
    elif summary.deadline_ms is not None and summary.deadline_ms < NO_DEADLINE_MS:
        yield Event(summary.deadline_ms, "deadline", "its deadline")
    if trace.letter is not None:
        yield Event(trace.letter.written_ms, "dead_letter", f"dead letter {trace.letter.letter_id}")
    if trace.result_ttl_ms is not None:
        yield Event(trace.now_ms + trace.result_ttl_ms, "expires", "its result is forgotten")
