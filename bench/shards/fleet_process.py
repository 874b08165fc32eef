"""Very many real workers in one process, on one event loop: `python -m bench.shards.fleet_process`.

Each is a whole `Worker`, with its own connections, leases, heartbeats and housekeeping. It has no health server, no
process of its own, and no lease thread: the same lease loops run on the common event loop, because a thousand threads
would measure Python's scheduling. The engine holds a request for as many ms as it asks for tokens. BENCH_FLEET_WORKERS
is the number of workers, BENCH_SLOTS the number of requests that each holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

from bench.scheduling.fleet import raise_file_limit
from streamfleet.common import logs
from streamfleet.common.settings import QueueSettings, WorkerSettings, load_all
from streamfleet.worker.engine.base import Capacity, EngineReply, EngineRequest
from streamfleet.worker.lease import LeaseKeeper
from streamfleet.worker.worker import Worker

START_AT_ONCE = 50


class HoldingEngine:
    """Holds each request for `max_tokens` ms; the text is the ns from the time at the end of its id to its start."""

    kind = "holding"
    models: tuple[str, ...] = ("none",)
    endpoints: tuple[str, ...] = ()

    def __init__(self, slots: int) -> None:
        self._capacity = Capacity(slots)

    async def start(self) -> None:
        """Nothing to start."""

    async def run(self, request: EngineRequest) -> EngineReply:
        since_ns = time.monotonic_ns() - int(request.id.rpartition("-")[2])
        await asyncio.sleep(int(request.body["max_tokens"]) / 1000)
        choice = {"index": 0, "text": str(since_ns), "finish_reason": "stop"}
        return EngineReply(200, json.dumps({"choices": [choice]}).encode())

    def capacity(self) -> Capacity:
        return self._capacity

    async def failed(self) -> str:
        """Never return."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def stop(self) -> None:
        """Nothing to stop."""


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


async def work(queue: QueueSettings, settings: WorkerSettings, count: int, slots: int) -> None:
    """Run so many workers until SIGTERM."""
    fleet = [
        LoopWorker(
            f"worker-large-7d9f8b6c5d-{number:05d}-{os.getpid()}",
            queue,
            HoldingEngine(slots),
            settings,
            # A thousand workers' heartbeats share this event loop, so a slow beat does not mean a hang.
            watchdog_s=3_600.0,
        )
        for number in range(count)
    ]
    asked = asyncio.Event()

    def stop() -> None:
        asked.set()
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
    raise_file_limit()
    queue, _, settings, log_settings = load_all(engine="simulated", health_port=0)
    logs.configure(log_settings)
    asyncio.run(work(queue, settings, int(os.environ["BENCH_FLEET_WORKERS"]), int(os.environ["BENCH_SLOTS"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
