"""Costs of a queue whatever it runs: idle workers, and pulls by depth. Real Redis, real worker code, no engine."""

from __future__ import annotations

from bench.core.parts import Parts
from bench.scheduling import pickup, pull_cost

PARTS: Parts = {"pickup": pickup.measure, "pull_cost": pull_cost.measure}
"""In the order in which they run: none beside another."""
