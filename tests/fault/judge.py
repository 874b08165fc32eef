"""Judges a history from outside: what must never happen, whatever faults struck. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.fault.history import STEP_MS, Accepted, Execution, Exit, History
from tests.fault.plan import ALLOWED, Kind

FREEZING = frozenset({"stop", "point_stop", "point_stall", "cut", "delay", "black_hole", "swallow"})
CUTTING_OFF = frozenset({"cut", "delay", "black_hole"})
DEADLY = frozenset({"kill", "point_kill"})
KILLED, TERMINATED, REFUSED, ENGINE_FAILED, LOOP_HUNG = -9, -15, 2, 3, 70
MOST_INNOCENT, INNOCENT_PER_MILLE = 3, 2
WITHOUT_LETTER = frozenset({"succeeded", "cancelled"})
LEAVE = "leave"  # asked to, when all was over: no excuse for what it lost before
CONFLICTING = frozenset({"twice"})


@dataclass(frozen=True)
class Violation:
    """Something that must not be: `kind` in a word, `id` of the request where it is about one."""

    kind: str
    id: str
    message: str


@dataclass
class Verdict:
    """Outcome of a run.

    Attributes:
        violations: empty for a good run.
        figures: numbers of the last line, in order.
    """

    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)


def judge(history: History) -> Verdict:
    """All rules on one history."""
    lasting = history.lasting() if history.rewound else history
    verdict = Verdict([violation for rule in RULES for violation in rule(lasting)])
    verdict.violations += [violation for rule in OF_ALL for violation in rule(history)]
    verdict.figures = _figures(history, Counter(violation.kind for violation in verdict.violations))
    return verdict


# -- one terminal result ------------------------------------------------------------------------------------


def every_request_has_one_result(history: History) -> Iterator[Violation]:
    for request in history.accepted.values():
        status = history.results.get(request.id, {}).get("status", "")
        if not status:
            yield Violation("lost", request.id, "accepted, and has no result")
        elif status not in _allowed(history, request):
            yield Violation("status", request.id, f"a {request.kind} request ended as {status}")


def what_a_snapshot_had_has_ended(history: History) -> Iterator[Violation]:
    """A request that was accepted before a snapshot ends, whatever became of it after that."""
    for name in sorted(history.rewound & history.accepted.keys()):
        if not history.undone(history.accepted[name].at_ms) and not history.results.get(name, {}).get("status"):
            yield Violation("lost", name, "accepted before the snapshot that was restored, and has no result")


def only_what_a_snapshot_lacked_is_lost(history: History) -> Iterator[Violation]:
    for name in sorted(history.told_lost - history.rewound):
        yield Violation("lost", name, "its caller was told that it is lost, and no snapshot lacked it")


def every_result_belongs_to_a_request(history: History) -> Iterator[Violation]:
    for name, result in history.results.items():
        if name not in history.accepted and result.get("meta", "") not in history.nonces:
            yield Violation("stray", name, "has a result, and nobody asked for it")


def _allowed(history: History, request: Accepted) -> frozenset[str]:
    allowed = ALLOWED[Kind(request.kind)]
    if request.id in history.cancelled and Kind(request.kind) is Kind.CANCELLED:
        allowed = frozenset({"cancelled"}) if history.cancelled[request.id] else frozenset({"succeeded"})
    if Kind(request.kind) is Kind.LATE and _had_time(history, request):
        allowed |= {"succeeded"}
    return allowed | {"dead"} if _was_struck_every_time(history, request.id) else allowed


def _had_time(history: History, request: Accepted) -> bool:
    """True if Redis's clock was set back in the run, and by it the request ended before its deadline."""
    result = history.results[request.id]
    deadline = int(result.get("enqueued_ms") or 0) + (request.ttl_ms or 0)
    stepped = any(after < before for (_, before), (_, after) in pairwise([(0, 0), *history.redis_clock]))
    return stepped and int(result.get("finished_ms") or 0) < deadline


def _was_struck_every_time(history: History, name: str) -> bool:
    """True if faults, not the request, used up its attempts: each attempt was with a worker that a fault touched.

    Not every attempt comes as far as the engine, so the workers count that its dead letter names; and besides them
    those that ran it and lived on when their engines failed.
    """
    named = history.lost_with.get(name, [])
    others = [each.worker for each in history.executions.get(name, []) if each.worker not in named]
    return sum(_excused(history, worker) for worker in (*named, *others)) >= history.max_deliveries


