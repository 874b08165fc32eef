"""The worker as a process: settings go in, an exit status comes out.

`run_worker` sets up the logs, the engine and the health server, runs one `Worker`, and turns SIGTERM and SIGINT into a
drain.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import signal
from collections.abc import Callable

import structlog

from streamfleet.common import logs, metrics
from streamfleet.common.health import HealthServer
from streamfleet.common.settings import EngineSettings, LogSettings, QueueSettings, WorkerSettings, unknown_variables
from streamfleet.worker.engine.base import Engine
from streamfleet.worker.engine.factory import build
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
    if worker.batching != "window" and "batch_timeout_ms" in worker.model_fields_set:
        log.warning(
            "setting_without_effect",
            variable="BATCH_TIMEOUT_MS",
            because=f"{worker.batching} batching waits for no batch to fill: set STREAMFLEET_BATCHING=window for that",
        )
    metrics.describe_build()
    metrics.begin()
    name = worker.worker_name or f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
    traces = Traces(queue.queue, name) if log_settings.traces == "otlp" else None
    try:
        made = make_engine(engine, worker.max_sequences, worker.reserve)
        return asyncio.run(_run(name, queue, made, worker, engine.watchdog_s, traces))
    finally:
        if traces is not None:
            traces.close()


def _why(engine: EngineSettings) -> str:
    if "engine" in engine.model_fields_set:
        return "STREAMFLEET_ENGINE"
    return "STREAMFLEET_MODEL" if engine.model else "VLLM_URL is set, and no STREAMFLEET_MODEL"


async def _run(
    name: str,
    queue: QueueSettings,
    engine: Engine,
    settings: WorkerSettings,
    watchdog_s: float,
    traces: Traces | None,
) -> int:
    worker = Worker(name, queue, engine, settings, watchdog_s, traces)
    health = HealthServer(settings.health_host, settings.health_port, worker.health)
    health.start()
    log.info(
        "worker_starting",
        worker=name,
        queue=queue.queue,
        redis=worker.redis_address,
        health_port=health.port,
    )
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, worker.ask_to_stop)
    try:
        return await worker.run()
    finally:
        health.stop()
