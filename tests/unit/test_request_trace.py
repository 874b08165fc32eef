"""Output of `streamfleet trace` about anything that it found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from streamfleet.common.keys import NOBODY
from streamfleet.common.protocol import Lane
from streamfleet.common.results import decode_result
from streamfleet.operator.broker.inspecting import EntryDetails, read_entry_name
from streamfleet.operator.commands.trace_view import page
from streamfleet.operator.dead_letters import read_letter
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.json_view import trace_object
from streamfleet.operator.request_location import Place, Search, Trace
from streamfleet.operator.request_trace import Attempts, deadline_ms, read_tries, summarize

CAME = 1_790_000_000_000
NOW = CAME + 40_000
LOOK = EntryDetails({b"body": b"{}", b"ttl": b"60000"}, True, None, 0, 0, None, None, None, "")


def traced(by: WorkerView | None = None, **look: Any) -> Trace:
    place = Place(Lane.HIGH, f"{CAME}-0", replace(LOOK, **look), by)
    return Trace("r-1", "r-1", NOW, recorded=True, reply="me", place=place)


def ended(**fields: str) -> Trace:
    values = {"status": "failed", "error": '{"error":{"message":"no","code":"bad","param":"body"}}', **fields}
    result = decode_result("r-1", {name.encode(): value.encode() for name, value in values.items()})
    return Trace("r-1", "r-1", NOW, result=result, result_ttl_ms=3_600_000)


@pytest.mark.parametrize(
    ("look", "state", "said"),
    [
        ({"delivered": False}, "undelivered", "no worker has pulled since it came"),
        ({"before": 1, "rank_ms": NOW}, "ready", "ready: 1 request before it in its lane"),
        ({"before": 12, "rank_ms": NOW}, "ready", "12 requests before it"),
        ({"due_ms": NOW + 3_000}, "delayed", "its next try is due in 3 s"),
        ({"worker": NOBODY, "attempt": 1}, "handed_out", "on its way to a worker"),
        (
            {"worker": "w1", "attempt": 2, "idle_ms": 900},
            "running",
            "w1, attempt 2, for at most 40 s, renewed 900 ms",
        ),
        ({}, "nowhere", "neither ready nor delayed nor running"),
    ],
)
def test_where_it_is(look: dict[str, Any], state: str, said: str) -> None:
    summary = summarize(traced(**look))
    assert summary.state == state
    assert said in summary.text


def test_a_request_waits_for_its_paused_lane_and_a_running_one_does_not() -> None:
    waits, runs = traced(before=0, rank_ms=NOW), traced(worker="w1", attempt=1)
    for trace, said in ((waits, True), (runs, False)):
        assert trace.place is not None
        paused = replace(trace, place=replace(trace.place, paused=True))
        assert ("its lane is paused: `streamfleet resume high`" in summarize(paused).text) is said


def test_how_long_a_worker_has_had_it_is_bounded_by_what_the_worker_says() -> None:
    worker = WorkerView("w1", 3, "ready", "vllm", ["m"], 8, 1.0, oldest_held_s=7.0)
    assert "for at most 7 s" in summarize(traced(worker, worker="w1", attempt=1)).text
    silent = replace(worker, silent_s=60.0)
    assert "that worker is silent: others take it over" in summarize(traced(silent, worker="w1", attempt=1)).text


def test_a_page_before_the_end() -> None:
    text = page(traced(before=3, rank_ms=CAME + 60_000, tries="2 w3 w4"))
    for line in (
        "request       r-1",
        "now           ready: 3 requests before it in its lane",
        f"entry         high:{CAME}-0",
        "enqueued      2026-09-21T14:13:20.000Z, 40 s ago, by a client",
        "deadline      2026-09-21T14:14:20.000Z, in 20 s",
        "body          2 bytes",
        "tries before  2; lost with w3, w4",
        "notified      me is told when it ends",
    ):
        assert line in text.splitlines()


def test_a_page_after_the_end() -> None:
    more = {"attempt": "3", "worker": "w2", "entry": f"high:{CAME}-0", "lane": "high", "enqueued_ms": str(CAME)}
    timings = {"queued_ms": "1500", "waited_ms": "20", "total_ms": "9000", "finished_ms": str(NOW - 5_000)}
    letter = read_letter(
        "5-0", {b"_id": b"r-1", b"_error": b"no", b"_workers": b"w7", b"deadline": b"%d" % (NOW - 1), b"body": b"{"}
    )
    trace = replace(ended(**more, **timings, **{"notified:me": "1", "tenant": "acme"}), letter=letter)
    text = page(trace)
    for line in (
        "now           ended: failed by w2, attempt 3",
        "ended         2026-09-21T14:13:55.000Z, 5 s ago",
        "written by    w2, attempt 3",
        "took          queued 2 s, waited for the engine 20 ms, total 9 s",
        "error         body: no (bad)",
        "kept for      another 1 h",
        "tries before  2; lost with w7",
        "dead letter   5-0: no",
        "notified      me",
        "tenant        acme",
    ):
        assert line in text.splitlines()
    value = trace_object(trace)
    assert (value["state"], value["left_ms"], value["dead_letter"], value["notified"]) == (
        "failed",
        -1,
        "5-0",
        {"me": True},
    )


def test_a_cancelled_one_may_stand_in_its_lane_for_a_while() -> None:
    cancelled = replace(traced(before=0), result=ended(status="cancelled").result)
    assert summarize(cancelled).text == "ended: cancelled; its entry stands in its lane until its turn comes"


def test_it_says_when_it_was_looked_for() -> None:
    assert "looking through 7 entries" in page(replace(traced(before=0), recorded=False, search=Search(7, 9)))


@pytest.mark.parametrize(
    ("fields", "deadline"),
    [
        ({b"deadline": b"5", b"ttl": b"7"}, 5),
        ({b"ttl": b"7"}, CAME + 7),
        ({b"deadline": b"", b"ttl": b"7"}, CAME + 7),
        ({b"deadline": b"nan"}, None),
        ({b"deadline": b"9" * 16}, 9 * 10**15),
        ({b"deadline": b"9" * 17}, None),
        ({}, None),
    ],
)
def test_deadlines_are_read_as_the_scripts_read_them(fields: dict[bytes, bytes], deadline: int | None) -> None:
    assert deadline_ms(fields, CAME) == deadline


def test_tries() -> None:
    assert read_tries("3 w1 w2") == Attempts(3, ("w1", "w2"))
    assert read_tries("1") == Attempts(1, ())
    assert read_tries("") == read_tries("x w1") == read_tries("1 \x1b[2J") == Attempts(0, ())


def test_nobody_breaks_out_of_a_page() -> None:
    evil = "\x1b[2J\x07\nnow           ended: succeeded"
    trace = replace(ended(worker=evil, meta=evil, entry=evil, finished_ms="9" * 16, **{f"notified:{evil}": "1"}))
    text = page(trace)
    assert not set(text) & {"\x1b", "\x07"}
    assert sum(line.startswith("now ") for line in text.splitlines()) == 1
    json.dumps(trace_object(trace), ensure_ascii=False, allow_nan=False).encode()


def test_entry_names() -> None:
    assert read_entry_name("high:5-0") == (Lane.HIGH, "5-0")
    assert read_entry_name(f"low:{2**64 - 1}-{2**64 - 1}") is not None
    for odd in ("high:5", "other:5-0", f"low:{2**64}-0", "high:5-0 ", "high:٥-0", "r-1"):
        assert read_entry_name(odd) is None


def test_interruptions_and_where_it_went_on() -> None:
    assert "gave way to urgent requests 2 times; 345 bytes of output are kept" in page(traced(interrupted="2 ab 345"))
    assert "2 times, last at w1; 345 bytes" in page(traced(interrupted="2 ab 345 1000 w1"))
    assert "1 times; nothing is kept of its output" in page(traced(interrupted="1"))
    assert "gave way" not in page(traced())
    assert "went on       behind token 214" in page(ended(resumed_tokens="214"))
