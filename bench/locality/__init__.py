"""Work goes where its cache is: measurements of prompt tokens that engines take from their prefix caches."""

from __future__ import annotations

from bench.locality import pull_cost, routing
from bench.scheduling.parts import Parts

PARTS: Parts = {
    "routing": routing.measure,
    "prefill": routing.measure_prefill,
    "hot": routing.measure_hot,
    "pull_cost": pull_cost.measure,
}
