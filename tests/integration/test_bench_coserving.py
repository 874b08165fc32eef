"""bench.coserving at its smallest: a real server, real workers, split slots, and a report that has everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.reports import load
from bench.coserving import run
from bench.coserving.cases import ALONE, HALF, ORDER, RESERVE, TINY
from bench.plots.catalogue import PICTURES

pytestmark = pytest.mark.timeout(150)


def test_a_tiny_run_has_everything(tmp_path: Path) -> None:
    report = load(run([TINY], quick=True).save(tmp_path))
    ((name, case),) = report.data["cases"].items()
    found = case["contenders"]
    assert list(found) == [ALONE, ORDER, HALF, RESERVE]
    assert len({figures["requests"] for figures in found.values()}) == 1, "all have the same urgent requests"
    assert found[ALONE]["requests"] > 30
    assert found[ALONE]["unanswered"] == 0
    assert found[ALONE]["patient_per_s"] == 0
    assert found[ALONE]["client_p50_ms"] < found[ORDER]["client_p50_ms"]
    assert found[ALONE]["XADD_p50_ms"] < found[ORDER]["XADD_p50_ms"]
    assert found[HALF]["urgent_per_s"] > 0, "urgent requests have slots of their own"
    assert found[HALF]["patient_per_s"] < found[ORDER]["patient_per_s"]
    for contender in (ORDER, HALF, RESERVE):
        assert found[contender]["step_p99_ms"] >= found[contender]["step_p50_ms"] > 0
    (table,) = report.tables
    assert name in table.title
    assert [row[""] for row in table.rows] == list(found)
    assert [target.value is not None for target in report.targets] == [True] * 4
    for picture in PICTURES:
        if picture.report == "coserving":
            assert not picture.missing(report)
