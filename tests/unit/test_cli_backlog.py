"""Output of `streamfleet backlog` from the counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from streamfleet.common.protocol import Lane
from streamfleet.common.records import LaneAudit
from streamfleet.operator.commands.backlog_view import render
from streamfleet.operator.fleet import worker_views
from streamfleet.operator.snapshot import Rates, Snapshot, lane_view, rates

NOW = 1_000_000


def snapshot(now_ms: int = NOW, accepted: int = 0, workers: Mapping[str, Mapping[str, Any]] | None = None) -> Snapshot:
    lanes = [lane_view(LaneAudit(lane, 0, 0, 0, 0, 0, 0), (None, None), now_ms) for lane in Lane]
    ended = {"succeeded": accepted // 2}
    return Snapshot("q", now_ms, lanes, worker_views(workers or {}, {}, now_ms), 0, 0, accepted, ended)


def shown(view: Snapshot, moving: Rates | None = None) -> str:
    written = StringIO()
    Console(file=written, width=140).print(render(view, moving))
    return written.getvalue()


def test_a_lane() -> None:
    view = lane_view(LaneAudit(Lane.HIGH, 20, 5, 8, 1, 4, 99), (NOW - 9_000, NOW + 2_500), NOW)
    assert (view.outstanding, view.ready, view.running, view.delayed) == (20, 10, 8, 2)
    assert (view.oldest_s, view.nearest_s) == (9.0, 2.5)


def test_a_lane_too_long_to_be_counted() -> None:
    view = lane_view(LaneAudit(Lane.LOW, 90_000, 5, 8, 0, None, None), (NOW, 9 * 10**15), NOW)
    assert (view.outstanding, view.ready, view.running, view.delayed) == (90_000, 89_992, 8, None)
    assert view.nearest_s is None


def test_the_mean_wait_is_of_what_was_looked_at_all_over_the_lane() -> None:
    waiting = [(0, (NOW - 1_000, NOW)), (5, (NOW - 4_000, 9 * 10**15)), (9, (NOW + 50, NOW + 60_000))]
    view = lane_view(LaneAudit(Lane.HIGH, 10, 10, 0, 0, 0, 10), (NOW - 9_000, NOW), NOW, waiting)
    assert view.mean_wait_s == pytest.approx(5.0 / 3)  # by a clock that was set back, nothing has waited
    assert [place for place, _ in view.due] == [0, 9]
    assert lane_view(LaneAudit(Lane.HIGH, 10, 10, 0, 0, 0, 10), (NOW, NOW), NOW).mean_wait_s is None
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


def test_rates() -> None:
    assert rates(snapshot(NOW, 100), snapshot(NOW + 2_000, 160)) == Rates(30.0, 15.0)
    assert rates(snapshot(NOW), snapshot(NOW)) is None


def test_a_picture() -> None:
    text = shown(snapshot(accepted=10, workers={"[w]": {"state": "ready", "seen_ms": NOW}}), Rates(1.5, 2.0))
    for part in ("critical", "[w]", "ready", "accepted 10", "5 succeeded", "1.5 enqueued/s, 2.0 finished/s"):
        assert part in text


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
