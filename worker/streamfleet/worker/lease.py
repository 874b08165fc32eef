"""The lease loop: renews the leases of this worker, on a thread and a connection of its own.

A busy engine or event loop cannot delay it, so a lease that expired means that the whole process stopped. The thread
also reads cancellations and writes the worker's heartbeat. If the event loop hangs, the thread ends the process:
otherwise it would renew for ever the leases of requests that nobody works on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from streamfleet.common import metrics
from streamfleet.common.broker.types import Notices, RenewCode
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.clock import Clock
from streamfleet.common.errors import StreamfleetError, UnknownProtocol
from streamfleet.common.limits import QueueLimits
from streamfleet.worker.configuration import Configuration, LeaseLength
from streamfleet.worker.failpoints import Point, hit
from streamfleet.worker.in_flight import InFlight, StopReason

log = structlog.get_logger(__name__)
RENEWALS_PER_LEASE = 4
YOUNG = 0.5
"""Part of the time between two renewals: a younger lease waits for the next one, and most short answers need none."""
LEAST_ANSWER_S = 1.0
"""Redis has at least so long for the answer to a renewal; else it is tried again when the next one would be due."""
PAUSE_S = 0.5
QUIET_SHARE = 0.8  # of a lease: a worker that writes no heartbeat counts as silent after one and a half
LOAD = frozenset({"running", "credit", "oldest_held_ms", "kv_use", "mean_batch", "slots"})
"""Fields of a worker's description that change all the time under load: they alone are no news."""
AT_ONCE = 500
CANCELS_BLOCK_MS = 30_000  # a cancel that is missed here is found by the next renewal
CANCELS_GAP_S = 0.1
EXIT_LOOP_HUNG = 70


class Pulse:
    """Beats of the event loop, as the lease thread sees them.

    Args:
        clock: source of time.
        hang_s: an event loop without a beat for so long has hung.
    """

    def __init__(self, clock: Clock, hang_s: float) -> None:
        self.clock, self.hang_s = clock, hang_s
        self._last = clock.monotonic()

    def beat(self) -> None:
        self._last = self.clock.monotonic()

    @property
    def age_s(self) -> float:
        return self.clock.monotonic() - self._last


