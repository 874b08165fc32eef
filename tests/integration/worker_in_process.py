"""A whole worker in the test's process, for tests that reach into its engine; loops, threads and Redis are real."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from streamfleet.common.settings import QueueSettings, WorkerSettings, load
from streamfleet.worker.engine.base import Engine, EngineReply, EngineRequest
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import Profile
from streamfleet.worker.main import run_together
from streamfleet.worker.sharing import SharedEngine
from streamfleet.worker.tracing import Traces
from streamfleet.worker.worker import Worker
from tests.constants import PREFETCH, QUICK_RETRIES, Constants, constants
from tests.waiting import eventually

DEFAULTS: dict[str, Any] = {"lease_ms": 1_000}


def small_engine(slots: int = 4, **more: Any) -> SimulatedEngine:
    """A simulated engine with few slots, 100 tokens a second for each sequence."""
    profile = Profile("small, for tests", 0.0, ((1, 100), (slots, 100 * slots)), slots, 100_000, 8_192, jitter=0.0)
    return SimulatedEngine(profile, **more)


class LittleMemory(SimulatedEngine):
    """Slots for all, and a KV cache of 1,000 tokens; remembers in which order requests entered it."""

    def __init__(self, speed: float = 1.0) -> None:
        profile = Profile("little memory", 0.0, ((1, 100), (64, 6_400)), 64, 1_000, 1_000, jitter=0.0)
        super().__init__(profile, speed=speed)
        self.entered: list[str] = []

    async def run(self, request: EngineRequest) -> EngineReply:
        self.entered.append(request.id)
        return await super().run(request)


class Inside:
    """A worker that runs as a task of the test.

    Attributes:
        worker: the worker.
        life: the task of `Worker.run`; its result is the exit status.
    """

    def __init__(self, worker: Worker, life: asyncio.Task[int]) -> None:
        self.worker, self.life = worker, life

    async def ended(self, within_s: float = 10.0) -> int:
        """Wait for its end; its exit status."""
        return await asyncio.wait_for(asyncio.shield(self.life), within_s)


@contextlib.asynccontextmanager
async def worker_inside(
    url: str,
    engine: Engine,
    name: str = "w1",
    traces: Traces | None = None,
    changed: Constants = QUICK_RETRIES,
    prefetch: int = 2,
    **settings: Any,
) -> AsyncIterator[Inside]:
    """A ready worker with changed constants; at the end it is told to leave in a hurry."""
    given = {"redis_url": url, "max_body_bytes": 1_048_576, **DEFAULTS, **settings}
    with constants({**changed, PREFETCH: prefetch}):
        worker = Worker(name, load(QueueSettings, **given), engine, load(WorkerSettings, **given), traces=traces)
        life = asyncio.create_task(worker.run())
        try:
            await eventually(lambda: worker.health().ready or life.done(), 20, f"{name} is ready")
            yield Inside(worker, life)
        finally:
            worker.ask_to_stop()
            worker.ask_to_stop()
            await asyncio.wait({life}, timeout=20)
            if not life.done():
                life.cancel()
            await asyncio.gather(life, return_exceptions=True)


@contextlib.asynccontextmanager
async def workers_inside(
    url: str,
    engine: Engine,
    queues: Mapping[str, tuple[str, ...]],
    name: str = "w1",
    prefetch: int = 2,
    **settings: Any,
) -> AsyncIterator[list[Worker]]:
    """Ready workers that share an engine, one for each queue with its models, run as the process runs them."""
    given = {"redis_url": url, **DEFAULTS, **settings}
    own = load(WorkerSettings, **given)
    with constants({**QUICK_RETRIES, PREFETCH: prefetch}):
        shared = SharedEngine(engine, own, dict(queues))
        workers = [Worker(name, load(QueueSettings, **given, queue=queue), shared, own) for queue in queues]
        life = asyncio.create_task(run_together(workers))
        try:
            await eventually(
                lambda: life.done() or all(each.health().ready for each in workers), 20, f"{name} is ready"
            )
            yield workers
        finally:
            for worker in [*workers, *workers]:
                worker.ask_to_stop()
            await asyncio.wait({life}, timeout=20)
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