def statuses_are_counted_once(history: History) -> Iterator[Violation]:
    there = Counter(result["status"] for result in history.results.values() if result.get("status"))
    # Cancelled after a restored snapshot had lost it, a request has a result, and would be counted only with its entry.
    undone = sum(
        history.results.get(name, {}).get("status") == "cancelled" and history.undone(request.at_ms)
        for name, request in history.accepted.items()
    )
    # Requests whose entries are gone count as vanished.
    vanished = sum('"vanished"' in result.get("error", "") for result in history.results.values())
    for status in ("succeeded", "failed", "expired", "cancelled", "dead"):
        doubted = {"cancelled": undone, "dead": vanished}.get(status, 0)
        if not there[status] - doubted <= history.counts.get(status, 0) <= there[status]:
            message = f"{there[status]} results are {status}, but {history.counts.get(status, 0)} were counted"
            yield Violation("counts", "", message)


def no_more_duplicates_than_were_sent(history: History) -> Iterator[Violation]:
    if history.counts.get("duplicate", 0) > history.doubles:
        counted = history.counts["duplicate"]
        yield Violation("counts", "", f"{counted} entries were duplicates, but {history.doubles} were sent")


def zombies_do_not_publish(history: History) -> Iterator[Violation]:
    for name, executions in history.executions.items():
        result = history.results.get(name, {})
        if not result.get("worker"):
            continue
        attempt, finished = int(result["attempt"] or 0), int(result["finished_ms"] or 0)
        for other in executions:
            if other.entry not in ("", result.get("entry")):
                continue  # the same id, sent twice: each entry has attempts of its own
            if other.attempt > attempt and other.start_ms < history.moments(finished)[0]:
                message = f"attempt {attempt} of {result['worker']} was published though attempt {other.attempt} ran"
                yield Violation("zombie", name, message)


def a_status_is_never_overwritten(history: History) -> Iterator[Violation]:
    for seen in history.live:
        final = history.results.get(seen.id, {})
        if seen.told != final.get("status"):
            yield Violation("overwritten", seen.id, f"was told {seen.told}, is {final.get('status')}")
        for name, value in seen.result.items():
            if value != final.get(name):
                yield Violation("overwritten", seen.id, f"{name} was {value!r}, is {final.get(name)!r}")
    for name, status, worker, attempt in history.got:
        final = history.results.get(name, {})
        if (status, worker) != (final.get("status"), final.get("worker", "")) or str(attempt) not in (
            final.get("attempt"),
            "0",
        ):
            yield Violation("overwritten", name, f"a client got {status} of {worker} #{attempt}, now it is {final}")


# -- one notification ---------------------------------------------------------------------------------------


def everybody_is_told_once(history: History) -> Iterator[Violation]:
    told = Counter(history.replies)
    for request in history.accepted.values():
        times = told.pop((request.reply, request.id), 0) if request.reply else 1
        if times != 1:
            kind = "untold" if times == 0 else "duplicate"
            yield Violation(kind, request.id, f"{request.reply} was told {times} times")
    for (reply, name), times in told.items():
        if history.results.get(name, {}).get("meta", "") not in history.nonces:
            yield Violation("stray", name, f"{reply} was told of it, and nobody asked for it")
        elif times > 1:
            yield Violation("duplicate", name, f"{reply} was told {times} times")


def failures_leave_one_letter(history: History) -> Iterator[Violation]:
    letters = Counter(history.letters)
    for name, result in history.results.items():
        status = result.get("status", "")
        wanted = 0 if status in WITHOUT_LETTER else 1
        found = letters.pop((name, status), 0)
        if found != wanted:
            yield Violation("letters", name, f"{found} dead letters for a request that is {status}, not {wanted}")
    for (name, status), times in letters.items():
        yield Violation("letters", name, f"{times} dead letters as {status}, which it is not")


# -- executions ---------------------------------------------------------------------------------------------


def attempts_are_bounded_and_counted(history: History) -> Iterator[Violation]:
    for name, executions in history.executions.items():
        for execution in executions:
            if execution.attempt > history.max_deliveries:
                yield Violation("attempts", name, f"attempt {execution.attempt} by {execution.worker}")
        if _has_two_entries(history, name):
            continue
        for again in _without_reason(_repeated(executions), history.gave_way):
            if not {"term", "swallow"} & history.touched.get(again.worker, set()):
                yield Violation("uncounted", name, f"attempt {again.attempt} of {again.worker} was made again")
    for request in history.accepted.values():
        if history.results.get(request.id, {}).get("status") == "dead":
            attempt = history.results[request.id].get("attempt")
            if attempt != str(history.max_deliveries):
                yield Violation("attempts", request.id, f"given up after {attempt} attempts")


