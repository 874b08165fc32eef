"""bench.planning: what is sent, how it is read, and what is said of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench.core.reports import Report, Table, Target
from bench.planning import add_part, keep_other
from bench.planning.judging import Compared, answer_target, tables, targets
from bench.planning.loads import FULL_SIZES, LOADS, SEED, other_runs, sizes_of
from bench.planning.running import run_of
from bench.scheduling.outcomes import Outcome
from streamfleet.common.protocol import Lane
from streamfleet.operator.plan.arrivals import Arrival
from streamfleet.operator.plan.figures import Figures, figures
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU


def some(late: float = 0.1, p99_s: float = 2.0, tokens_per_s: float = 100.0) -> Figures:
    return Figures(2, 300, late, (late,), 0.1, 0.5, 1.0, p99_s, 0.5, tokens_per_s)


def compared(name: str, followed: Figures, observed: Figures) -> Compared:
    return Compared(name, 2, followed, some(p99_s=3.0), (1.5, 2.4), observed, 0.004)


def test_every_kind_of_a_load_arrives_in_order_and_always_the_same() -> None:
    load = LOADS["three lanes"]
    found = load.arrivals(SEED, 20.0)
    assert [item.at_s for item in found] == sorted(item.at_s for item in found)
    assert {item.lane for item in found} == {Lane.CRITICAL, Lane.NORMAL, Lane.LOW}
    assert len(found) == pytest.approx(18 * 20, rel=0.2)
    assert max(item.at_s for item in found) < 20.0
    assert found == load.arrivals(SEED, 20.0)
    assert found not in other_runs(load, 20.0, 3)


def test_small_sizes_are_some_of_the_full_ones() -> None:
    assert set(sizes_of("simulated", True).loads) < set(sizes_of("simulated", False).loads)
    assert {load.workers for load in FULL_SIZES.loads} == {1, 2, 3, 4}


def test_what_really_happened_is_read_as_if_it_had_been_simulated() -> None:
    arrivals = [Arrival(0.5 * at, Lane.NORMAL, 5, 10, 3.0) for at in range(3)]
    outcomes = [
        Outcome("succeeded", "normal", 1_000, 1_100, 1_150, 3_000, 1_400),
        Outcome("expired", "normal", 1_500, None, None, 4_500, None),
        Outcome("expired", "normal", 2_000, 2_200, 2_200, 5_000, 2_500),
    ]
    found = figures(1, 1, [run_of(arrivals, outcomes)])
    assert found.late == pytest.approx(2 / 3)
    assert (found.wait_p99_s, found.total_p99_s) == (0.2, 2.0)
    assert found.tokens_per_s == 5.0


def test_targets_name_the_load_that_is_worst() -> None:
    good = compared("good", some(), some())
    bad = compared("bad", some(late=0.02, p99_s=1.0, tokens_per_s=80.0), some())
    found = {target.name.partition(": ")[2]: target for target in targets("vllm", [good, bad])}
    assert [(target.value, target.holds, target.note) for target in found.values()] == [
        (50.0, False, "bad"),
        (pytest.approx(20.0), False, "bad"),
        (pytest.approx(8.0), False, "bad"),
        (0, True, ""),
    ]
    assert all(target.holds for target in targets("vllm", [good]))
    outside = [compared(name, some(p99_s=9.0), some(p99_s=9.0)) for name in ("one", "two")]
    assert (targets("vllm", outside)[-1].holds, targets("vllm", outside)[-1].note) == (False, "one, two")


def test_the_planned_fleet_is_judged_by_what_it_really_came_to() -> None:
    target = answer_target("simulated", 3, 0.02, some(late=0.03), some(late=0.2))
    assert (target.value, target.limit, target.holds, target.note) == (
        3.0,
        2.0,
        False,
        "3 workers; with one fewer 20 %",
    )
    assert answer_target("simulated", 1, 0.02, some(late=0.01), None).holds


def test_a_table_has_both_predictions_beside_what_was_observed() -> None:
    first, settings = tables("simulated", [compared("busy", some(), some(p99_s=2.5))], EngineProfile(SMOLLM2_135M_CPU))
    assert first.title.startswith("Simulated engine")
    assert first.rows[0]["answer p99 ms"] == "2,000 / 3,000"
    assert first.rows[0]["answer p99 ms, observed"] == 2_500
    assert settings.title.startswith("Settings")


def part(report: Report, engine: str, name: str, value: float) -> None:
    table = Table(f"{name}: predicted", ["n"], [{"n": value}])
    add_part(
        report, engine, {"speed": value}, [table], [Target(f"{name}: p99", value, 1, "at most", "%")], {"x": value}
    )


def test_measuring_one_engine_keeps_the_figures_of_the_other(tmp_path: Path) -> None:
    before = Report("planning", "2026-01-30", {}, {"quick": False})
    part(before, "vllm", "vLLM", 1.0)
    part(before, "simulated", "Simulated engine", 2.0)
    path = before.save(tmp_path)
    after = Report("planning", "2026-01-31", {}, {"quick": False})
    part(after, "simulated", "Simulated engine", 3.0)
    keep_other(after, "simulated", path)
    assert after.data == {"simulated": {"x": 3.0}, "vllm": {"x": 1.0}}
    assert sorted(target.value or math.nan for target in after.targets) == [1.0, 3.0]
    assert [table.rows[0]["n"] for table in after.tables] == [3.0, 1.0]
    assert after.settings["vLLM"] == {"speed": 1.0}
    keep_other(Report("planning", "2026-01-31", {}, {}), "simulated", tmp_path / "none.json")