class LeaseKeeper:
    """Keeps leases on its own thread; call `start` from the event loop that the requests live on, `stop` from anywhere.

    Args:
        open_broker: makes the thread's own broker, which does not wait for Redis.
        worker: this worker's name.
        in_flight: requests to renew; lost and cancelled ones are stopped.
        pulse: the event loop's heartbeat; its clock detects late renewals.
        configuration: kept up to date; leases have its length.
    """

    def __init__(
        self,
        open_broker: Callable[[], WorkerBroker],
        worker: str,
        in_flight: InFlight,
        pulse: Pulse,
        configuration: Configuration,
    ) -> None:
        self._open_broker, self._worker, self._in_flight = open_broker, worker, in_flight
        self._pulse, self._clock, self._configuration = pulse, pulse.clock, configuration
        self._lease = LeaseLength(configuration.limits.lease_ms)
        self._describe: Callable[[], Mapping[str, Any]] = dict
        self._drain: Callable[[], None] = lambda: None
        self._configured: Callable[[QueueLimits], None] = lambda _: None
        self._refused: Callable[[UnknownProtocol], None] = lambda _: None
        self._lease_changed = asyncio.Event()
        self._reading = asyncio.Lock()  # else an answer from before a change could come after the change itself
        self._heard: str | None = None
        self._said: Mapping[str, Any] | None = None
        self._said_at = self._clock.monotonic()
        self._main: asyncio.AbstractEventLoop | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._stopped = False
        self._looked_at = self._clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def configure(self, limits: QueueLimits) -> None:
        """Renew by these limits from now on."""
        self._lease.change(limits.lease_ms, self._clock.monotonic())

    def start(
        self,
        describe: Callable[[], Mapping[str, Any]],
        drain: Callable[[], None],
        configured: Callable[[QueueLimits], None],
        refused: Callable[[UnknownProtocol], None],
        notice: str | None = None,
    ) -> None:
        """Renew from now on.

        Args:
            describe: returns the worker's description for its heartbeat.
            drain: called on the event loop when an operator asks for a drain.
            configured: called on the event loop with the new limits when the queue's configuration has changed.
            refused: called on the event loop whenever the queue is found to have a protocol that is not known.
            notice: stream id of a notice from before anything was claimed; only later ones are read. Without it the
                thread looks up the last one itself: a request cancelled before that runs until its next renewal.
        """
        self._describe, self._drain, self._configured = describe, drain, configured
        self._refused, self._heard = refused, notice
        self._main = asyncio.get_running_loop()
        self._begin()

    def _begin(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stopped = True  # for a thread that has not made its event yet
        own, stopping = self._own, self._stopping
        if own is not None and stopping is not None:
            with contextlib.suppress(RuntimeError):
                own.call_soon_threadsafe(stopping.set)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 5.0)

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except Exception:
            # Without renewals every request would be taken away again and again: no worker is better than that.
            log.critical("lease_thread_broke", exc_info=True)
            os._exit(EXIT_LOOP_HUNG)

    async def _keep(self) -> None:
        self._own, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._stopped:
            return
        broker = self._open_broker()
        loops = [asyncio.create_task(self._renewals(broker)), asyncio.create_task(self._cancels(broker))]
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait({*loops, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*loops, stopped):
                task.cancel()
            await asyncio.gather(*loops, stopped, return_exceptions=True)
            await broker.close()

    async def _renewals(self, broker: WorkerBroker) -> None:
        longest_s = broker.connection.answer_timeout_s
        last = self._clock.monotonic()
        late_s = self._lease.shortest_ms(last) / 2000
        while True:
            self._end_if_hung()
            self._lease_changed.clear()
            began = self._clock.monotonic()
            pause_s = interval_s = self._lease.shortest_ms(began) / 1000 / RENEWALS_PER_LEASE
            # A connection may be dead without an error: another one must be tried while the leases last.
            broker.connection.answer_timeout_s = min(longest_s, max(LEAST_ANSWER_S, interval_s))
            try:
                hit(Point.BEFORE_RENEW)
                await self._renew_all(broker)
                hit(Point.AFTER_RENEW)
                now = self._clock.monotonic()
                if now - last > late_s:
                    metrics.RENEWALS_LATE.inc()
                last, late_s = now, interval_s * RENEWALS_PER_LEASE / 2
                await self._heartbeat(broker, now)
            except UnknownProtocol as error:
                self._tell(self._refused, error)
            except StreamfleetError as error:
                log.warning("renewal_failed", error=str(error), silent_s=round(self._clock.monotonic() - last, 1))
                pause_s = max(0.0, began + min(interval_s, PAUSE_S) - self._clock.monotonic())
            await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        """Wait for the next renewal; a change of the lease ends the wait, because others may reclaim by it already."""
        waits = {asyncio.ensure_future(self._clock.sleep(pause_s)), asyncio.ensure_future(self._lease_changed.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _heartbeat(self, broker: WorkerBroker, now: float) -> None:
        """Write the heartbeat if more than the load is new, or it is due: large fleets must not keep Redis busy."""
        description = self._describe()
        what = {name: value for name, value in description.items() if name not in LOAD}
        if what != self._said or now - self._said_at > self._lease.shortest_ms(now) / 1000 * QUIET_SHARE:
            async with self._reading:
                fields = await broker.heartbeat(self._worker, description)
                self._said, self._said_at = what, now
                self._apply(changed=await self._configuration.take(broker, fields))

    def _apply(self, *, changed: bool) -> None:
        if changed:
            self.configure(self._configuration.limits)
            self._tell(self._configured, self._configuration.limits)
            self._lease_changed.set()

    async def _renew_all(self, broker: WorkerBroker) -> None:
        now = self._clock.monotonic()
        taken_by = now - YOUNG * self._lease.shortest_ms(now) / 1000 / RENEWALS_PER_LEASE
        requests = [request for request in self._in_flight.held() if request.claimed_at <= taken_by]
        for start in range(0, len(requests), AT_ONCE):
            part = requests[start : start + AT_ONCE]
            codes = await broker.renew(self._worker, [request.lease for request in part])
            # Stop this very object: its request may have been handed back and be here again under an equal lease.
            for request, code in zip(part, codes, strict=True):
                if code is not RenewCode.RENEWED:
                    self._tell(request.stop, StopReason.LOST if code is RenewCode.LOST else StopReason.CANCELLED)

    async def _cancels(self, broker: WorkerBroker) -> None:
        last_id = self._heard
        while True:
            try:
                last_id = last_id or await broker.last_notice()
                notices = await broker.read_notices(last_id, CANCELS_BLOCK_MS)
                if notices.configured:
                    async with self._reading:
                        self._apply(changed=await self._configuration.reread(broker))
                last_id = notices.last_id
                self._heed(notices)
            except UnknownProtocol as error:
                self._tell(self._refused, error)
                await self._clock.sleep(1.0)
            except StreamfleetError as error:
                log.debug("reading_cancels_failed", error=str(error))
                await self._clock.sleep(1.0)
            # Many cancels in a row are read together, so that a fleet does not wake up for each of them.
            await self._clock.sleep(CANCELS_GAP_S)

    def _heed(self, notices: Notices) -> None:
        for request in self._in_flight.find(set(notices.cancelled)) if notices.cancelled else ():
            log.info("cancelled", request_id=request.lease.request_id)
            self._tell(request.stop, StopReason.CANCELLED)
        if self._worker in notices.drain:
            log.warning("told_to_drain", worker=self._worker)
            self._tell(self._drain)

    def _tell(self, call: Callable[..., None], *words: object) -> None:
        if self._main is not None:
            with contextlib.suppress(RuntimeError):  # the event loop has just ended
                self._main.call_soon_threadsafe(call, *words)

    def _end_if_hung(self) -> None:
        now = self._clock.monotonic()
        slept_s, self._looked_at = now - self._looked_at, now
        if slept_s > self._pulse.hang_s / 2:
            return  # the whole process was stopped, this thread too: let the event loop beat first
        if self._pulse.age_s > self._pulse.hang_s:
            log.critical("event_loop_hung", silent_s=round(self._pulse.age_s, 1))
            os._exit(EXIT_LOOP_HUNG)
