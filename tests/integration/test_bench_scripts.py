"""bench.scripts: two sides on real servers, and what is made of their samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.reports import load
from bench.scripts import interval, verdict
from bench.scripts.__main__ import main


@pytest.mark.long
def test_it_measures_calls_of_both_sides(tmp_path: Path) -> None:
    words = ["--against", "HEAD", "--quick", "--only", "return 1,pull of 8, sessions,retry_later of 64"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    report = load(tmp_path / "scripts.json")
    rows = {row["call"]: row for row in report.tables[0].rows}
    assert {"return 1", "pull of 8", "pull of 8, sessions", "retry_later of 64"} <= rows.keys()
    assert all(row[side] > 0 for row in rows.values() for side in ("before, µs", "now, µs"))
    assert all(len(samples) == report.settings["pairs"] for samples in report.data.values())


def test_what_cannot_be_measured_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--against", "no-such-commit", "--quick"]) != 0
    assert "no-such-commit" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main(["--against", "HEAD", "--only", "pall"])
    assert "--only pall: there are return 1; renew;" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ((1.02, 1.01, 1.04, 30, 1.03), "no dearer"),
        ((1.04, 0.99, 1.04, 30, 1.03), "no dearer"),
        ((1.04, 0.99, 1.04, 12, 1.03), "not known"),
        ((1.04, 0.97, 1.09, 30, 1.03), "not known"),
        ((1.05, 1.01, 1.06, 30, 1.03), "DEARER"),
        ((1.20, 1.15, 1.24, 30, 1.25), "no dearer"),
    ],
)
def test_a_call_is_no_dearer_by_its_ratio_or_if_nothing_can_be_told(
    figures: tuple[float, float, float, int, float], said: str
) -> None:
    assert verdict(*figures) == said


def test_the_interval_is_that_of_the_ratio_of_medians() -> None:
    samples = [{"before": 100.0 + number % 3, "now": 110.0 + number % 3} for number in range(30)]
    ratio, low, high = interval(samples)
    assert ratio == 111 / 101
    assert 1.07 < low <= ratio <= high < 1.12
