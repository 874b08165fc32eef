"""A worker whose engine gives every request the same number of tokens a second, however many requests run.

All except the engine's pace is the real worker: `python -m bench.gateway.paced_worker`, with the settings of a worker
in its environment. BENCH_TOKENS_PER_S is the rate of each request; BENCH_SLOTS the number of requests at once.
"""

from __future__ import annotations

import os
import sys

from streamfleet.common.settings import EngineSettings, load_all
from streamfleet.worker.engine.base import Engine
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import Profile
from streamfleet.worker.main import run_worker

KV_TOKENS = 10_000_000
MODEL_LENGTH = 8_192


def paced(tokens_per_s: float, slots: int) -> Profile:
    """Profile with the same rate for each request, from one request to `slots` of them."""
    throughput = ((1, tokens_per_s), (max(2, slots), tokens_per_s * max(2, slots)))
    return Profile("paced", 0.0, throughput, slots, KV_TOKENS, MODEL_LENGTH, jitter=0.0)


def environment(tokens_per_s: float, slots: int) -> dict[str, object]:
    """Variables that this module reads."""
    return {"BENCH_TOKENS_PER_S": tokens_per_s, "BENCH_SLOTS": slots}


def make_engine(settings: EngineSettings, max_sequences: int, reserve: int) -> Engine:  # noqa: ARG001 - the place of a real factory
    return SimulatedEngine(paced(float(os.environ["BENCH_TOKENS_PER_S"]), int(os.environ["BENCH_SLOTS"])))


if __name__ == "__main__":
    sys.exit(run_worker(*load_all(engine="simulated", health_port=0), make_engine))
