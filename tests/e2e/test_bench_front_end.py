"""bench.front_end at its smallest: every way is asked the same, with vLLM's engine core and a simulated model."""

from __future__ import annotations

import pytest

from bench.core.reports import Report
from bench.front_end import run
from bench.front_end.tables import WHOLE
from bench.front_end.ways import ASGI, BARE, ENGINE, SERVE, Sizes

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs_vllm,
    pytest.mark.timeout(360),
    pytest.mark.filterwarnings("ignore:::(torch|vllm|transformers|multiprocessing)"),
]
SIZES = Sizes(
    rounds=1,
    at_once=(8,),
    streamed_at_once=(8,),
    paced=8,
    paced_tokens=6,
    tokens=6,
    parts_at=8,
    least=8,
)


def test_every_way_and_a_whole_worker_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_FRONT_END_PACE", "1000,0,0")
    report: Report = run(quick=True, sizes=SIZES)
    bursts, parts, whole, paced = report.tables
    ways = {BARE, ENGINE, ASGI, SERVE}
    assert ways <= {row[""] for row in bursts.rows}
    assert {f"{way}, streamed" for way in ways} <= {row[""] for row in bursts.rows}
    assert len(parts.rows) == 5
    assert {WHOLE[ENGINE], WHOLE[ASGI], f"{WHOLE[ENGINE]}, streamed"} == {row[""] for row in whole.rows}
    assert paced.rows[0]["of a core"] > 0
    for row in bursts.rows:
        assert 0 < row["main thread"] <= row["whole process"]
        assert 0 < row["first in the core, ms"] <= row["median"] <= row["last"] < row["all answered, s"] * 1000
    assert [target.limit for target in report.targets] == [1.03, 1.2, 2.0, 0.2, 0.8]
