"""Reasons for which a lane is late: each, from a snapshot alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamfleet.common.protocol import LANES, Lane
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.lateness import Cause, Lateness, lateness
from streamfleet.operator.snapshot import LaneView, Snapshot

EMPTY = {lane: LaneView(lane, 0, 0, 0, 0, None, None) for lane in LANES}
SHARES = (0, 0, 100, 50)


def lane(name: Lane, ready: int, nearest_s: float | None, **more: Any) -> LaneView:
    return LaneView(name, ready, ready, more.pop("running", 0), more.pop("delayed", 0), 9.0, nearest_s, **more)


def worker(running: int = 0, slots: int = 8, silent_s: float = 1.0, **more: Any) -> WorkerView:
    return WorkerView("w", running, more.pop("state", "ready"), "simulated", ["m"], slots, silent_s, **more)


def why(lanes: list[LaneView], workers: list[WorkerView], rate: float | None = None) -> dict[Lane, Lateness]:
    views = list({**EMPTY, **{view.lane: view for view in lanes}}.values())
    view = Snapshot("q", 0, views, workers, 0, 0, 0, {}, SHARES, rate)
    return {found.lane: found for found in lateness(view)}


def test_an_empty_lane_is_not_late_whoever_is_alive() -> None:
    assert {found.cause for found in why([], []).values()} == {Cause.EMPTY}
    assert why([replace(lane(Lane.HIGH, 0, None), running=3, outstanding=3)], [])[Lane.HIGH].cause is Cause.EMPTY


def test_no_worker_alive() -> None:
    found = why([lane(Lane.LOW, 3, 500.0)], [worker(silent_s=60.0)])[Lane.LOW]
    assert (found.cause, found.late, found.will_be) == (Cause.NO_WORKER, False, True)
    assert found.line().startswith("will be late: no worker is alive (1 silent)")
    assert why([lane(Lane.LOW, 3, -1.0)], [])[Lane.LOW].line().startswith("late: no worker is alive: start one")


def test_workers_alive_but_none_ready_with_their_reasons() -> None:
    unfit = worker(state="unfit", unready="every request fails: the engine answered 500")
    found = why([lane(Lane.HIGH, 1, 5.0)], [unfit, unfit, worker(state="draining")])[Lane.HIGH]
    assert found.cause is Cause.NONE_READY
    assert found.text == ("3 workers alive, none ready: 2 x every request fails: the engine answered 500; draining")


def test_all_slots_busy_with_the_work_ahead() -> None:
    found = why([lane(Lane.HIGH, 40, -1.0)], [worker(8), worker(9)], rate=4.0)[Lane.HIGH]
    assert (found.cause, found.late) == (Cause.SLOTS_BUSY, True)
    assert "running 17 of 16, 4.0 requests/s, so 10 s of work ahead" in found.text
    assert "requests/s" not in why([lane(Lane.HIGH, 40, -1.0)], [worker(8)])[Lane.HIGH].text


def test_higher_lanes_take_the_turns() -> None:
    lanes = [lane(Lane.CRITICAL, 7, 60.0), lane(Lane.NORMAL, 2, -1.0), lane(Lane.HIGH, 1, -1.0)]
    found = why(lanes, [worker(8)], rate=2.0)
    assert found[Lane.NORMAL].cause is Cause.HIGHER_LANES
    assert "critical 7, high 1 ready there; 10 % of the turns are its own" in found[Lane.NORMAL].text
    assert "it gets a turn when they are empty" in found[Lane.HIGH].text


def test_only_delayed_ones() -> None:
    found = why([replace(lane(Lane.LOW, 0, None), delayed=4, outstanding=4)], [worker()])[Lane.LOW]
    assert (found.cause, found.late, found.will_be) == (Cause.ONLY_DELAYED, False, False)
    assert found.line() == "only delayed ones wait here: 4 until their next try is due"


def test_nothing_wrong() -> None:
    found = why([lane(Lane.HIGH, 1, -0.1)], [worker(3)])[Lane.HIGH]
    assert (found.cause, found.late) == (Cause.NOTHING_WRONG, True)
    assert "running 3 of 8 slots" in found.text


def test_paused_lanes_say_so_and_take_no_turns() -> None:
    lanes = [lane(Lane.CRITICAL, 9, 60.0, paused_s=120.0), lane(Lane.LOW, 1, -1.0)]
    found = why(lanes, [worker(8)])
    assert found[Lane.CRITICAL].cause is Cause.PAUSED
    assert "paused for 2 min: `streamfleet resume critical`" in found[Lane.CRITICAL].text
    assert found[Lane.LOW].cause is Cause.SLOTS_BUSY


@pytest.mark.parametrize(
    ("due", "rate", "will_be"),
    [
        ([(0, 5.0), (99, 100.0)], 10.0, False),  # 100 take 10 s
        ([(0, 5.0), (99, 9.0)], 10.0, True),  # the last one's turn comes after its deadline
        ([(0, 0.05), (99, 100.0)], 10.0, True),  # the first one's, too
        ([(0, 5.0), (99, 9.0)], None, False),  # nobody knows how fast it goes
    ],
)
def test_a_lane_will_be_late_when_the_work_ahead_takes_longer_than_a_deadline_leaves(
    due: list[tuple[int, float]], rate: float | None, will_be: bool
) -> None:
    found = why([lane(Lane.HIGH, 100, 5.0, due=due)], [worker(8)], rate)[Lane.HIGH]
    assert (found.late, found.will_be) == (False, will_be)
    assert found.cause is (Cause.SLOTS_BUSY if will_be else Cause.ON_TIME)


def test_a_lane_waits_for_those_above_it_but_no_longer_than_its_share_says() -> None:
    above = lane(Lane.CRITICAL, 1_000, 900.0)
    starved = why([above, lane(Lane.HIGH, 1, 50.0)], [worker(8)], rate=10.0)[Lane.HIGH]
    assert starved.will_be, "1,000 others come first: 100 s"
    sure = why([above, lane(Lane.NORMAL, 1, 50.0)], [worker(8)], rate=10.0)[Lane.NORMAL]
    assert not sure.will_be, "each tenth turn is its own: 1 s"
