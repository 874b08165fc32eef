"""Common base of all measurements: medians, ratios, percentiles, reports and tables."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from bench.broker.sizes import FULL_SIZES, QUICK_SIZES
from bench.broker.systems import SYSTEMS
from bench.core.machine import cpu_ticks, stolen_percent
from bench.core.reports import Report, Table, Target, load
from bench.core.rounds import Sample, interleave, middle, percentile, ratio
from bench.saved import BENCHMARKS


def recorded(names: str, rounds: int, seed: int) -> tuple[list[str], dict[str, list[Sample]]]:
    """The order in which measures of these names were run, and their samples."""
    order: list[str] = []

    def measure(name: str) -> Sample:
        order.append(name)
        return {"value": 1.0}

    return order, interleave({name: partial(measure, name) for name in names}, rounds, seed=seed)


def test_every_measure_runs_once_a_round_in_changing_order() -> None:
    order, samples = recorded("abc", rounds=6, seed=1)
    rounds = [order[start : start + 3] for start in range(0, 18, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len({"".join(each) for each in rounds}) > 1, "one order for all rounds would favour whoever comes first"
    assert {name: len(found) for name, found in samples.items()} == {"a": 6, "b": 6, "c": 6}


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """A machine that is slow in one round is slow for both: the quotient of the medians would not see that."""
    mine = [{"rate": 10}, {"rate": 1}, {"rate": 30}]
    other = [{"rate": 20}, {"rate": 2}, {"rate": 20}]
    assert ratio(mine, other, "rate") == 0.5
    assert middle(mine, "rate") == 10


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        (1, 0.5, 1),
        (4, 0.5, 2),
        (6, 0.5, 3),
        (100, 0.99, 99),
        (100, 0.999, 100),
        (300, 0.99, 297),
        (9, 0.0, 1),
        (9, 1.0, 9),
    ],
)
def test_a_percentile_is_the_nearest_rank(count: int, share: float, expected: int) -> None:
    """The smallest value that at least so many do not exceed; p99 of 100 is the 99th, not the largest."""
    assert percentile(range(count, 0, -1), share) == expected


def test_a_report_whose_writing_is_interrupted_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Report("r", "2026-01-31", {}, {"run": 1}).save(tmp_path)
    write = Path.write_text

    def interrupted(self: Path, text: str, encoding: str) -> int:
        write(self, text[:10], encoding=encoding)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Report("r", "2026-01-31", {}, {"run": 2}).save(tmp_path)
    assert load(path).settings == {"run": 1}


def report() -> Report:
    return Report(
        "broker",
        "2026-01-31",
        {"cores": 2, "packages": {"redis": "8.1.0"}},
        {"jobs": 1000},
        [Table("rates", ["queue", "jobs/s"], [{"queue": "größer", "jobs/s": 12345.6}])],
        [Target("enqueue", 0.8, 0.75, "at least", "x"), Target("idle", None, 2, "at most", "%", "no such server here")],
        {"rates": {"ours": [1.0, 2.5]}},
    )


def test_a_report_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    path = report().save(tmp_path / "new" / "folder")
    assert path.name == "broker.json"
    assert load(path) == report()
    assert "größer" in path.read_text(encoding="utf-8"), "a diff of results is read by people"


@pytest.mark.parametrize(
    ("value", "kind", "holds"),
    [
        (2.0, "at least", True),
        (1.99, "at least", False),
        (None, "at least", False),
        (2.0, "at most", True),
        (2.01, "at most", False),
        (None, "at most", False),
    ],
)
def test_a_target_holds_on_its_side_of_the_limit(
    value: float | None, kind: Literal["at least", "at most"], holds: bool
) -> None:
    assert Target("it", value, 2.0, kind, "x").holds is holds


def test_measuring_needs_no_matplotlib() -> None:
    """It draws the pictures, and `make bench-quick` does not install it."""
    modules = ", ".join(f"bench.{name}.__main__" for name in BENCHMARKS)
    code = f"import sys; sys.modules['matplotlib'] = None; import {modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_neighbours_take_is_a_share_of_what_was_wanted(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 4000 50 6 4 40 0 0\ncpu0 1 2 3\n")
    assert cpu_ticks(stat) == (200, 40)
    assert stolen_percent((100, 15), (200, 40)) == 25
    assert stolen_percent((200, 40), (200, 40)) is None
    assert cpu_ticks(tmp_path / "absent") is None
    assert stolen_percent(None, (1, 1)) is None


def test_the_small_size_judges_node_on_as_many_jobs_as_the_full_one() -> None:
    """A quarter of them is drained before Node's compiler is done: the verdict would be about the compiler."""
    for system in SYSTEMS:
        same = QUICK_SIZES.drained(system) == FULL_SIZES.drained(system)
        assert same == (system.kind in ("ours", "node")), system.name
