"""Evaluates queries with Prometheus's own promtool, from Debian's package `prometheus`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.programs import program


@dataclass(frozen=True, slots=True)
class Case:
    """Expected values of queries over some series.

    Attributes:
        series: values by series, `name{label="value"}`.
        expected: by query, the value of its only sample; None where it has none.
    """

    series: Mapping[str, float]
    expected: Mapping[str, float | None]


def complaints(cases: Sequence[Case], folder: Path) -> str:
    """Returns promtool's complaints about some cases: empty if all hold to the last bit.

    Args:
        cases: each on its own.
        folder: for its files.
    """
    file = folder / "tests.yaml"
    tests = {"rule_files": [], "evaluation_interval": "15s", "tests": [_test(each) for each in cases]}
    file.write_text(yaml.safe_dump(tests, width=1000), encoding="utf-8")
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr or f"exit status {done.returncode}"


def _test(case: Case) -> dict[str, Any]:
    return {
        "interval": "15s",
        "input_series": [{"series": name, "values": f"{value!r}x4"} for name, value in case.series.items()],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": "1m",
                "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
            }
            for query, value in case.expected.items()
        ],
    }
