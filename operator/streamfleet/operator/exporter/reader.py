"""Reads the queue for scrapes and probes from any thread; one reading serves all that ask within a period."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from dataclasses import dataclass

import structlog

from streamfleet.common.clock import Clock
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.health import Health
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.exporter.view import View, read_view

log = structlog.get_logger(__name__)
READ_TIMEOUT_S = 5.0  # Prometheus gives up a scrape after 10
ANSWER_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading: the view, or None and the reason; and its duration in seconds."""

    found: View | None
    reason: str
    took_s: float


class CachedReader:
    """Reads the queue, and reuses a recent reading. Created on the broker's event loop; called from other threads.

    Args:
        broker: the queue; a broker without patience.
        clock: clock for the age of the last reading.
        reuse_s: time for which one reading is reused, seconds.
    """

    def __init__(self, broker: OperatorBroker, clock: Clock, reuse_s: float) -> None:
        self._broker, self._clock, self._reuse_s = broker, clock, reuse_s
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._last: Reading | None = None
        self._last_at = 0.0

    def current(self) -> Reading:
        """A recent reading, or a new one; concurrent callers wait for it. A failed reading is reused as well."""
        with self._lock:
            if self._last is None or self._clock.monotonic() - self._last_at >= self._reuse_s:
                was_well = self._last is None or self._last.found is not None
                self._last = self._read_now()
                self._last_at = self._clock.monotonic()
                if was_well and self._last.found is None:
                    log.warning("read_failed", reason=self._last.reason)
            return self._last

    def alive(self) -> Health:
        """Live while the event loop answers. Redis is not asked, because a restart would not cure its failure."""
        answers = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
        try:
            answers.result(ANSWER_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            return Health(live=False, ready=False, reason="the event loop does not answer")
        return Health(live=True, ready=False, reason="")

    def health(self) -> Health:
        """As `alive`, and ready while Redis answers."""
        alive = self.alive()
        if not alive.live:
            return alive
        reading = self.current()
        return Health(live=True, ready=reading.found is not None, reason=reading.reason)

    def _read_now(self) -> Reading:
        began = self._clock.monotonic()
        reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        found, reason = reading.result()
        return Reading(found, reason, self._clock.monotonic() - began)

    async def _read(self) -> tuple[View | None, str]:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await read_view(self._broker), "ready"
        except TimeoutError:
            return None, f"Redis at {self._broker.connection.address} did not answer within {READ_TIMEOUT_S:g} s"
        except StreamfleetError as error:
            return None, str(error)
        except Exception as error:
            log.exception("read_broke")
            return None, f"the queue could not be read: {type(error).__name__}; the log says more"
