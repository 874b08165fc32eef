"""Shares of tenants in a lane: the real scripts on a real Redis with engines simulated by their slots alone."""

from __future__ import annotations

from bench.fairness import deadlines, pull_cost, shares, small
from bench.scheduling.parts import Parts

PARTS: Parts = {
    "small": small.measure,
    "shares": shares.measure,
    "deadlines": deadlines.measure,
    "pull_cost": pull_cost.measure,
}
