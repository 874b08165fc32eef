"""bench.goodput on a real Redis: the scripts in virtual time, and the case of real vLLM on the simulated engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.goodput import APART, PARTS, sessions, urgent, vllm
from bench.goodput.runs import play, sample
from bench.goodput.urgent import ALONE, ORDER, RESERVE, SPLIT, Case
from bench.goodput.work import of_tenants
from streamfleet.worker.engine import factory

pytestmark = pytest.mark.timeout(300)


def test_urgent_requests_go_first_and_patient_ones_go_on() -> None:
    case = Case(1, 0.5, patient_s=2.0)
    found = {name: urgent.figures(case, name, 4.0) for name in (ALONE, ORDER, RESERVE)}
    assert len({each["requests"] for each in found.values()}) == 1, "all have the same urgent requests"
    assert found[ALONE]["p99_ms"] < found[RESERVE]["p99_ms"] < found[ORDER]["p50_ms"]
    assert found[ALONE]["patient_per_s"] == 0
    assert found[RESERVE]["interrupted"] > 0
    assert found[ORDER]["interrupted"] == 0
    assert all(target.holds for target in urgent.targets(case, found))


def test_sessions_find_their_caches_and_a_flood_holds_up_no_small_tenant() -> None:
    work = of_tenants(0, 2, 1.0, 15.0, tenants=5)
    oracle, ours, today = (sample(play(sessions.WAYS[name], work, 2, 15.0, 5.0)) for name in sessions.WAYS)
    assert oracle["cached"] >= ours["cached"] > today["cached"] > 0
    assert oracle["missed"] == ours["missed"] == 0


@pytest.mark.long
def test_workers_of_a_split_fleet_serve_their_own_lanes() -> None:
    case = Case(2, 0.1, split=1, patient_s=2.0)
    found = urgent.figures(case, SPLIT, 4.0)
    assert found["urgent_per_s"] > 0
    assert found["patient_per_s"] < urgent.figures(replace(case, split=0), ORDER, 4.0)["patient_per_s"]


@pytest.mark.long
@pytest.mark.parametrize("part", [name for name in PARTS if name not in APART])
def test_each_part_has_tables_and_targets_at_small_size(part: str) -> None:
    said: list[str] = []
    found = PARTS[part](True, said.append)
    assert said
    assert all(table.rows for table in found.tables)
    assert all(target.value is not None for target in found.targets)


@pytest.mark.long
def test_urgent_requests_beside_patient_ones_in_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EVERY_S": 0.2, "PATIENT_S": 1.0, "GRACE_S": 1.0}.items():
        monkeypatch.setattr(vllm, name, value)
    monkeypatch.setattr(factory, "SPEED", 4.0)
    engine = {"engine": "simulated", "simulated_profile": "smollm2-cpu"}
    (table,) = vllm.compare(engine, 20, lambda _: None).tables
    alone, order, reserve = table.rows
    assert alone["patient tokens/s"] == 0
    assert order["first token p50, ms"] > reserve["first token p50, ms"] > 0
    assert reserve["patient tokens/s"] > 0.8 * order["patient tokens/s"]
