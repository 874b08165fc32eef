"""Work goes where its cache is: measurements of prompt tokens that engines take from their prefix caches."""

from __future__ import annotations

from functools import partial

from bench.core import pull_with_label
from bench.core.parts import Parts
from bench.locality import filling, programs, real, routing

PARTS: Parts = {
    "routing": routing.measure,
    "prefill": routing.measure_prefill,
    "hot": routing.measure_hot,
    "tenants": routing.measure_tenants,
    "filling": filling.measure,
    "programs": programs.measure,
    "vllm": real.measure,
    "pull_cost": partial(pull_with_label.measure, label="session", values=100_000, workers=8),
}
