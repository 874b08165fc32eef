"""Shares of tenants in a lane: the real scripts on a real Redis, with simulated engines; one load with real vLLM."""

from __future__ import annotations

from functools import partial

from bench.core import pull_with_label
from bench.core.parts import Parts
from bench.fairness import deadlines, real, shares, small, times

PARTS: Parts = {
    "small": small.measure,
    "shares": shares.measure,
    "deadlines": deadlines.measure,
    "times": times.measure,
    "vllm": real.measure,
    "pull_cost": partial(pull_with_label.measure, label="tenant", values=1_000),
}
