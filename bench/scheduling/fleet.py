"""Many real workers in one process, on one event loop: `python -m bench.scheduling.fleet`.

Each is a whole `Worker`, with its own connections, housekeeping, and lease thread, but without a health server or a
process of its own. The engine's answer is the age of its request. BENCH_FLEET_WORKERS is the number of workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import time

from streamfleet.common import logs
from streamfleet.common.settings import QueueSettings, WorkerSettings, load_all
from streamfleet.worker.engine.base import Capacity, EngineReply, EngineRequest
from streamfleet.worker.worker import Worker

SLOTS = 4
SWITCH_S = 0.0005


class ProbeEngine:
    """Answers at once; the text is the nanoseconds since the time at the end of the request's id."""

    kind = "probe"
    models: tuple[str, ...] = ("none",)
    endpoints: tuple[str, ...] = ()

    async def start(self) -> None:
        """Nothing to start."""

    async def run(self, request: EngineRequest) -> EngineReply:
        since_ns = time.monotonic_ns() - int(request.id.rpartition("-")[2])
        choice = {"index": 0, "text": str(since_ns), "finish_reason": "stop"}
        return EngineReply(200, json.dumps({"choices": [choice]}).encode())

    def capacity(self) -> Capacity:
        return Capacity(SLOTS)

    async def failed(self) -> str:
        """Never return."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def stop(self) -> None:
        """Nothing to stop."""


def probe_id(number: int) -> str:
    """An id that ends with the present time, by the clock that all processes of a machine share."""
    return f"probe-{number}-{time.monotonic_ns()}"


def raise_file_limit() -> None:
    """Allow this process as many open files as the system permits; each worker has about five connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def work(queue: QueueSettings, settings: WorkerSettings, count: int) -> None:
    """Run so many workers until SIGTERM."""
    fleet = [Worker(f"worker-{os.getpid()}-{number}", queue, ProbeEngine(), settings) for number in range(count)]

    def stop() -> None:
        for worker in fleet:
            worker.ask_to_stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    await asyncio.gather(*(worker.run() for worker in fleet))


def main() -> int:
    """Run the fleet that the environment asks for."""
    raise_file_limit()
    # Each worker here has a thread, which waits this long for another one; in a process of its own it would not wait.
    sys.setswitchinterval(SWITCH_S)
    queue, _, settings, log_settings = load_all(engine="simulated", health_port=0)
    logs.configure(log_settings)
    asyncio.run(work(queue, settings, int(os.environ["BENCH_FLEET_WORKERS"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
