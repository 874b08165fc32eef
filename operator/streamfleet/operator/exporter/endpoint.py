"""The exporter's process: loads settings, and serves metrics and health until a signal stops it.

`CachedReader` reads the queue for scrapes and probes from any thread; one reading serves all that ask within a period.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import structlog
from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from streamfleet.common import logs, metrics
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.health import Health, HealthServer, ask_loop
from streamfleet.common.settings import ExporterSettings, LogSettings, QueueSettings, unknown_variables
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.exporter.families import families
from streamfleet.operator.exporter.view import View, read_view

log = structlog.get_logger(__name__)
READ_TIMEOUT_S = 5.0  # Prometheus gives up a scrape after 10
ANSWER_TIMEOUT_S = 2.0
REUSE_S = 5.0
"""Time for which one look at Redis serves all who ask: ten scrapers then cost as much as one."""


class QueueCollector(Collector):
    """Collector that reads Redis when it is scraped, not when it is registered."""

    def __init__(self, queue: str, reader: CachedReader) -> None:
        self._queue, self._reader = queue, reader

    def describe(self) -> list[Metric]:
        """Return nothing, because names would need a read of Redis."""
        return []

    def collect(self) -> Iterator[Metric]:
        return families(self._queue, self._reader.current().found)


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
    reader = CachedReader(broker)
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


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading: the view, or None and the reason."""

    found: View | None
    reason: str


class CachedReader:
    """Reads the queue, and reuses a recent reading. Created on the broker's event loop; called from other threads.

    Args:
        broker: the queue; a broker without patience.
    """

    def __init__(self, broker: OperatorBroker) -> None:
        self._broker, self._loop = broker, asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._last: Reading | None = None
        self._last_at = 0.0

    def current(self) -> Reading:
        """A recent reading, or a new one; concurrent callers wait for it. A failed reading is reused as well."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last_at >= REUSE_S:
                was_well = self._last is None or self._last.found is not None
                self._last = asyncio.run_coroutine_threadsafe(self._read(), self._loop).result()
                self._last_at = time.monotonic()
                if was_well and self._last.found is None:
                    log.warning("read_failed", reason=self._last.reason)
            return self._last

    def alive(self) -> Health:
        """Live while the event loop answers. Redis is not asked, because a restart would not cure its failure."""
        return ask_loop(self._loop, asyncio.sleep(0, ""), ANSWER_TIMEOUT_S)

    def health(self) -> Health:
        """As `alive`, and ready while Redis answers."""
        alive = self.alive()
        if not alive.live:
            return alive
        reading = self.current()
        return Health(live=True, ready=reading.found is not None, reason=reading.reason)

    async def _read(self) -> Reading:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return Reading(await read_view(self._broker), "ready")
        except TimeoutError:
            said = f"Redis at {self._broker.connection.address} did not answer within {READ_TIMEOUT_S:g} s"
            return Reading(None, said)
        except StreamfleetError as error:
            return Reading(None, str(error))
        except Exception as error:
            log.exception("read_broke")
            return Reading(None, f"the queue could not be read: {type(error).__name__}; the log says more")
