"""Shares of tenants in a lane: the real scripts on a real Redis, with simulated engines; one load with real vLLM."""

from __future__ import annotations

from functools import partial

from bench.fairness import deadlines, real, shares, small, times
from bench.scheduling import pull_with_label
from bench.scheduling.parts import Parts

PARTS: Parts = {
    "small": small.measure,
    "shares": shares.measure,
    "deadlines": deadlines.measure,
    "times": times.measure,
    "vllm": real.measure,
    "pull_cost": partial(pull_with_label.measure, label="tenant", values=1_000),
}