def _has_two_entries(history: History, name: str) -> bool:
    """True if two entries may exist under one id, on purpose or in doubt: by the protocol both may run."""
    request = history.accepted.get(name)
    return name in history.doubted or (request is not None and request.kind in CONFLICTING)


def _without_reason(repeated: Iterable[Execution], gave_way: Counter[tuple[str, str, int]]) -> Iterator[Execution]:
    """Repeated executions that did not end for an urgent request."""
    left = gave_way.copy()
    for again in repeated:
        run = again.id, again.worker, again.attempt
        left[run] -= 1
        if left[run] < 0:
            yield again


def _repeated(executions: list[Execution]) -> Iterator[Execution]:
    """Executions whose attempt number was given out again later."""
    ordered = sorted(executions, key=lambda execution: execution.start_ms)
    for index, execution in enumerate(ordered):
        if any(later.attempt == execution.attempt for later in ordered[index + 1 :]):
            yield execution


def nothing_starts_after_its_end(history: History) -> Iterator[Violation]:
    for name, executions in history.executions.items():
        result, request = history.results.get(name, {}), history.accepted.get(name)
        finished = int(result.get("finished_ms") or 0)
        # `finished_ms` continues the clock of the claim, which may have stepped since: the witness knows better.
        by = (result.get("worker", ""), int(result.get("attempt") or 0))
        seen = sorted(each.end_ms for each in executions if each.end_ms and (each.worker, each.attempt) == by)
        before = history.gave_way[name, *by]  # runs of the same attempt, on the same worker
        ended_ms = history.back(min(seen[before:], default=history.moments(finished)[-1]))
        if CUTTING_OFF & history.touched.get(by[0], set()):  # it may have written its result much later
            ended_ms = max(ended_ms, history.moments(finished)[-1])
        for execution in executions:
            if FREEZING & history.touched.get(execution.worker, set()):
                continue  # a zombie: it may run, for nothing, but not publish
            late_ms = execution.start_ms - ended_ms
            if finished and late_ms > history.lease_ms:
                yield Violation("started_late", name, f"{execution.worker} started it {late_ms} ms after its end")
            if request is not None and request.ttl_ms is not None and result.get("enqueued_ms"):
                enqueued_ms = history.moments(int(result["enqueued_ms"]))[-1]
                late_ms = execution.start_ms - enqueued_ms - request.ttl_ms
                if late_ms > history.lease_ms:
                    yield Violation("expired_late", name, f"{execution.worker} started it {late_ms} ms too late")


def lost_attempts_have_a_reason(history: History) -> Iterator[Violation]:
    """An attempt that came to nothing was struck by a fault that touched its worker."""
    for name, executions in history.executions.items():
        if _has_two_entries(history, name):
            continue
        for execution in wasted(history, name, executions):
            gave_way = history.gave_way[name, execution.worker, execution.attempt] > 0
            if not (gave_way or _excused(history, execution.worker)):
                yield Violation("unexplained", name, f"attempt {execution.attempt} of {execution.worker} was lost")


def wasted(history: History, name: str, executions: list[Execution]) -> list[Execution]:
    """Executions that did not lead to the result."""
    result = history.results.get(name, {})
    if result.get("worker"):
        by = (result["worker"], int(result.get("attempt") or 0))
        return [execution for execution in executions if (execution.worker, execution.attempt) != by]
    # Expired or cancelled while it ran, the last one was no waste; given up, all were.
    ordered = sorted(executions, key=lambda execution: execution.start_ms)
    return ordered if result.get("status") == "dead" else ordered[:-1]


def _excused(history: History, worker: str) -> bool:
    codes = {end.code for end in history.exits if end.worker == worker}
    return bool(history.touched.get(worker, set()) - {LEAVE}) or bool(codes - {0})


# -- processes, and what is left ----------------------------------------------------------------------------


