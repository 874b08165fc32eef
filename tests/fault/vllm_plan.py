"""A small plan for real vLLM: one worker at a time, because two engines on a small machine starve each other."""

from __future__ import annotations

import random

from streamfleet.cli.demo.model import model_folder
from tests.fault.plan import Fault, FaultKind, Item, Kind, Plan, Setup, Step, body

REQUESTS = 40
ENGINE_ARGS = "--max-model-len 2048 --max-num-seqs 8 --gpu-memory-utilization 0.3"


def vllm_plan(seed: int) -> Plan:
    """Forty requests, three SIGKILLs, one SIGSTOP."""
    chance = random.Random(seed)
    setup = Setup(
        workers=1,
        lease_ms=5_000,
        watchdog_s=60.0,
        engine="vllm",
        start_s=240.0,
        settle_s=400.0,
        more={"MODEL": str(model_folder()), "ENGINE_ARGS": ENGINE_ARGS},
    )
    items = [
        Item(f"v{number}", f"v{number}", Kind.GOOD, chance.choice(("high", "normal")), {"body": body(tokens)})
        for number, tokens in enumerate(chance.randint(16, 64) for _ in range(REQUESTS))
    ]
    half = REQUESTS // 2
    producers = ((Step(0.0, "many", tuple(items[:half])),), (Step(1.0, "one", tuple(items[half:])),))
    kills = sorted(chance.sample(range(4, REQUESTS - 4), 3))
    faults = [Fault(at, FaultKind.KILL) for at in kills]
    faults.append(Fault(chance.randint(4, REQUESTS - 6), FaultKind.STOP, seconds=setup.lease_ms / 1000 + 1))
    # Nothing ends while an engine starts, so progress alone decides when a fault strikes.
    return Plan(seed, setup, producers, tuple(sorted(faults, key=lambda fault: fault.at)), seconds=3_600.0)
