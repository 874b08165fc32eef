"""The judge on histories made by hand: it lets a good one pass, and notices whatever is planted in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fault.history import Accepted, Execution, Exit, History, Notified, read_logs
from tests.fault.judge import innocent_dead, judge
from tests.fault.plan import Kind

BEGAN = 1_000_000


def good_history() -> History:
    """Requests of several kinds that all ended well, two of them by a second attempt after a kill."""
    history = History(max_deliveries=3, lease_ms=1_000)
    add(history, "a", Kind.GOOD)
    add(history, "b", Kind.GOOD, attempt=2, before=("dead-worker",))
    add(history, "late", Kind.DEADLINE, ttl_ms=500)
    add(history, "gone", Kind.CANCELLED, "cancelled", worker="", attempt=0)
    history.cancelled["gone"] = True
    add(history, "poison-0", Kind.POISON, "dead", worker="", attempt=3, before=("x1", "x2", "x3"))
    for worker in ("x1", "x2", "x3"):
        history.exits.append(Exit(worker, -9))
        history.marked[worker].add("poison")
    history.lost_with["poison-0"] = ["x1", "x2", "x3"]
    history.touched["dead-worker"].add("kill")
    history.exits.append(Exit("dead-worker", -9))
    history.touched["w"].add("term")
    history.exits.append(Exit("w", 0))
    history.left = {"lane:normal": 0, "tries": 0}
    return history


def add(
    history: History,
    name: str,
    kind: Kind,
    status: str = "succeeded",
    worker: str = "w",
    attempt: int = 1,
    before: tuple[str, ...] = (),
    ttl_ms: int | None = None,
) -> None:
    """A request with its result, its notification and its executions: those `before` came to nothing."""
    history.accepted[name] = Accepted(name, name, kind, "me", ttl_ms)
    history.nonces.add(name)
    signature = {
        "status": status,
        "worker": worker,
        "attempt": str(attempt),
        "finished_ms": str(BEGAN + 900),
        "http_status": "200",
    }
    history.results[name] = {**signature, "enqueued_ms": str(BEGAN), "entry": "normal:1-0", "meta": name}
    history.live.append(Notified("me", name, status, signature))
    history.replies.append(("me", name))
    history.counts[status] = history.counts.get(status, 0) + 1
    for number, lost in enumerate(before, 1):
        history.executions[name].append(Execution(name, lost, number, BEGAN + number))
    if worker:
        history.executions[name].append(Execution(name, worker, attempt, BEGAN + 100, BEGAN + 900))
    if status not in ("succeeded", "cancelled"):
        history.letters.append((name, status))


def test_a_good_history_passes() -> None:
    verdict = judge(good_history())
    assert verdict.violations == []
    assert verdict.figures == {
        "accepted": 5,
        "terminal": 5,
        "undone": 0,
        "lost": 0,
        "duplicate_results": 0,
        "wasted_executions": 4,
        "innocent_dead": 0,
        "orphans": 0,
        "violations": 0,
    }


def lose(history: History) -> None:
    del history.results["a"]
    history.counts["succeeded"] -= 1


def fail(history: History) -> None:
    change(history, "a", status="failed")


def change(history: History, name: str, **fields: Any) -> None:
    history.results[name].update({key: str(value) for key, value in fields.items()})


def invent(history: History) -> None:
    history.results["nobody's"] = {"status": "succeeded", "meta": "?"}
    history.counts["succeeded"] += 1


def miscount(history: History) -> None:
    history.counts["succeeded"] += 1


def overwrite(history: History) -> None:
    change(history, "a", worker="zombie", attempt=2)


def publish_as_a_zombie(history: History) -> None:
    history.touched["slow"].add("stop")
    history.executions["a"].append(Execution("a", "slow", 2, BEGAN + 500))


def send_again_for_the_client(history: History) -> None:
    history.counts["duplicate"] = 1


def tell_client_otherwise(history: History) -> None:
    history.got.append(("a", "succeeded", "zombie", 1))


def tell_twice(history: History) -> None:
    history.replies.append(("me", "a"))


def tell_nobody(history: History) -> None:
    history.replies.remove(("me", "a"))


def tell_strangers(history: History) -> None:
    history.replies.append(("me", "stranger"))


def drop_letter(history: History) -> None:
    history.letters.clear()


def write_letter_twice(history: History) -> None:
    history.letters *= 2


def write_letter_for_success(history: History) -> None:
    history.letters.append(("a", "failed"))


def ignore_cancel(history: History) -> None:
    history.cancelled["a"] = True
    history.accepted["a"] = Accepted("a", "a", Kind.CANCELLED, "me")


def try_too_often(history: History) -> None:
    history.executions["b"].insert(0, Execution("b", "dead-worker", 4, BEGAN))


def count_no_attempt(history: History) -> None:
    history.executions["b"].insert(0, Execution("b", "dead-worker", 1, BEGAN))


def give_up_early(history: History) -> None:
    change(history, "poison-0", attempt=2)
    history.live.pop()


def start_late(history: History) -> None:
    history.touched["slow"].add("kill")
    history.executions["a"].append(Execution("a", "slow", 2, BEGAN + 5_000))


def start_after_the_deadline(history: History) -> None:
    history.executions["late"] = [Execution("late", "w", 1, BEGAN + 1_600)]


def lose_for_nothing(history: History) -> None:
    history.touched["dead-worker"] = {"leave"}
    history.exits.remove(Exit("dead-worker", -9))


def end_unasked(history: History) -> None:
    history.exits.append(Exit("w9", 0))


def break_a_loop(history: History) -> None:
    history.touched["w9"] |= {"kill", "stop", "term", "engine_death"}
    history.exits.append(Exit("w9", 4))


def leave_an_entry(history: History) -> None:
    history.left["tries"] = 1


def complain(history: History) -> None:
    history.problems.append("accepted 5 is not ended 4 + outstanding 0")


def leave_a_process(history: History) -> None:
    history.orphans.append("123 python")


def name_no_workers(history: History) -> None:
    history.lost_with["poison-0"].remove("x2")


def get_stuck(history: History) -> None:
    history.stuck.append("w1")


def change_passwords_unmet(history: History) -> None:
    history.refusals = [0, 0]


def end_refused(history: History) -> None:
    """It was let in before the password changed."""
    history.started["w9"], history.outages = BEGAN, [(BEGAN, BEGAN + 5_000)]
    history.ready.add("w9")
    history.exits.append(Exit("w9", 2))


PLANTED: list[tuple[Callable[[History], None], str]] = [
    (lose, "lost"),
    (fail, "status"),
    (invent, "stray"),
    (miscount, "counts"),
    (overwrite, "overwritten"),
    (tell_client_otherwise, "overwritten"),
    (publish_as_a_zombie, "zombie"),
    (send_again_for_the_client, "counts"),
    (tell_twice, "duplicate"),
    (tell_nobody, "untold"),
    (tell_strangers, "stray"),
    (drop_letter, "letters"),
    (write_letter_twice, "letters"),
    (write_letter_for_success, "letters"),
    (ignore_cancel, "status"),
    (try_too_often, "attempts"),
    (count_no_attempt, "uncounted"),
    (give_up_early, "attempts"),
    (start_late, "started_late"),
    (start_after_the_deadline, "expired_late"),
    (lose_for_nothing, "unexplained"),
    (end_unasked, "exit"),
    (break_a_loop, "exit"),
    (leave_an_entry, "left"),
    (complain, "audit"),
    (leave_a_process, "orphan"),
    (get_stuck, "stuck"),
    (change_passwords_unmet, "password"),
    (end_refused, "exit"),
    (name_no_workers, "unnamed"),
]


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_what_is_planted_is_noticed(plant: Callable[[History], None], kind: str) -> None:
    history = good_history()
    plant(history)
    assert kind in {violation.kind for violation in judge(history).violations}


def test_a_lost_request_is_counted_as_lost() -> None:
    history = good_history()
    lose(history)
    figures = judge(history).figures
    assert (figures["accepted"], figures["terminal"], figures["lost"]) == (5, 4, 1)


def test_a_zombie_may_run_for_nothing() -> None:
    history = good_history()
    start_late(history)
    history.touched["slow"].add("stop")
    assert judge(history).violations == []


def test_a_healthy_request_may_die_only_of_faults() -> None:
    history = good_history()
    add(history, "c", Kind.GOOD, "dead", worker="", attempt=3, before=("y1", "y2", "y3"))
    assert {violation.kind for violation in judge(history).violations} == {"status", "unexplained"}
    for worker in ("y1", "y2", "y3"):
        history.touched[worker].add("cut")
    assert judge(history).violations == []
    assert innocent_dead(history) == ["c"]


def test_attempts_that_never_came_to_an_engine_count_as_well() -> None:
    history = good_history()
    add(history, "c", Kind.GOOD, "dead", worker="", attempt=3, before=("y1",))
    for worker in ("y1", "y2", "y3"):
        history.touched[worker].add("kill")
    assert {violation.kind for violation in judge(history).violations} == {"status"}
    history.lost_with["c"] = ["y1", "y2", "y3"]
    assert judge(history).violations == []


def test_many_innocent_dead_are_a_violation_though_each_was_struck_every_time() -> None:
    history = good_history()
    for name in ("c", "d", "e", "f"):
        workers = tuple(f"{name}{number}" for number in range(3))
        add(history, name, Kind.GOOD, "dead", worker="", attempt=3, before=workers)
        for worker in workers:
            history.touched[worker].add("cut")
    assert [violation.kind for violation in judge(history).violations] == ["innocent"]


def test_the_same_id_twice_may_run_twice_at_once() -> None:
    history = good_history()
    add(history, "t", Kind.TWICE)
    history.executions["t"].append(Execution("t", "other", 1, BEGAN + 110, BEGAN + 800))
    assert judge(history).violations == []


def test_what_was_sent_again_in_doubt_may_run_twice_at_once() -> None:
    history = good_history()
    history.executions["b"].append(Execution("b", "other", 1, BEGAN + 110, BEGAN + 800))
    assert {violation.kind for violation in judge(history).violations} == {"uncounted", "unexplained"}
    history.doubted.add("b")
    assert judge(history).violations == []


@pytest.mark.parametrize(("said", "doubted"), [((), set()), (("unknown",), {"p-1"}), (("unknown", "unknown"), {"p-1"})])
def test_what_was_sent_again_in_doubt_is_read_from_its_journal(
    tmp_path: Path, said: tuple[str, ...], doubted: set[str]
) -> None:
    intent = {"e": "intent", "nonce": "n-1", "id": "p-1", "kind": Kind.GOOD, "reply": "me", "ttl": None}
    accepted = {"e": "accepted", "nonce": "n-1", "id": "p-1"}
    lines: list[dict[str, Any]] = [intent, *({"e": each, "nonce": "n-1"} for each in said), accepted]
    texts = [json.dumps({"at": 1, **line}) for line in lines]
    (tmp_path / "producer-0.journal").write_text("".join(text + "\n" for text in texts))
    history = History()
    read_logs(tmp_path, history)
    assert (history.doubted, history.doubles) == (doubted, len(said))


def test_attempts_of_another_entry_of_the_same_id_make_no_zombie() -> None:
    history = good_history()
    add(history, "t", Kind.TWICE)
    history.executions["t"].append(Execution("t", "other", 2, BEGAN + 110, BEGAN + 800, "high:2-0"))
    assert judge(history).violations == []
    history.results["t"]["entry"] = "high:2-0"
    assert {violation.kind for violation in judge(history).violations} == {"zombie"}


def test_a_request_whose_acceptance_nobody_heard_of_may_have_a_result() -> None:
    history = good_history()
    history.nonces.add("unheard")
    history.results["high:1-1"] = {"status": "succeeded", "meta": "unheard"}
    history.counts["succeeded"] += 1
    history.replies.append(("me", "high:1-1"))
    assert judge(history).violations == []


def test_an_attempt_handed_back_on_leaving_is_not_counted() -> None:
    history = good_history()
    count_no_attempt(history)
    history.touched["dead-worker"].add("term")
    assert judge(history).violations == []


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        ({"engine_death"}, 3),
        ({"engine_hang"}, 3),
        ({"point_stall"}, 70),
        ({"point_kill"}, -9),
        ({"term_early"}, -15),
        ({"leave"}, 0),
        ({"term", "engine_hang"}, -15),
    ],
)
def test_planned_ends_are_no_violation(faults: set[str], code: int) -> None:
    history = good_history()
    history.touched["w9"] |= faults
    history.exits.append(Exit("w9", code))
    assert judge(history).violations == []
    history.touched["w9"].clear()
    assert [violation.kind for violation in judge(history).violations] == ["exit"]


@pytest.mark.parametrize("while_", ["outages", "rewinds"])
def test_a_worker_that_starts_with_a_password_of_before_may_be_refused(while_: str) -> None:
    history = good_history()
    history.refusals = [0, 3]
    setattr(history, while_, [(BEGAN, BEGAN + 5_000)])
    history.started["w9"] = BEGAN + 1_000
    history.exits.append(Exit("w9", 2))
    assert judge(history).violations == []
    history.started["w9"] = BEGAN + 9_000
    assert [violation.kind for violation in judge(history).violations] == ["exit"]


def test_a_worker_that_has_not_got_in_as_redis_ends_may_be_refused_as_it_comes_back() -> None:
    history = good_history()
    history.outages = [(BEGAN + 3_000, BEGAN + 5_000)]
    history.started["w9"] = BEGAN
    history.exits.append(Exit("w9", 2, BEGAN + 1_000))
    assert [violation.kind for violation in judge(history).violations] == ["exit"]
    history.exits[-1] = Exit("w9", 2, BEGAN + 4_900)
    assert judge(history).violations == []


def test_a_time_of_redis_is_looked_for_in_every_stretch_of_its_clock() -> None:
    history = History()
    assert history.moments(BEGAN) == [BEGAN]
    history.redis_clock = [(BEGAN, 60_000), (BEGAN + 5_000, 0)]
    assert history.moments(BEGAN + 62_000) == [BEGAN + 2_000, BEGAN + 62_000]
    assert history.moments(BEGAN + 500_000) == [BEGAN + 500_000]
    history.redis_clock = [(BEGAN, -60_000), (BEGAN + 90_000, 0)]
    assert history.moments(BEGAN - 58_000) == [BEGAN - 58_000, BEGAN + 2_000]


def test_what_starts_too_late_is_found_though_the_clock_of_redis_stepped() -> None:
    history = good_history()
    history.redis_clock = [(BEGAN - 100, 3_600_000)]
    finished = int(history.results["a"]["finished_ms"])
    history.results["a"]["finished_ms"] = str(finished + 3_600_000)
    assert "started_late" not in {violation.kind for violation in judge(history).violations}
    history.executions["a"].append(Execution("a", "w2", 1, finished + 3_600_000))
    assert "started_late" in {violation.kind for violation in judge(history).violations}


def test_what_ends_while_redis_is_away_is_written_when_it_is_back() -> None:
    history = good_history()
    start_late(history)
    (first, _) = history.executions["a"]
    assert first.end_ms is not None
    history.outages = [(first.end_ms - 10, BEGAN + 4_900)]
    assert "started_late" not in {violation.kind for violation in judge(history).violations}
    history.outages = [(first.end_ms - 10, BEGAN + 3_900)]
    assert "started_late" in {violation.kind for violation in judge(history).violations}


def test_what_ends_behind_a_cut_connection_is_written_when_it_is_told() -> None:
    history = good_history()
    start_late(history)
    result = history.results["a"]
    history.touched[result["worker"]].add("black_hole")
    result["finished_ms"] = str(BEGAN + 4_900)
    assert "started_late" not in {violation.kind for violation in judge(history).violations}
    result["finished_ms"] = str(BEGAN + 3_900)
    assert "started_late" in {violation.kind for violation in judge(history).violations}


def test_an_outage_lasts_until_redis_is_back_whatever_begins_meanwhile(tmp_path: Path) -> None:
    lines = [
        ("outage", "redis_kill"),
        ("outage", "maxmemory"),
        ("outage", "password"),
        ("outage_over", "maxmemory"),
        ("outage_over", "redis_kill"),
        ("outage_over", "password"),
    ]
    events = [json.dumps({"e": kind, "at": BEGAN + at, "what": what}) for at, (kind, what) in enumerate(lines)]
    (tmp_path / "events.jsonl").write_text("".join(f"{event}\n" for event in events))
    history = History()
    read_logs(tmp_path, history)
    assert history.outages == [(BEGAN, BEGAN + 4), (BEGAN + 2, BEGAN + 5)]


def test_a_late_request_may_succeed_where_the_clock_of_redis_was_set_back_before_its_deadline() -> None:
    history = good_history()
    add(history, "c", Kind.LATE, ttl_ms=1)
    assert "status" in {violation.kind for violation in judge(history).violations}
    history.results["c"]["finished_ms"] = str(BEGAN - 60_000)
    assert "status" in {violation.kind for violation in judge(history).violations}
    history.redis_clock = [(BEGAN + 1, -3_600_000)]
    assert "status" not in {violation.kind for violation in judge(history).violations}


def test_a_run_that_gave_way_is_no_loss_and_its_end_is_not_that_of_the_request() -> None:
    history = good_history()
    (last,) = history.executions["a"]
    late = last.start_ms - 10 * history.lease_ms
    gave_way = [Execution("a", last.worker, 1, late, late + 10), Execution("a", "w2", 1, late + 20, late + 30)]
    history.executions["a"] = [*gave_way, last]
    assert {violation.kind for violation in judge(history).violations} >= {"started_late", "unexplained"}
    history.gave_way.update((each.id, each.worker, each.attempt) for each in gave_way)
    assert judge(history).violations == []


def rewind(history: History, at_ms: int) -> None:
    """A snapshot was restored: what happened until 500 ms before is undone, and "a" was accepted at a time."""
    history.rewinds.append((BEGAN + 500, BEGAN + 1_000))
    history.accepted["a"] = replace(history.accepted["a"], at_ms=at_ms)
    history.rewound = {"a"}


def test_what_was_accepted_after_a_restored_snapshot_may_be_lost_and_told_again() -> None:
    history = good_history()
    rewind(history, BEGAN + 600)
    overwrite(history)
    assert judge(history).violations == []
    lose(history)
    verdict = judge(history)
    assert verdict.violations == []
    assert (verdict.figures["undone"], verdict.figures["lost"]) == (1, 0)


def test_what_was_accepted_before_a_restored_snapshot_has_a_result() -> None:
    history = good_history()
    rewind(history, BEGAN)
    lose(history)
    assert [violation.kind for violation in judge(history).violations] == ["lost"]


def test_a_caller_is_told_that_its_request_is_lost_only_if_a_snapshot_lacked_it() -> None:
    history = good_history()
    history.told_lost.add("b")
    assert [(violation.kind, violation.id) for violation in judge(history).violations] == [("lost", "b")]


@pytest.mark.parametrize(("code", "right"), [("vanished", True), ("max_deliveries", False)])
def test_what_is_dead_because_its_entry_is_gone_counts_as_vanished(code: str, right: bool) -> None:
    history = good_history()
    change(history, "a", status="dead", error=json.dumps({"error": {"code": code}}))
    history.counts["succeeded"] -= 1
    assert ("counts" not in {violation.kind for violation in judge(history).violations}) is right


def test_only_what_a_restored_snapshot_lost_may_be_cancelled_and_not_counted() -> None:
    history = good_history()
    rewind(history, BEGAN + 600)
    change(history, "a", status="cancelled")
    history.counts["succeeded"] -= 1
    assert judge(history).violations == []
    rewind(history, BEGAN)
    assert "counts" in {violation.kind for violation in judge(history).violations}


def test_what_a_log_tells_of_the_time_of_a_restore_is_not_judged(tmp_path: Path) -> None:
    lines: dict[str, list[tuple[str, int, dict[str, Any]]]] = {
        "events.jsonl": [
            ("outage", 1_000, {"what": "restore"}),
            ("fault", 2_500, {"kind": "stop", "worker": "stood"}),
            ("fault", 2_500, {"kind": "point_stop", "worker": "stopped"}),
            ("fault", 2_500, {"kind": "point_stall", "worker": "stalled", "seconds": 2.0}),
            ("outage_over", 3_000, {"what": "restore"}),
            ("fault", 5_000, {"kind": "cont", "worker": "stood"}),
            ("fault", 5_000, {"kind": "cont", "worker": "stopped"}),
        ],
        "w.witness": [("start", 2_000, {"id": "a", "attempt": 1, "entry": "", "n": 1})],
        "stopped.witness": [("start", 5_100, {"id": "f", "attempt": 1, "entry": "", "n": 1})],
        "stalled.witness": [("start", 4_600, {"id": "g", "attempt": 1, "entry": "", "n": 1})],
        "stood.witness": [
            ("start", 5_100, {"id": "d", "attempt": 1, "entry": "", "n": 1}),
            ("start", 7_000, {"id": "e", "attempt": 1, "entry": "", "n": 2}),
        ],
        "p.journal": [("cancel", 5_000, {"id": "b", "said": True}), ("told_lost", 6_000, {"id": "c"})],
    }
    for name, events in lines.items():
        texts = [json.dumps({"e": event, "at": at, **more}) for event, at, more in events]
        (tmp_path / name).write_text("".join(text + "\n" for text in texts))
    history = History()
    read_logs(tmp_path, history)
    assert (history.rewinds, history.rewound, history.told_lost) == ([(1_000, 3_000)], {"a", "d", "f", "g"}, {"c"})
    assert history.lasting().executions.keys() == {"e"}
