"""Lengths that a queue has learnt, in a plan."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.operator.broker.audit import Audit, TenantAudit, length_audits
from streamfleet.operator.plan.arrivals import Defaults, read_trace
from streamfleet.operator.plan.lengths import Lengths, learnt, length_class
from streamfleet.operator.plan.planning import Asked, plan_fleet
from tests.unit.test_plan_size import ASKED, ENGINE

SERVED = {
    "t|a": "0 30 9000 9000 0 0 0",
    "l|a": ";none 30 200 0.25;13 10 80 0.25",
    "t|b": "0 10 1000 1000 0 0 0",
    "l|b": ";none 5 50 0.25",
}
TENANTS = {"a": TenantAudit(requests=30, tokens=9_000), "b": TenantAudit(requests=10, tokens=1_000)}
AUDIT = Audit({}, 0, 0, 0, tenants=TENANTS, lengths=length_audits(SERVED))


def test_each_tenant_counts_by_its_requests() -> None:
    outputs = 30 * (30 * 200 + 10 * 80) / 40 + 10 * 50
    found = learnt(AUDIT)
    assert (found.output_tokens, found.prompt_tokens) == (round(outputs / 40), round((10_000 - outputs) / 40))


def test_a_length_is_that_of_the_tenant_and_the_asked_limit() -> None:
    found, chance = learnt(AUDIT), random.Random(1)
    asked: list[tuple[str, int | None]] = [("a", None), ("a", 100), ("b", None)]
    assert [found.output(tenant, limit, chance, "fixed") for tenant, limit in asked] == [200, 80, 50]
    assert (found.output("b", 100, chance, "fixed"), found.output("c", None, chance, "fixed")) == (None, None)
    drawn = [found.output("a", 100, chance, "log-normal") or 0 for _ in range(500)]
    assert max(drawn) == 100, "no longer than it asks for"
    assert len(set(drawn)) > 20


def test_what_is_no_length_counts_as_none() -> None:
    odd = {"l|a": ";none x 1 1;13 1 nan 1;14 inf 1 1;15 1;16 0 5 1;;", "l|b": "", "t|a": ";none 1 1 1"}
    assert length_audits(odd) == {}
    assert learnt(Audit({}, 0, 0, 0, tenants=TENANTS)) == Lengths({}, None, None)


def test_a_plan_takes_them_where_none_are_given(tmp_path: Path) -> None:
    profile = tmp_path / "engine.json"
    ENGINE.save(profile)
    asked = {name: value for name, value in ASKED.items() if not name.endswith("_tokens")}
    with pytest.raises(InvalidRequest, match="a --queue that has learnt lengths"):
        plan_fleet(Asked(profile, **asked))
    with pytest.raises(InvalidRequest, match="a --queue that has learnt lengths"):
        plan_fleet(Asked(profile, **asked, learnt=Lengths({}, None, None)))
    taken = plan_fleet(Asked(profile, **asked, learnt=Lengths({}, 100, 50)))
    assert taken == plan_fleet(Asked(profile, **ASKED))
    given = plan_fleet(Asked(profile, **asked, prompt_tokens=30, learnt=Lengths({}, 100, 50)))
    assert "30 prompt and 50 output" in given.basis


def test_lines_of_a_trace_may_tell_tenant_and_limit(tmp_path: Path) -> None:
    lines = [
        {"at_ms": 0, "prompt_tokens": 9, "tenant": "a", "max_tokens": 100},
        {"at_ms": 1, "prompt_tokens": 9, "tenant": "a"},
        {"at_ms": 2, "prompt_tokens": 9, "tenant": "a", "output_tokens": 7},
        {"at_ms": 3, "prompt_tokens": 9, "tenant": "unknown"},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    known = learnt(AUDIT)
    defaults = Defaults(output_tokens=11, learnt=lambda who, limit: known.output(who, limit, random.Random(1), "fixed"))
    assert [arrival.output_tokens for arrival in read_trace(path, defaults)] == [80, 200, 7, 11]
    assert [arrival.output_tokens for arrival in read_trace(path, Defaults(output_tokens=11))] == [11, 11, 7, 11]
    path.write_text('{"at_ms": 0, "prompt_tokens": 9, "tenant": 5}')
    with pytest.raises(InvalidRequest, match="must be a text"):
        read_trace(path, defaults)


def test_classes_are_half_octaves() -> None:
    assert [length_class(limit) for limit in (None, 1, 100, 127)] == ["none", "2", "13", "14"]
    assert math.floor(2 * math.log2(101)) == 13