def workers_end_as_planned(history: History) -> Iterator[Violation]:
    for end in history.exits:
        touched, marked = history.touched.get(end.worker, set()), history.marked.get(end.worker, set())
        failed = bool(touched & {"engine_death", "engine_hang"}) or "hang" in marked
        asked = bool(touched & {"term", "term_early", LEAVE})
        planned = {
            0: asked,
            KILLED: bool(touched & DEADLY) or "poison" in marked,
            # Started while its file and the server differ. One that was let in before waits.
            REFUSED: end.worker not in history.ready and _while_away(history, end),
            ENGINE_FAILED: failed,
            LOOP_HUNG: "point_stall" in touched,
            # On its way out already, nobody is left in it who could hear the signal.
            TERMINATED: "term_early" in touched or "term_again" in touched or (asked and failed),
        }.get(end.code, False)
        if not planned:
            yield Violation("exit", "", f"{end.worker} ended with {end.code}, which nothing asked for")
    for name in history.stuck:
        yield Violation("stuck", "", f"{name} did not end when asked to")
    for process in history.orphans:
        yield Violation("orphan", "", f"left over: {process}")


def _while_away(history: History, end: Exit) -> bool:
    started = history.started.get(end.worker, 0)
    away = any(began - STEP_MS <= max(started, end.at_ms) and started < over for began, over in history.outages)
    return away or history.undone(started)  # a restored server has its users a moment later


def changed_passwords_were_met(history: History) -> Iterator[Violation]:
    if history.refusals and not any(history.refusals):
        yield Violation(
            "password", "", f"nobody was refused a login in {len(history.refusals)} changes: they show nothing"
        )


def poison_names_the_workers_that_it_killed(history: History) -> Iterator[Violation]:
    killed = {end.worker for end in history.exits if end.code == KILLED}
    for request in history.accepted.values():
        if request.kind != Kind.POISON:
            continue
        ran_by = {execution.worker for execution in history.executions.get(request.id, [])}
        if missing := (ran_by & killed) - set(history.lost_with.get(request.id, [])):
            yield Violation("unnamed", request.id, f"its dead letter does not name {', '.join(sorted(missing))}")


def nothing_is_left(history: History) -> Iterator[Violation]:
    for name, size in history.left.items():
        if size:
            yield Violation("left", "", f"{name} still holds {size}")
    for problem in history.problems:
        yield Violation("audit", "", problem)


def few_innocent_are_given_up(history: History) -> Iterator[Violation]:
    """Five faults in a row may meet a healthy request; should they meet many, something makes them."""
    dead = innocent_dead(history)
    if len(dead) > max(MOST_INNOCENT, len(history.accepted) * INNOCENT_PER_MILLE // 1_000):
        yield Violation("innocent", dead[0], f"{len(dead)} healthy requests were given up: {', '.join(dead[:10])}")


RULES: tuple[Callable[[History], Iterator[Violation]], ...] = (
    every_request_has_one_result,
    every_result_belongs_to_a_request,
    no_more_duplicates_than_were_sent,
    zombies_do_not_publish,
    a_status_is_never_overwritten,
    everybody_is_told_once,
    failures_leave_one_letter,
    attempts_are_bounded_and_counted,
    nothing_starts_after_its_end,
    lost_attempts_have_a_reason,
    workers_end_as_planned,
    changed_passwords_were_met,
    nothing_is_left,
    few_innocent_are_given_up,
    poison_names_the_workers_that_it_killed,
)

OF_ALL = (statuses_are_counted_once, what_a_snapshot_had_has_ended, only_what_a_snapshot_lacked_is_lost)
"""Rules on the whole history, also on requests that a restored snapshot touched."""


def innocent_dead(history: History) -> list[str]:
    """Requests that did nothing wrong, and were given up because of faults around them."""
    harmless = {kind for kind in Kind if "dead" not in ALLOWED[kind]}
    return [
        request.id
        for request in history.accepted.values()
        if Kind(request.kind) in harmless and history.results.get(request.id, {}).get("status") == "dead"
    ]


def _figures(history: History, kinds: Counter[str]) -> dict[str, int]:
    undone = {
        name for name in history.rewound & history.accepted.keys() if not history.results.get(name, {}).get("status")
    }
    terminal = sum(bool(history.results.get(name, {}).get("status")) for name in history.accepted)
    return {
        "accepted": len(history.accepted),
        "terminal": terminal,
        "undone": len(undone),
        "lost": len(history.accepted) - terminal - len(undone),
        "duplicate_results": kinds["duplicate"] + kinds["overwritten"],
        "wasted_executions": sum(len(wasted(history, name, each)) for name, each in history.executions.items()),
        "innocent_dead": len(innocent_dead(history)),
        "orphans": len(history.orphans) + len(history.stuck),
        "violations": sum(kinds.values()),
    }
