"""Very many real workers in one process, on one event loop: `python -m bench.core.fleet`.

Each is a whole `Worker`, with its own connections, leases, heartbeats and housekeeping, but without a health server and
a process of its own. The engine holds a request for as many ms as it asks for tokens. BENCH_FLEET_WORKERS is the number
of workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

from bench.core.noop_worker import NoopEngine
from streamfleet.common import logs
from streamfleet.common.settings import QueueSettings, WorkerSettings, load_all
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.lease import LeaseKeeper
from streamfleet.worker.worker import Worker

SLOTS = 8
START_AT_ONCE = 50
MOST_THREADS = 125
"""Of more workers, the leases are kept on the common event loop: their threads would measure Python's scheduling."""
SWITCH_S = 0.0005


class HoldingEngine(NoopEngine):
    """Holds each request for `max_tokens` ms; the text is the ns from the time at the end of its id to its start."""

    async def run(self, request: EngineRequest) -> EngineReply:
        since_ns = time.monotonic_ns() - int(request.id.rpartition("-")[2])
        await asyncio.sleep(int(request.body["max_tokens"]) / 1000)
        choice = {"index": 0, "text": str(since_ns), "finish_reason": "stop"}
        return EngineReply(200, json.dumps({"choices": [choice]}).encode())


class LoopKeeper(LeaseKeeper):
    """The lease loops as a task of the worker's own event loop."""

    _task: asyncio.Task[None] | None = None

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class LoopWorker(Worker):
    """A worker without a lease thread."""

    _keeper_kind = LoopKeeper


def probe_id(number: int) -> str:
    """An id that ends with the present time, by the clock that all processes of a machine share."""
    return f"probe-{number}-{time.monotonic_ns()}"


async def work(queue: QueueSettings, settings: WorkerSettings, count: int) -> None:
    """Run so many workers until SIGTERM."""
    kind = Worker if count <= MOST_THREADS else LoopWorker
    fleet = [
        kind(
            f"worker-large-7d9f8b6c5d-{number:05d}-{os.getpid()}",
            queue,
            HoldingEngine(0, SLOTS),
            settings,
            # All heartbeats share this event loop, so a slow beat does not mean a hang.
            watchdog_s=3_600.0,
        )
        for number in range(count)
    ]

    def stop() -> None:
        for worker in fleet:
            worker.ask_to_stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    lives = []
    for first in range(0, count, START_AT_ONCE):  # workers that start together would tick together from then on
        lives += [asyncio.create_task(worker.run()) for worker in fleet[first : first + START_AT_ONCE]]
        await asyncio.sleep(0.2)
    await asyncio.gather(*lives)


def main() -> int:
    """Run the fleet that the environment asks for."""
    # A thread waits this long for another one; in a process of its own, a worker's would not wait.
    sys.setswitchinterval(SWITCH_S)
    queue, _, settings, log_settings = load_all(engine="simulated", health_port=0)
    logs.configure(log_settings)
    asyncio.run(work(queue, settings, int(os.environ["BENCH_FLEET_WORKERS"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
