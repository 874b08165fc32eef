"""The exporter's process: loads settings, and serves metrics and health until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import structlog
from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from streamfleet.common import logs, metrics
from streamfleet.common.clock import SystemClock
from streamfleet.common.health import HealthServer
from streamfleet.common.settings import ExporterSettings, LogSettings, QueueSettings, unknown_variables
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.exporter.families import families
from streamfleet.operator.exporter.reader import CachedReader

log = structlog.get_logger(__name__)


class QueueCollector(Collector):
    """Collector that reads Redis when it is scraped, not when it is registered."""

    def __init__(self, queue: str, reader: CachedReader) -> None:
        self._queue, self._reader = queue, reader

    def describe(self) -> list[Metric]:
        """Return nothing, because names would need a read of Redis."""
        return []

    def collect(self) -> Iterator[Metric]:
        reading = self._reader.current()
        return families(self._queue, reading.found, reading.took_s)


def run_exporter(queue: QueueSettings, exporter: ExporterSettings, log_settings: LogSettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        SettingsError: the Redis URL cannot be read, or the port is taken.
    """
    logs.configure(log_settings)
    for name, nearest in unknown_variables().items():
        log.warning("no_such_setting", variable=name, perhaps=nearest or None)
    metrics.describe_build()
    asyncio.run(_serve(queue, exporter))


async def _serve(queue: QueueSettings, settings: ExporterSettings) -> None:
    broker = OperatorBroker.open(queue, patience_s=0)
    reader = CachedReader(broker, SystemClock(), settings.exporter_reuse_ms / 1000)
    server = HealthServer(
        settings.exporter_host,
        settings.exporter_port,
        reader.health,
        _registry(QueueCollector(queue.queue, reader)),
        "STREAMFLEET_EXPORTER_PORT",
        reader.alive,
    )
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    server.start()
    log.info("exporter_ready", queue=queue.queue, redis=broker.connection.address, port=server.port)
    try:
        await stop.wait()
    finally:
        await asyncio.to_thread(server.stop)  # a scrape in progress needs this loop to finish
        await broker.close()
    log.info("exporter_stopped")


def _registry(collector: Collector) -> CollectorRegistry:
    """A separate registry, because the default one holds a worker's metrics, which would all be 0 here."""
    registry = CollectorRegistry()
    registry.register(collector)
    registry.register(metrics.BUILD)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry
