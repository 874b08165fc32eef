"""Number of workers: the search, what arrives, the files, and wrong input."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from typer.testing import CliRunner

from streamfleet.cli.main import app
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Lane
from streamfleet.operator.plan.arrivals import Defaults, Traffic, read_trace
from streamfleet.operator.plan.checks import share
from streamfleet.operator.plan.figures import Figures, at_share
from streamfleet.operator.plan.planning import Asked, plan_fleet
from streamfleet.operator.plan.profile import EngineProfile, load_profile, read_profile
from streamfleet.operator.plan.size import NoFleet, smallest
from streamfleet.operator.plan.view import as_json_values, percent
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU

ENGINE = EngineProfile(replace(SMOLLM2_135M_CPU, jitter=0.0), 2.0, {"made": "2026-01-31", "fit_error": 0.01})
ASKED: dict[str, Any] = {
    "rate": 6.0,
    "prompt_tokens": 100,
    "output_tokens": 50,
    "deadline": "20s",
    "requests": 500,
    "runs": 2,
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "engine.json"
    ENGINE.save(path)
    return path


def fleets(enough: int, looked_at: list[int]) -> Callable[[int], Figures]:
    """Late by 10 % with fewer than enough workers."""

    def evaluate(workers: int) -> Figures:
        looked_at.append(workers)
        late = 0.1 if workers < enough else 0.001
        return Figures(workers, 100, late, (), math.nan, math.nan, math.nan, math.nan, 0.5, 1.0)

    return evaluate


@pytest.mark.parametrize("enough", [1, 2, 3, 7, 50, 99, 100])
@pytest.mark.parametrize("first", [1, 6, 50, 200])
def test_the_smallest_that_is_enough_is_found(enough: int, first: int) -> None:
    looked_at: list[int] = []
    assert smallest(fleets(enough, looked_at), 0.01, first, 100) == enough
    assert {enough, enough - 1} - {0} <= set(looked_at)


def test_a_good_first_guess_takes_few_looks() -> None:
    looked_at: list[int] = []
    smallest(fleets(40, looked_at), 0.01, 38, 1_000)
    assert len(set(looked_at)) <= 5


def test_where_none_is_enough_it_says_what_would_help() -> None:
    with pytest.raises(NoFleet, match=r"even with 20 workers 10\.00% would be late.*--batch-size.*--deadline"):
        smallest(fleets(21, []), 0.01, 3, 20)


def test_a_plan_keeps_its_word_and_one_worker_fewer_does_not(profile: Path) -> None:
    plan = plan_fleet(Asked(profile, **{**ASKED, "late": "1%", "deadline": "14s"}, spare=2))
    found = {each.workers: each for each in plan.found.looked_at}
    enough = plan.found.workers
    assert found[enough].late <= 0.01 < found[enough - 1].late
    assert set(found) == {enough - 1, enough, enough + 1, enough + 2}
    assert found[enough].requests == 1_000
    values = as_json_values(plan.found, plan.late, plan.spare, plan.basis)
    assert (values["workers_with_spare"], values["worker_hours_a_day"]) == (enough + 2, 24 * (enough + 2))
    json.dumps(values, allow_nan=False)


def test_the_same_seed_gives_the_same_plan_and_another_one_does_not(profile: Path) -> None:
    first, again, other = (plan_fleet(Asked(profile, **ASKED, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first.found.looked_at != other.found.looked_at


def test_more_traffic_shorter_deadlines_and_smaller_batches_take_more_workers(profile: Path) -> None:
    def workers(**more: Any) -> int:
        return plan_fleet(Asked(profile, **{**ASKED, **more})).found.workers

    usual = workers()
    assert workers(rate=18.0) > usual
    assert workers(batch_size=2) > usual
    assert workers(rate=18.0, deadline="12s") > workers(rate=18.0)


def test_what_is_late_even_alone_is_told_before_anything_is_simulated(profile: Path) -> None:
    with pytest.raises(NoFleet, match="even alone in an engine"):
        plan_fleet(Asked(profile, **{**ASKED, "deadline": "500ms"}), lambda _: pytest.fail("simulated"))


def test_lengths_and_gaps_have_their_means() -> None:
    found = Traffic(5.0, 300, 150, 10.0, Lane.HIGH).arrivals(1, 20_000)
    assert found[-1].at_s == pytest.approx(4_000, rel=0.03)
    assert mean(item.prompt_tokens for item in found) == pytest.approx(300, rel=0.02)
    assert mean(item.output_tokens for item in found) == pytest.approx(150, rel=0.02)
    assert max(item.output_tokens for item in found) > 600
    assert {(item.lane, item.deadline_s) for item in found} == {(Lane.HIGH, 10.0)}
    fixed = Traffic(5.0, 300, 150, shape="fixed").arrivals(1, 100)
    assert {(item.prompt_tokens, item.output_tokens) for item in fixed} == {(300, 150)}


def test_no_request_is_longer_than_the_engine_takes() -> None:
    found = Traffic(5.0, 300, 150, longest=500).arrivals(1, 5_000)
    assert max(item.prompt_tokens + item.output_tokens for item in found) == 500
    assert min(item.output_tokens for item in found) >= 1


def trace(folder: Path, *lines: str) -> Path:
    path = folder / "traffic.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_trace_is_read_in_order_of_time_from_its_first_request(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        '{"at_ms": 1790000004000, "prompt_tokens": 10, "output_tokens": 20, "deadline_ms": null}',
        "",
        '{"at_ms": 1790000001500, "lane": "high", "prompt_tokens": 30, "output_tokens": 5, "deadline_ms": 2500}',
        '{"at_ms": 1790000004000.5}',
    )
    first, second, third = read_trace(path, Defaults(Lane.LOW, 7, 8, 9.0))
    assert (first.at_s, first.lane, first.prompt_tokens, first.output_tokens, first.deadline_s) == (
        0,
        "high",
        30,
        5,
        2.5,
    )
    assert (second.at_s, second.lane, second.deadline_s) == (2.5, "low", None)
    assert (third.prompt_tokens, third.output_tokens, third.deadline_s) == (7, 8, 9.0)


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_a_trace_is_split_by_line_feed_alone(tmp_path: Path, end: str) -> None:
    row = json.dumps({"at_ms": 0, "tenant": f"a{end}b"}, ensure_ascii=False)
    assert len(read_trace(trace(tmp_path, row, row + "\r"), Defaults(Lane.LOW, 7, 8))) == 2


GOOD = {"at_ms": 0, "lane": "high", "prompt_tokens": 5, "output_tokens": 5, "deadline_ms": 100}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("at_ms", -1),
        ("at_ms", "0"),
        ("at_ms", None),
        ("lane", "urgent"),
        ("lane", 3),
        ("prompt_tokens", 0),
        ("prompt_tokens", 2.5),
        ("output_tokens", True),
        ("output_tokens", 4_000),
        ("deadline_ms", 0),
        ("deadline_ms", "30s"),
        ("dead_line", 5),
    ],
)
def test_what_is_wrong_in_a_trace_is_named_with_its_line(tmp_path: Path, field: str, value: object) -> None:
    path = trace(tmp_path, json.dumps(GOOD), json.dumps({**GOOD, field: value}))
    with pytest.raises(InvalidRequest, match=rf"^traffic\.jsonl line 2: {field}: "):
        read_trace(path, Defaults(), longest=1_000)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["[1]"], "line 1: must be a JSON object"),
        (["{"], "line 1: must be a JSON object"),
        ([""], "has no requests"),
        (['{"at_ms": 1, "output_tokens": 3}'], "line 1: prompt_tokens: is missing.*--prompt-tokens"),
        (['{"at_ms": NaN, "prompt_tokens": 3, "output_tokens": 3}'], "line 1: at_ms: must be a number"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read_trace(trace(tmp_path, *lines), Defaults())


def test_a_profile_comes_back_as_it_was_saved(profile: Path) -> None:
    assert load_profile(profile) == ENGINE
    unlimited = read_profile({**ENGINE.to_json(), "kv_tokens": None, "max_model_len": None}, "x")
    assert unlimited.kv_tokens is None
    assert unlimited.to_json()["max_model_len"] is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "2"),
        ("name", 3),
        ("prefill_s_per_token", -0.1),
        ("prefill_s_per_token", "fast"),
        ("prefill_s_per_token", True),
        ("throughput", []),
        ("throughput", [[4, 10.0], [2, 20.0]]),
        ("slots", 0),
        ("slots", 2.5),
        ("kv_tokens", 0),
        ("max_model_len", "8k"),
        ("pickup_ms", -1),
        ("pickup_ms", None),
    ],
)
def test_what_is_wrong_in_a_profile_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=rf"^engine\.json: {field}: "):
        read_profile({**ENGINE.to_json(), field: value}, "engine.json")


@pytest.mark.parametrize(
    ("value", "named"), [([[1]], r"throughput\[0\]"), ([[1, 5.0], [2, 0]], r"throughput\[1\]\[1\]")]
)
def test_a_wrong_point_of_a_profile_is_named_by_its_place(value: object, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        read_profile({**ENGINE.to_json(), "throughput": value}, "engine.json")


def test_a_profile_without_a_field_says_which() -> None:
    values = ENGINE.to_json()
    del values["slots"]
    with pytest.raises(InvalidRequest, match=r"^engine\.json: slots: is missing"):
        read_profile(values, "engine.json")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"profile": None}, "--profile: give"),
        ({"profile": Path("no-such-file.json")}, "--profile: cannot read no-such-file.json"),
        ({"rate": None}, "--rate: give"),
        ({"rate": 0.0}, "--rate: must"),
        ({"rate": math.nan}, "--rate: must"),
        ({"prompt_tokens": None}, "--prompt-tokens: give"),
        ({"prompt_tokens": 0}, "--prompt-tokens: must"),
        ({"output_tokens": 0}, "--output-tokens: must"),
        ({"output_tokens": 9_000}, "--output-tokens: .*max_model_len, 8192"),
        ({"deadline": None}, "--deadline: without"),
        ({"deadline": "soon"}, "--deadline: must be a span"),
        ({"deadline": "0s"}, "--deadline: must"),
        ({"late": "0.5"}, "--late: must be per cent"),
        ({"late": "101%"}, "--late: must be per cent"),
        ({"spare": -1}, "--spare: must"),
        ({"most": 0}, "--most: must"),
        ({"runs": 0}, "--runs: must"),
        ({"requests": 5}, "--requests: must"),
        ({"batch_size": -1}, "--batch-size: must"),
        ({"trace": Path("traffic.jsonl")}, "--rate: give either"),
        ({"trace": Path("no-such-trace.jsonl"), "rate": None}, "--trace: cannot read no-such-trace.jsonl"),
    ],
)
def test_a_wrong_option_is_named(profile: Path, more: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{named}"):
        plan_fleet(Asked(**{"profile": profile, **ASKED, **more}))


def test_shares_are_read_and_written_as_per_cent() -> None:
    assert [share(text, "x") for text in ("0.5%", "1 %", " 100% ", "0%")] == [0.005, 0.01, 1.0, 0.0]
    assert percent(0.005) == "0.5 %"


def test_a_share_of_values_is_by_nearest_rank() -> None:
    assert [at_share([1, 2, 3, 4], part) for part in (0.0, 0.25, 0.5, 0.99)] == [1, 1, 2, 4]
    assert math.isnan(at_share([], 0.5))


def test_the_table_shows_the_fleet_found_among_its_neighbours(profile: Path) -> None:
    arguments = ["plan", "-p", str(profile), "--rate", "6", "--prompt-tokens", "100", "--output-tokens", "50"]
    found = CliRunner().invoke(app, [*arguments, "-d", "20s", "--requests", "300"], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    rows = [line for line in found.output.splitlines() if "enough" in line]
    assert len(rows) == 1
    assert "late requests at or below 1 %" in found.output
    assert "worker-hours a day" in found.output
