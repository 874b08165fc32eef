"""Lateness of requests: pure arithmetic, held against values that can be worked out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.protocol import LANES, Lane
from streamfleet.operator.broker.audit import PLACES, Audit, LaneAudit, Ranked, Sample, places
from streamfleet.operator.exporter.view import pressure_s
from streamfleet.operator.snapshot import LaneView, lane_views

NOW = 1_790_000_000_000
PATIENCE_MS = 300_000
NO_RANK_MS = 9 * 10**15


def ranked(place: int, due_in_s: float, lane: Lane = Lane.NORMAL, *, enqueued_ms: int = NOW - 1_000) -> Ranked:
    return Ranked(lane, place, enqueued_ms, NOW + round(due_in_s * 1000))


def lanes(places_read: Sequence[Ranked], **ready: int) -> list[LaneView]:
    """Views of all lanes with so many staged requests, of which some places were read."""
    rows = [LaneAudit(lane, ready.get(lane, 0), ready.get(lane, 0), 0, 0, None, None) for lane in LANES]
    return lane_views(Audit({}, 0, 0, 0, rows), Sample(NOW, {}, ranked=places_read), PATIENCE_MS)


def slacks(found: Sequence[LaneView]) -> dict[Lane, float]:
    """Seconds until the nearest deadline of each lane that has one."""
    return {lane.lane: min(left_s for _, left_s in lane.deadlines) for lane in found if lane.deadlines}


@given(st.integers(0, 10**7))
def test_as_many_places_of_a_long_lane_as_of_a_short_one(length: int) -> None:
    chosen = places(length)
    assert len(chosen) == max(1, min(length, PLACES))
    assert chosen == sorted(set(chosen))
    assert chosen[0] == 0
    assert chosen[-1] == max(0, length - 1)
    gaps = [after - before for before, after in itertools.pairwise(chosen)]
    assert max(gaps, default=0) <= length // (PLACES - 1) + 1


def test_slack_is_that_of_the_nearest_deadline() -> None:
    found = lanes([ranked(0, -2), ranked(1, 5), ranked(0, 7, Lane.HIGH)], normal=2, high=1)
    assert slacks(found) == {Lane.NORMAL: -2, Lane.HIGH: 7}


def test_a_rank_that_is_no_deadline_has_no_slack_and_no_lateness() -> None:
    patient = ranked(0, -60, enqueued_ms=NOW - PATIENCE_MS - 60_000)
    none = Ranked(Lane.LOW, 0, NOW, NO_RANK_MS)
    found = lanes([patient, none], normal=1, low=1)
    assert slacks(found) == {}
    assert pressure_s(found, 1.0) == {}


def test_pressure_is_how_late_the_last_will_be() -> None:
    # 100 requests due in 30 s, 2 a second: the last one is done after 50 s.
    row = [ranked(place, 30) for place in places(100)]
    assert pressure_s(lanes(row, normal=100), 2.0) == {Lane.NORMAL: 20}


def test_pressure_is_found_where_the_lane_is_tightest() -> None:
    # Two due in 1 s at 1 a second, the others have all the time in the world.
    row = [ranked(0, 1), ranked(1, 1), ranked(16, 3_600)]
    assert pressure_s(lanes(row, normal=17), 1.0) == {Lane.NORMAL: 1}


def test_more_urgent_lanes_go_first_and_less_urgent_ones_do_not_matter() -> None:
    row = [ranked(0, 10, Lane.HIGH), ranked(0, 10, Lane.LOW)]
    found = pressure_s(lanes(row, critical=20, high=1, normal=30, low=1), 1.0)
    assert found == {Lane.HIGH: 20 + 1 - 10, Lane.LOW: 20 + 1 + 30 + 1 - 10}


def test_time_to_spare_is_negative() -> None:
    assert pressure_s(lanes([ranked(0, 60)], normal=1), 1.0) == {Lane.NORMAL: -59}


@given(st.lists(st.floats(-100, 1_000), min_size=1, max_size=200), st.floats(0.1, 100))
def test_the_places_understate_the_worst_by_a_sixteenth_of_the_lane_at_most(due: list[float], speed: float) -> None:
    row = [ranked(place, due_in_s) for place, due_in_s in enumerate(sorted(due))]
    all_of_it = pressure_s(lanes(row, normal=len(row)), speed)[Lane.NORMAL]
    some = [row[place] for place in places(len(row))]
    found = pressure_s(lanes(some, normal=len(row)), speed)[Lane.NORMAL]
    assert all_of_it - (len(row) / (PLACES - 1) + 1) / speed - 0.01 <= found <= all_of_it
