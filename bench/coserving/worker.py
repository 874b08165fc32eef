"""A worker whose engine is observed: `python -m bench.coserving.worker`, with the settings of a worker.

BENCH_COSERVING_LOGS is the folder that gets the engine's log at the end. With BENCH_COSERVING_URGENT_SLOTS two workers
share the engine: one serves the queue of urgent requests on so many slots, the other one all else on the other slots.
BENCH_COSERVING_KV_TOKENS is the KV cache of a simulated engine, if it is not the profile's;
BENCH_COSERVING_PATIENT_LANE the lane of the patient work.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.coserving.cases import KV_VARIABLE, LANE_VARIABLE, PATIENT_LANE, SLOTS, URGENT_QUEUE
from bench.coserving.observed import Log, Observed, Slots
from streamfleet.common import logs
from streamfleet.common.settings import load_all
from streamfleet.worker.engine import simulated_profile
from streamfleet.worker.engine.factory import build
from streamfleet.worker.main import run_worker
from streamfleet.worker.worker import Worker


async def share(log: Log, urgent_slots: int) -> int:
    """Run two workers on one engine until SIGTERM; returns the worse of their exit statuses."""
    queue, engine_settings, settings, log_settings = load_all(health_port=0)
    logs.configure(log_settings)
    engine = Observed(build(engine_settings, settings.max_sequences), log, sharers=2)
    parts = {URGENT_QUEUE: urgent_slots, queue.queue: SLOTS - urgent_slots}
    fleet = [
        Worker(f"worker-{os.getpid()}-{name}", queue.model_copy(update={"queue": name}), Slots(engine, slots), settings)
        for name, slots in parts.items()
    ]

    def stop() -> None:
        for worker in fleet:
            worker.ask_to_stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    return max(await asyncio.gather(*(worker.run() for worker in fleet)))


def main() -> int:
    """Run until SIGTERM, then write the log."""
    log = Log()

    def observed(*settings: Any) -> Observed:
        return Observed(build(*settings), log, patient_lane=os.environ.get(LANE_VARIABLE, PATIENT_LANE))

    if kv_tokens := int(os.environ.get(KV_VARIABLE, "0")):
        profile = simulated_profile.SMOLLM2_135M_CPU
        simulated_profile.SMOLLM2_135M_CPU = replace(profile, kv_tokens=kv_tokens)  # the factory takes it from there
    try:
        if urgent_slots := int(os.environ.get("BENCH_COSERVING_URGENT_SLOTS", "0")):
            return asyncio.run(share(log, urgent_slots))
        return run_worker(*load_all(health_port=0), observed)
    finally:
        log.save(Path(os.environ["BENCH_COSERVING_LOGS"]) / f"{os.getpid()}.json")


if __name__ == "__main__":
    sys.exit(main())
