"""The pure parts of bench/scheduling: traces, what outcomes mean, and the figures that are made of them."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from bench.core.series import thinned
from bench.scheduling import day, deadlines, inversion, memory, pickup, pull_cost, starvation, traces
from bench.scheduling.__main__ import arguments
from bench.scheduling.feeding import padded_body
from bench.scheduling.outcomes import (
    Outcome,
    cdf,
    gaps,
    picks_in_order,
    shares,
    windowed_shares,
)
from bench.scheduling.traces import Arrival, Kind
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST


def outcome(
    lane: str = "low", claimed_ms: float | None = 10.0, *, status: str = "succeeded", finished_ms: float = 20.0
) -> Outcome:
    return Outcome(status, lane, 0.0, claimed_ms, claimed_ms, finished_ms, None)


# -- traces ------------------------------------------------------------------------------------------------


def test_a_trace_is_the_same_for_the_same_seed() -> None:
    assert traces.bursty(1, 20, 50) == traces.bursty(1, 20, 50) != traces.bursty(2, 20, 50)
    assert traces.day_bursts(1) == traces.day_bursts(1) != traces.day_bursts(2)


def test_bursts_are_beyond_the_capacity_and_their_mean_is_below_it() -> None:
    trace = traces.bursty(3, 200, 100)
    busiest = max(deadlines.per_second([arrival.at_s for arrival in trace]))
    assert 150 < busiest < 270
    assert 60 < len(trace) / 200 < 100
    assert all(before.at_s <= after.at_s for before, after in pairwise(trace))
    assert trace[0].at_s >= 0
    assert trace[-1].at_s < 200


def test_kinds_come_as_often_as_they_weigh() -> None:
    kinds = [Kind(3, "high", (1.0, 2.0), (5, 5)), Kind(1, "low", None, (7, 9))]
    trace = traces.steady(1, 100, 100, kinds)
    lanes = traces.by_lane(trace)
    assert lanes["high"] / lanes["low"] == pytest.approx(3, rel=0.1)
    assert {arrival.ttl_ms for arrival in trace if arrival.lane == "low"} == {None}
    assert all(1_000 <= (arrival.ttl_ms or 0) <= 2_000 for arrival in trace if arrival.lane == "high")
    assert {arrival.tokens for arrival in trace if arrival.lane == "low"} == {7, 8, 9}


def test_a_day_is_quiet_at_four_and_busy_at_sixteen() -> None:
    kinds = [Kind(1, "normal", None, (1, 1))]
    night = traces.diurnal(1, (3.5, 4.5), kinds, 1.0, [])
    afternoon = traces.diurnal(1, (15.5, 16.5), kinds, 1.0, [])
    assert len(night) / 3600 == pytest.approx(0.3, abs=0.05)
    assert len(afternoon) / 3600 == pytest.approx(1.7, abs=0.1)
    assert sum(traces.day_wave(hour) for hour in range(24)) / 24 == pytest.approx(1)


def test_a_burst_multiplies_the_rate_while_it_lasts() -> None:
    kinds = [Kind(1, "normal", None, (1, 1))]
    burst = traces.Burst(16 * 3600, 16 * 3600 + 600, 3.0)
    trace = traces.diurnal(1, (15.0, 17.0), kinds, 1.0, [burst])
    inside = sum(3600 <= arrival.at_s < 4200 for arrival in trace)
    before = sum(3000 <= arrival.at_s < 3600 for arrival in trace)
    assert inside / before == pytest.approx(3, rel=0.15)


def test_capacity_is_that_of_full_slots() -> None:
    alone = traces.capacity_per_s(GENERIC_FAST, 256, 40, 0)
    assert alone == pytest.approx(10_000 / 40)
    assert traces.capacity_per_s(GENERIC_FAST, 256, 40, 100) < alone


# -- outcomes ----------------------------------------------------------------------------------------------


def test_an_outcome_reads_what_a_result_hash_says() -> None:
    found = Outcome.read([b"succeeded", b"high", b"1000", b"5", b"0.5", b"1030", b"12.5"])
    assert found == Outcome("succeeded", "high", 1000.0, 1005.0, 1005.5, 1030.0, 1018.0)
    never_ran = Outcome.read([b"expired", b"high", b"1000", None, None, b"2000", None])
    assert (never_ran.claimed_ms, never_ran.started_ms, never_ran.finished_ms) == (None, None, 2000.0)
    assert Outcome.read([None] * 7).status == ""


@pytest.mark.parametrize(
    ("status", "ttl_ms", "missed"),
    [
        ("succeeded", 20, False),
        ("succeeded", 19, True),
        ("succeeded", None, False),
        ("expired", None, True),
        ("cancelled", 1_000, True),
        ("", None, True),
    ],
)
def test_missed_is_what_came_late_or_not_at_all(status: str, ttl_ms: int | None, missed: bool) -> None:
    assert outcome(status=status).missed(ttl_ms) is missed


def test_thinning_keeps_both_ends() -> None:
    values = [float(number) for number in range(10_001)]
    few = thinned(values)
    assert (len(few), few[0], few[-1]) == (500, 0.0, 10_000.0)
    assert thinned([1.0, 2.0]) == [1.0, 2.0]
    assert cdf([3.0, 1.0, 2.0]) == [1.0, 2.0, 3.0]


def test_gaps_are_from_bunch_to_bunch() -> None:
    assert gaps([30.0, 0.0, 2.0, 31.0, 33.0, 60.0], together_ms=5) == [30.0, 30.0]
    assert gaps([], together_ms=5) == []


def test_picks_count_while_every_lane_has_some_left() -> None:
    took = [("high", 1.0), ("low", 2.0), ("high", 3.0), ("high", 4.0), ("low", 5.0)]
    found = [outcome(lane, claimed_ms) for lane, claimed_ms in took]
    assert picks_in_order([*found, outcome("low", None)]) == ["high", "low", "high"]
    assert picks_in_order([]) == []


def test_shares_are_per_cent() -> None:
    picks = ["high"] * 19 + ["low"]
    assert shares(picks) == {"high": 95.0, "low": 5.0}
    assert windowed_shares(picks * 2 + ["low"], "low", 20) == [5.0, 5.0]


# -- figures -----------------------------------------------------------------------------------------------


def test_inversion_takes_one_step_of_the_full_engine_off() -> None:
    critical = [Outcome("succeeded", "critical", 0.0, 30.0, 30.0 + number, 50.0, 40.0) for number in range(4)]
    part = inversion.report(inversion.QUICK, inversion.Seen(critical, [0.0, 28.0, 56.0], 12_000))
    (target,) = part.targets
    assert target.value == pytest.approx(33.0 - 25.6)
    assert part.data["cdf_ms"]["step"] == [28.0, 28.0]


def test_deadlines_are_judged_by_the_trace() -> None:
    trace = [Arrival(0.0, "normal", 1, 1_000), Arrival(0.5, "normal", 1, 15_000), Arrival(1.5, "normal", 1, 60_000)]
    in_time = [outcome(finished_ms=900), outcome(finished_ms=900), outcome(finished_ms=900)]
    late = [outcome(finished_ms=1_100), outcome(status="expired"), outcome(finished_ms=1_100)]
    assert deadlines.missed_percent(trace, in_time) == 0
    assert deadlines.missed_percent(trace, late) == pytest.approx(200 / 3)
    assert deadlines.missed_percent(*deadlines.of_class(trace, late, "life below 5 s")) == 100
    assert deadlines.missed_times(trace, late) == [0.0, 0.5]
    assert deadlines.spare_ms(trace, late)[0] == -100
    assert deadlines.per_second([0.1, 0.2, 2.5]) == [2, 0, 1]


def test_too_few_picks_are_no_share() -> None:
    enough = (["high"] * 17 + ["normal"] * 2 + ["low"]) * 60
    part = starvation.report({"much": enough, "little": ["high"]}, {})
    much, little = part.targets
    assert (much.value, much.holds) == (0.0, True)
    assert (little.value, little.holds) == (None, False)


def test_idle_calls_add_up() -> None:
    cost = pickup.calls_cost([("SET", 2.0), ("SET", 4.0), ("script pull", 100.0)], seconds=2.0)
    assert cost["SET"] == {"per_s": 1.0, "us": 3.0, "percent": pytest.approx(0.0003)}
    assert cost["script pull"]["percent"] == pytest.approx(0.005)


def test_pickup_targets_are_about_the_largest_fleet() -> None:
    calls = {"script pull": {"per_s": 1.0, "us": 50.0, "percent": 0.005}}
    idle = {1: pickup.Idle(0.1, 1.0), 500: pickup.Idle(3.0, 50.0)}
    slow, busy = pickup.report({1: [1.0], 500: [2.0, 4.0]}, idle, calls, {}).targets
    assert (slow.value, slow.holds) == (4.0, True)
    assert (busy.value, busy.holds) == (3.0, False)
    assert "script pull 1/s" in busy.note


def test_pull_cost_compares_the_deepest_with_the_shallowest() -> None:
    assert pull_cost.trimmed_mean([1.0] * 8 + [0.0, 1_000.0]) == 1.0
    sizes = pull_cost.Sizes((1_000, 2_000), 1)
    pulls = {1_000: {1: [10.0], 8: [20.0], 64: [40.0]}, 2_000: {1: [12.0], 8: [20.0], 64: [80.0]}}
    part = pull_cost.report(sizes, {1_000: 3.0, 2_000: 3.0}, pulls)
    assert [target.value for target in part.targets] == [1.2, 1.0, 2.0]
    assert [target.holds for target in part.targets] == [True, True, False]


def test_memory_holds_plain_entries_and_the_clients_against_the_limit() -> None:
    sizes = {
        "redis-8.2": {memory.WAYS[0]: (600.0, 700.0), memory.WAYS[1]: (700.0, 800.0), memory.WAYS[2]: (800.0, 900.0)}
    }
    plain, client = memory.report(10, "redis-8.2", sizes).targets
    assert (plain.value, plain.holds, client.value, client.holds) == (700.0, True, 900.0, False)


def test_a_day_counts_what_is_lost() -> None:
    trace = [Arrival(0.0, "high", 1, 60_000), Arrival(36.0, "low", 1), Arrival(72.0, "critical", 1, 30_000)]
    ended = [outcome("high", finished_ms=700), outcome("low"), outcome("", None, status="", finished_ms=0)]
    samples = [day.Sample(12.0, {"critical": 0, "high": 2, "normal": 0, "low": 1}, 2)]
    part = day.report((12.0, 13.0), day.Day(trace, ended, samples, 0.01, [], 3, 36.0))
    (target,) = part.targets
    assert (target.value, target.holds) == (1, False)
    rows = {row["lane"]: row for row in part.tables[0].rows}
    assert (rows["high"]["missed %"], rows["low"]["missed %"], rows["critical"]["missed %"]) == (100.0, 0.0, 100.0)
    assert rows["high"]["total p50 s"] == 70.0  # 700 ms at a hundred times the speed
    assert part.data["depth"]["high"] == [2]
    width_s = 3600 / len(part.data["arrivals_per_s"])
    assert sum(part.data["arrivals_per_s"]) * width_s == pytest.approx(3, rel=0.01)


def test_every_part_hands_in_what_json_can_hold() -> None:
    part = inversion.report(
        inversion.QUICK,
        inversion.Seen([Outcome("succeeded", "critical", 0.0, 5.0, 6.0, 9.0, 8.0)], [0.0, 20.0], 10_000),
    )
    json.dumps([dict(part.data), dict(part.settings), part.tables[0].rows])


def test_a_padded_body_has_its_size() -> None:
    content = padded_body(500)
    assert len(content) == 500
    assert json.loads(content)["max_tokens"] == 16


# -- command line ------------------------------------------------------------------------------------------


def test_parts_and_hours_are_read() -> None:
    args = arguments(["--quick", "--only", "pickup,day", "--hours", "8-20.5"])
    assert (args.quick, args.only, args.hours) == (True, ("pickup", "day"), (8.0, 20.5))


@pytest.mark.parametrize("words", [["--only", "none"], ["--hours", "20-8"], ["--hours", "noon"], ["--hours", "1-25"]])
def test_what_cannot_be_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(words)
    assert words[1] in capsys.readouterr().err
