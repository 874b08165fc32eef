"""The pure parts of bench/scheduling, and of what measurements share: the figures that are made of what was seen."""

from __future__ import annotations

import json

import pytest

from bench.core.feeding import padded_body
from bench.core.rounds import cdf, thinned
from bench.scheduling import pickup, pull_cost


def test_thinning_keeps_both_ends() -> None:
    values = [float(number) for number in range(10_001)]
    few = thinned(values)
    assert (len(few), few[0], few[-1]) == (500, 0.0, 10_000.0)
    assert thinned([1.0, 2.0]) == [1.0, 2.0]
    assert cdf([3.0, 1.0, 2.0]) == [1.0, 2.0, 3.0]


def test_idle_calls_add_up() -> None:
    cost = pickup.calls_cost([("SET", 2.0), ("SET", 4.0), ("script pull", 100.0)], seconds=2.0)
    assert cost["SET"] == {"per_s": 1.0, "us": 3.0, "percent": pytest.approx(0.0003)}
    assert cost["script pull"]["percent"] == pytest.approx(0.005)


def test_pickup_targets_are_about_the_largest_fleet() -> None:
    calls = {"script pull": {"per_s": 1.0, "us": 50.0, "percent": 0.005}}
    idle = {1: pickup.Idle(0.1, 1.0), 500: pickup.Idle(3.0, 50.0)}
    slow, busy = pickup.report({1: [1.0], 500: [2.0, 4.0]}, idle, calls, {}).targets
    assert (slow.value, slow.holds) == (4.0, True)
    assert (busy.value, busy.holds) == (3.0, False)
    assert "script pull 1/s" in busy.note


def test_pull_cost_compares_the_deepest_with_the_shallowest() -> None:
    assert pull_cost.trimmed_mean([1.0] * 8 + [0.0, 1_000.0]) == 1.0
    sizes = pull_cost.Sizes((1_000, 2_000), 1)
    pulls = {1_000: {1: [10.0], 8: [20.0], 64: [40.0]}, 2_000: {1: [12.0], 8: [20.0], 64: [80.0]}}
    part = pull_cost.report(sizes, {1_000: 3.0, 2_000: 3.0}, pulls)
    assert [target.value for target in part.targets] == [1.2, 1.0, 2.0]
    assert [target.holds for target in part.targets] == [True, True, False]


def test_a_padded_body_has_its_size() -> None:
    content = padded_body(500)
    assert len(content) == 500
    assert json.loads(content)["max_tokens"] == 16
