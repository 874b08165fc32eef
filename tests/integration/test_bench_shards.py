"""bench.shards at tiny sizes: real servers, a real fleet, a real cluster, and a report that has everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.reports import load
from bench.plots.catalogue import PICTURES
from bench.shards import page, run
from bench.shards.sizes import TINY

pytestmark = pytest.mark.timeout(150)


def test_a_tiny_run_has_everything(tmp_path: Path) -> None:
    report = load(run(TINY, quick=True).save(tmp_path))
    titles = [table.title.partition(":")[0] for table in report.tables]
    assert titles == ["Costs", "Workers", "Fleets", "Checks", "Carry", "Needs", "Settings", "Cluster"]
    costs, workers, fleets, checks, carry, needs, settings, cluster = (table.rows for table in report.tables)
    assert [row["in a call"] for row in costs] == list(TINY.batches)
    assert all(row[f"{verb}, µs"] > 0 for row in costs for verb in ("enqueue", "pull", "renew", "complete", "results"))
    assert all(row["waiting, B"] > 500 for row in costs)
    assert costs[0]["all, µs"] > costs[-1]["all, µs"], "requests of one call share what the call costs"
    assert all(row["CPU, µs"] >= 0 for row in workers)
    assert fleets[0]["workers"] == 4
    assert 3 <= fleets[0]["connections each"] <= 8
    assert fleets[0]["pickup p50 ms"] > 0
    assert {row["figure"].partition(",")[0] for row in checks} >= {"script calls/s", "% of a core"}
    assert all(row["workers of 64 slots"] >= 1 for row in carry)
    assert all(row["shards"] >= 1 for row in needs)
    assert len(settings) == 4
    one, together, apart = cluster
    assert one["busiest, µs a request"] > 0
    assert apart["carries, of one queue"] > together["carries, of one queue"]
    assert apart["carries, of one queue"] > 1.5
    assert len(report.targets) == 3
    for picture in PICTURES:
        if picture.report == "shards":
            assert not picture.missing(report)
    page.fill(page.PAGE.read_text(encoding="utf-8"), report)
