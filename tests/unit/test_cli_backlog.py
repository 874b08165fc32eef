"""Output of `streamfleet backlog` from the counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from streamfleet.common.protocol import Lane
from streamfleet.operator.broker.audit import Audit, LaneAudit, Ranked, Sample
from streamfleet.operator.commands.backlog_view import render
from streamfleet.operator.fleet import worker_views
from streamfleet.operator.rates import Rates
from streamfleet.operator.snapshot import DELAYED_AT_MOST, LaneView, Snapshot, lane_views

NOW = 1_000_000


def view(
    row: LaneAudit, *, now_ms: int = NOW, delayed: int = 0, sampled: Mapping[Lane, int] | None = None, **given: Any
) -> LaneView:
    sample = Sample(now_ms, {}, delayed=sampled or {}, **given)
    return lane_views(Audit({}, delayed, 0, 0, [row]), sample, 300_000)[0]


def snapshot(now_ms: int = NOW, accepted: int = 0, workers: Mapping[str, Mapping[str, Any]] | None = None) -> Snapshot:
    lanes = [view(LaneAudit(lane, 0, 0, 0, 0, 0, 0), now_ms=now_ms) for lane in Lane]
    ended = {"succeeded": accepted // 2}
    return Snapshot("q", now_ms, lanes, worker_views(workers or {}, {}, now_ms), 0, 0, accepted, ended)


def shown(taken: Snapshot, moving: Rates | None = None) -> str:
    written = StringIO()
    Console(file=written, width=140).print(render(taken, moving))
    return written.getvalue()


def test_a_lane() -> None:
    found = view(
        LaneAudit(Lane.HIGH, 20, 5, 8, 1, None, 99),
        delayed=3,
        sampled={Lane.HIGH: 2, Lane.LOW: 1},
        oldest_ms={Lane.HIGH: NOW - 9_000},
        first_ms={Lane.HIGH: NOW + 2_500},
    )
    assert (found.outstanding, found.ready, found.running, found.delayed) == (20, 10, 8, 2)
    assert found.staged == 5
    assert (found.oldest_s, found.nearest_s) == (9.0, 2.5)


def test_a_lane_where_too_many_are_delayed_to_be_counted() -> None:
    row, sampled = LaneAudit(Lane.LOW, 90_000, 5, 8, 0, None, None), {Lane.LOW: DELAYED_AT_MOST}
    found = view(row, delayed=DELAYED_AT_MOST + 1, sampled=sampled, first_ms={Lane.LOW: 9 * 10**15})
    assert (found.outstanding, found.ready, found.running, found.delayed) == (90_000, 89_992, 8, None)
    assert found.nearest_s is None
    assert view(row, delayed=DELAYED_AT_MOST, sampled=sampled).delayed == DELAYED_AT_MOST


def test_the_mean_wait_is_of_what_was_looked_at_all_over_the_lane() -> None:
    row = LaneAudit(Lane.HIGH, 10, 10, 0, 0, 0, 10)
    waiting = [(0, NOW - 1_000, NOW), (5, NOW - 4_000, 9 * 10**15), (9, NOW + 50, NOW + 60_000)]
    other = Ranked(Lane.LOW, 0, NOW - 90_000, NOW)
    found = view(row, ranked=[*(Ranked(Lane.HIGH, *each) for each in waiting), other])
    assert found.mean_wait_s == pytest.approx(5.0 / 3)  # by a clock that was set back, nothing has waited
    assert [place for place, _ in found.due] == [0, 9]
    assert view(row).mean_wait_s is None
    assert "mean wait" in shown(snapshot())


def test_workers_are_those_who_speak_and_those_who_hold_something() -> None:
    described = {
        "a": {"state": "ready", "engine": "vllm", "models": ["m"], "slots": 32, "seen_ms": NOW - 2_000},
        "x": {},
    }
    views = worker_views(described, {"b": {"high": 2, "low": 1}}, NOW)
    assert [(view.name, view.running, view.slots, view.silent_s) for view in views] == [
        ("a", 0, 32, 2.0),
        ("b", 3, None, None),
        ("x", 0, None, None),
    ]


def test_a_picture() -> None:
    text = shown(
        snapshot(accepted=10, workers={"[w]": {"state": "ready", "seen_ms": NOW}}), Rates(1, 1.5, 2.0, {}, 0, 0)
    )
    for part in ("critical", "[w]", "ready", "accepted 10", "5 succeeded", "1.5 enqueued/s, 2.0 finished/s"):
        assert part in text
    assert "while any wait, 4.5 taken/s" in shown(replace(snapshot(), pace_per_s=4.5))


def test_it_says_when_there_is_no_worker_or_a_silent_one() -> None:
    assert "no workers" in shown(snapshot())
    assert "silent" in shown(snapshot(workers={"w": {"state": "ready", "seen_ms": NOW - 60_000}}))


def test_it_says_why_a_lane_is_late() -> None:
    late = replace(snapshot().lanes[1], outstanding=3, ready=3, nearest_s=-2.0)
    text = shown(replace(snapshot(), lanes=[late]))
    assert "high: late: no worker is alive" in text
    assert "critical:" not in text


@pytest.mark.parametrize(
    "words", [{"models": 7}, {"models": {"a": 1}}, {"seen_ms": True}, {"seen_ms": 1e300}, {"seen_ms": float("nan")}]
)
def test_a_worker_that_describes_itself_oddly_is_shown_as_far_as_it_goes(words: dict[str, Any]) -> None:
    assert "w1" in shown(snapshot(workers={"w1": words}))


def test_a_terminal_is_not_told_what_to_do() -> None:
    words = {"state": "\x1b]0;owned\x07", "models": ["\x1b[2J"], "seen_ms": NOW}
    text = shown(snapshot(workers={"\x1b[31m": words}))
    assert "\x1b" not in text
    assert "\x07" not in text
