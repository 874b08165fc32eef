"""The worker as a process: settings go in, an exit status comes out.

`run_worker` sets up the logs, the engine and the health server, runs a `Worker` for each queue, and turns SIGTERM and
SIGINT into a drain.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence

import structlog

from streamfleet.common import logs, metrics, scripts
from streamfleet.common.health import Health, HealthServer
from streamfleet.common.settings import EngineSettings, LogSettings, QueueSettings, WorkerSettings, unknown_variables
from streamfleet.worker.engine.base import Engine
from streamfleet.worker.engine.factory import build
from streamfleet.worker.sharing import SharedEngine
from streamfleet.worker.tracing import Traces
from streamfleet.worker.worker import Worker

log = structlog.get_logger(__name__)


def run_worker(
    queue: QueueSettings,
    engine: EngineSettings,
    worker: WorkerSettings,
    log_settings: LogSettings,
    make_engine: Callable[[EngineSettings, int, int], Engine] = build,
) -> int:
    """Work until SIGTERM or SIGINT, then drain.

    Args:
        queue, engine, worker, log_settings: all settings.
        make_engine: builds the engine from its settings, the most sequences of one request, and the reserve.

    Returns:
        0 drained; 3 the engine failed; 4 a bug ended a loop.

    Raises:
        SettingsError: a setting cannot be used: the engine's package is missing, a port or the worker's name is taken,
            or Redis refuses us.
    """
    logs.configure(log_settings)
    for name, nearest in unknown_variables().items():
        log.warning("no_such_setting", variable=name, perhaps=nearest or None)
    log.info("engine_chosen", engine=engine.engine, because=_why(engine))
    queues = worker.models_of_queues
    if queues and queue.queue not in queues and "queue" in queue.model_fields_set:
        log.warning(
            "setting_without_effect", variable="STREAMFLEET_QUEUE", because="STREAMFLEET_WORKER_MODELS names the queues"
        )
    if worker.batching != "window" and "batch_timeout_ms" in worker.model_fields_set:
        log.warning(
            "setting_without_effect",
            variable="BATCH_TIMEOUT_MS",
            because=f"{worker.batching} batching waits for no batch to fill: set STREAMFLEET_BATCHING=window for that",
        )
    metrics.describe_build()
    metrics.begin()
    scripts.read_all()
    name = worker.worker_name or f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
    served = [queue.model_copy(update={"queue": each}) for each in queues] or [queue]
    traces = {each.queue: Traces(each.queue, name) for each in served if log_settings.traces == "otlp"}
    try:
        made = make_engine(engine, worker.max_sequences, worker.reserve)
        return asyncio.run(_run(name, served, made, worker, engine.watchdog_s, traces))
    finally:
        for each in traces.values():
            each.close()


def _why(engine: EngineSettings) -> str:
    if "engine" in engine.model_fields_set:
        return "STREAMFLEET_ENGINE"
    return "STREAMFLEET_MODEL" if engine.model else "VLLM_URL is set, and no STREAMFLEET_MODEL"


async def _run(
    name: str,
    queues: Sequence[QueueSettings],
    engine: Engine,
    settings: WorkerSettings,
    watchdog_s: float,
    traces: Mapping[str, Traces],
) -> int:
    shared = SharedEngine(engine, settings, settings.models_of_queues)
    workers = [Worker(name, each, shared, settings, watchdog_s, traces.get(each.queue)) for each in queues]
    health = HealthServer(settings.health_host, settings.health_port, lambda: _health(workers))
    health.start()
    metrics.READY.set_function(lambda: _health(workers).ready)
    for worker in workers:
        log.info(
            "worker_starting",
            worker=name,
            queue=worker.queue,
            redis=worker.redis_address,
            health_port=health.port,
        )
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, _stop, workers)
    try:
        return await run_together(workers)
    finally:
        health.stop()


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.ask_to_stop()


def _health(workers: Sequence[Worker]) -> Health:
    """The health of all workers of the process: that of the first that is not live, or not ready."""
    return min((worker.health() for worker in workers), key=lambda health: (health.live, health.ready))


async def run_together(workers: Sequence[Worker]) -> int:
    """Run the workers of one engine. As soon as one ends, the others drain. Returns the largest exit status.

    Raises:
        SettingsError: as `Worker.run`, of any of them.
    """
    lives = [asyncio.create_task(worker.run()) for worker in workers]
    await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
    for worker in workers:
        if not worker.stopping:  # asked twice, it would not wait for what runs
            worker.ask_to_stop()
    await asyncio.wait(lives)
    return max(life.result() for life in lives)
