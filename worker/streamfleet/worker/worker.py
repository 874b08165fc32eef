"""One worker: builds its parts from the settings, and runs their loops from start to drain.

A request goes from the puller through the dispatcher, executor and completer; the lease thread keeps it meanwhile, and
the publisher streams it. These loops and the housekeeping share only `InFlight`. The exit status says why the worker
ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import platform
from collections import deque
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import structlog

from streamfleet.common import metrics
from streamfleet.common.broker.types import Lease
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.clock import SystemClock
from streamfleet.common.errors import (
    BrokerOutOfMemory,
    SettingsError,
    StreamfleetError,
    UnknownProtocol,
)
from streamfleet.common.health import Health
from streamfleet.common.limits import QueueLimits
from streamfleet.common.queue_configuration import said
from streamfleet.common.server_checks import check_server
from streamfleet.common.settings import QueueSettings, WorkerSettings
from streamfleet.worker.complete import Completer
from streamfleet.worker.configuration import Configuration
from streamfleet.worker.cost.check import pack_fields
from streamfleet.worker.dispatcher import Dispatcher
from streamfleet.worker.engine.base import Engine, EngineUnavailable
from streamfleet.worker.execute import Executor
from streamfleet.worker.failpoints import Point, hit
from streamfleet.worker.housekeeping import Housekeeper
from streamfleet.worker.in_flight import InFlight, StopReason
from streamfleet.worker.keeping import Checkpoints
from streamfleet.worker.lease import LeaseKeeper, Pulse
from streamfleet.worker.publishing import Publisher
from streamfleet.worker.pull import Puller
from streamfleet.worker.sharing import SharedEngine
from streamfleet.worker.tracing import Traces

log = structlog.get_logger(__name__)
BEAT_S = 0.5
BATCHES_S = 60.0  # of which the mean batch is told
AGAIN_S = 1.0
PLACE_S = 2.0  # after it the thread that reads cancels finds the start itself: a start must not wait for Redis
NAME_LEASES = 1.5  # a worker that is alive writes its heartbeat more often
LOOKS_PER_LEASE = 8
LAST_WRITES_S = 4.0  # four of them and drain_ms fit the pod's grace period
EXIT_DRAINED = 0
EXIT_REFUSED = 2
EXIT_ENGINE_FAILED = 3
EXIT_BROKEN = 4


class EngineStartError(Exception):
    """The engine could not be started; ``__cause__`` is the reason."""


class Worker:
    """A worker on one queue with one engine; `run` is its whole life.

    Args:
        name: unique name; the consumer in the lanes' groups.
        queue: settings of the queue.
        engine: an engine that is not started yet, or one that workers on other queues share.
        settings: the worker's settings.
        watchdog_s: an event loop without a beat for so long has hung.
        traces: makes spans of each request; None if tracing is off.
    """

    _keeper_kind: type[LeaseKeeper] = LeaseKeeper

    def __init__(
        self,
        name: str,
        queue: QueueSettings,
        engine: Engine | SharedEngine,
        settings: WorkerSettings,
        watchdog_s: float = 60.0,
        traces: Traces | None = None,
    ) -> None:
        clock = self._clock = SystemClock()
        self._shared = shared = engine if isinstance(engine, SharedEngine) else SharedEngine(engine, settings, {})
        shared.join()
        self.name, self.queue, self._engine, self._settings = name, queue.queue, shared.engine, settings
        self._models = shared.queues.get(queue.queue, ())
        self._state, self._started_ms, self._slots, self._fields = "starting", clock.now_ms(), 0, ""
        self._version = metadata.version("streamfleet")
        self._configuration = Configuration(queue.limits(), said(queue))
        self._stop_asked, self._hurry = asyncio.Event(), asyncio.Event()
        self._last_notice: str | None = None
        self._most_slots = 0
        self._batches: deque[int] = deque(maxlen=round(BATCHES_S / BEAT_S))
        self._pulse, in_flight = Pulse(clock, watchdog_s), InFlight(shared.in_flight)
        self._in_flight = in_flight
        broker = self._broker = self._open_broker(queue, patience_s=None)  # waits for Redis without limit
        self._publisher = Publisher(broker, clock, shared.streams)
        limits, admission = self._configuration.limits, shared.admission
        model = self._models[0] if self._models else ""
        self._executor = Executor(self._engine, admission, self._publisher, clock, limits, traces, model)
        self._completer = Completer(broker, name, in_flight, self._publisher, limits, clock)
        self._puller = Puller(broker, name, admission, in_flight, clock, shared.turns)
        self._dispatcher = Dispatcher(
            self._puller, self._executor, self._completer, in_flight, limits, clock, shared.containment
        )
        self._housekeeper = Housekeeper(broker, name, limits, clock)
        tokens = settings.checkpoint_tokens
        self._checkpoints = Checkpoints(broker, name, in_flight, clock, tokens) if tokens else None
        self._keeper = self._keeper_kind(
            lambda: self._open_broker(queue, patience_s=0), name, in_flight, self._pulse, self._configuration
        )

    @property
    def redis_address(self) -> str:
        """Address of Redis, without its password."""
        return self._broker.connection.address

    def _open_broker(self, queue: QueueSettings, patience_s: float | None) -> WorkerBroker:
        broker = WorkerBroker.open(queue, patience_s)
        broker.configure(self._configuration.limits)
        return broker

    def _configure(self, limits: QueueLimits) -> None:
        self._broker.configure(limits)
        for part in (self._executor, self._completer, self._dispatcher, self._housekeeper):
            part.configure(limits)

    @property
    def stopping(self) -> bool:
        """True if it was asked to stop."""
        return self._stop_asked.is_set()

    def ask_to_stop(self) -> None:
        """Drain; a second call hands everything back at once."""
        if self._stop_asked.is_set():
            self._hurry.set()
        self._stop_asked.set()

    def describe(self) -> dict[str, Any]:
        """Returns this worker's entry in `{queue}:workers`."""
        held, health = self._in_flight.held(), self.health()
        kv_use, busy = getattr(self._engine, "kv_use", None), [each for each in self._batches.copy() if each]
        more: dict[str, Any] = {"oldest_held_ms": min(request.claimed_ms for request in held)} if held else {}
        if not (health.live and health.ready):
            more["unready"] = health.reason
        if getattr(self._engine, "limited", False):
            more["limited"] = True
        if self._fields:
            more["fields"] = self._fields
        if others := [queue for queue in self._shared.queues if queue != self.queue]:
            more["also_serves"] = others
        return {
            "state": self._state,
            "version": self._version,
            "engine": self._engine.kind,
            "models": list(self._models or self._engine.models),
            "endpoints": list(self._engine.endpoints),
            "max_model_len": self._engine.capacity().max_model_len if self._slots else None,
            "running": len(held),
            "slots": self._slots,
            "kv_use": None if kv_use is None else round(kv_use, 3),
            "mean_batch": round(sum(busy) / len(busy), 1) if busy else None,
            "credit": self._puller.credit,
            "host": platform.node(),
            "pid": os.getpid(),
            "started_ms": self._started_ms,
            "lease_ms": self._configuration.limits.lease_ms,
            **self._configuration.describe(),
            **more,
        }

    def health(self) -> Health:
        """Returns the state for the health probes."""
        live = self._pulse.age_s < max(10.0, BEAT_S * 4)
        reason = "the event loop does not answer" if not live else self._state
        if self._state == "unfit":
            reason = self._dispatcher.why_unfit
        elif live and (refusal := self._broker.connection.refusal):
            return Health(live, False, refusal)
        return Health(live, self._state == "ready", reason)

    async def run(self) -> int:
        """Start, work until asked to stop or the engine fails, drain. Returns the process's exit status.

        Raises:
            SettingsError: Redis refuses us, or another worker of this name is alive.
        """
        beat = asyncio.create_task(self._beat())
        try:
            if not await self._unless_stopped(self._start()):
                return EXIT_DRAINED
            return await self._work()
        except EngineStartError as error:
            log.critical("engine_did_not_start", engine=self._engine.kind, reason=str(error), exc_info=error.__cause__)
            return EXIT_ENGINE_FAILED
        finally:
            beat.cancel()
            try:
                await self._shared.leave()
            finally:
                await self._broker.close()

    async def _start(self) -> None:
        for finding in await check_server(self._broker):
            finding.say()
        await self._find_configuration()  # before the first write: the queue may have a protocol that is not known
        while not await self._groups_exist():
            await self._clock.sleep(AGAIN_S)
        await self._wait_for_name()
        log.info("engine_starting", engine=self._engine.kind)
        while not await self._engine_starts():
            await self._clock.sleep(AGAIN_S)
        self._see_capacity()
        self._fields = pack_fields(getattr(self._engine, "fields", {}))
        self._housekeeper.redis_is_asked()
        await self._wait_for_name()  # again: another worker may have loaded its model meanwhile
        await self._find_place()

    def _see_capacity(self) -> None:
        """Note the engine's capacity, which a busy server changes."""
        self._slots = self._engine.capacity().slots
        self._most_slots = max(self._most_slots, self._slots)
        rules, admission = self._shared.containment, self._shared.admission
        rules.slots = max(rules.slots, admission.slots)
        metrics.SLOTS.set(self._slots)

    async def _find_configuration(self) -> None:
        """Follow the queue's configuration, or write it. A broken key, or a full Redis, must not stop the worker.

        Raises:
            NotPermitted, UnknownProtocol: it cannot serve this queue.
        """
        with contextlib.suppress(BrokerOutOfMemory):  # a Redis that is away is waited for: its queue has to be checked
            if await self._configuration.reread(self._broker):
                self._configure(self._configuration.limits)
                self._keeper.configure(self._configuration.limits)
        self._configuration.warn()

    async def _wait_for_name(self) -> None:
        """Wait until a worker that had this name is silent: a restarted worker may reuse it, two at a time may not.

        Raises:
            SettingsError: another worker of this name is alive.
        """
        lease_s = self._configuration.limits.lease_ms / 1000
        other = await self._namesake()
        if other is None:
            return
        seen_ms, age_ms = other
        give_up = self._clock.monotonic() + NAME_LEASES * lease_s - max(0, age_ms) / 1000
        if self._clock.monotonic() < give_up:
            log.info("waiting_for_name", worker=self.name, leases=NAME_LEASES)
        while self._clock.monotonic() < give_up:
            await self._clock.sleep(lease_s / LOOKS_PER_LEASE)
            now = await self._namesake()
            if now is None:
                return
            if now[0] != seen_ms:
                queue = self._broker.keys.queue
                raise SettingsError(
                    f"STREAMFLEET_WORKER_NAME: a worker called {self.name} is alive in queue {queue}: "
                    "stop it, or give each worker a name of its own, or none"
                )

    async def _namesake(self) -> tuple[str, int] | None:
        """Last heartbeat of another worker of this name, as Redis stores it, and its age in ms.

        None if there is none, or Redis does not tell: an outage, or a broken key, must not keep a worker from its work.
        """
        with contextlib.suppress(StreamfleetError, TimeoutError):
            async with asyncio.timeout(PLACE_S):
                found = await self._broker.worker(self.name)
                if found is not None:
                    seen = found.get("seen_ms")
                    known = isinstance(seen, int | float) and math.isfinite(seen)
                    return str(seen), await self._broker.now_ms() - int(seen or 0) if known else 0
        return None

    async def _find_place(self) -> None:
        """Find the last notice: only cancels behind it matter. An outage or a broken key must not stop the worker."""
        with contextlib.suppress(StreamfleetError, TimeoutError):
            async with asyncio.timeout(PLACE_S):
                self._last_notice = await self._broker.last_notice()

    async def _groups_exist(self) -> bool:
        try:
            await self._broker.ensure_groups()
        except BrokerOutOfMemory as error:  # only for a new queue; the keys of a known one exist
            log.warning("waiting_for_room_in_redis", reason=str(error))
            return False
        return True

    async def _engine_starts(self) -> bool:
        try:
            await self._shared.start()
        except EngineUnavailable as error:  # a server that is not up yet is waited for, as Redis is
            log.warning("waiting_for_engine", engine=self._engine.kind, reason=str(error))
            return False
        except StreamfleetError:
            raise
        except Exception as error:
            raise EngineStartError(f"{type(error).__name__}: {error}") from error
        return True

    async def _unless_stopped(self, starting: Any) -> bool:
        start, stop = asyncio.ensure_future(starting), asyncio.create_task(self._stop_asked.wait())
        await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if start.done():
            start.result()
            return True
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        return False

    async def _work(self) -> int:
        refusals: asyncio.Queue[UnknownProtocol] = asyncio.Queue()
        self._keeper.start(self.describe, self.ask_to_stop, self._configure, refusals.put_nowait, self._last_notice)
        loops = {
            "protocol": asyncio.create_task(_raise_first(refusals)),
            "pull": asyncio.create_task(self._puller.run(self._dispatcher.start)),
            "dispatch": asyncio.create_task(self._dispatcher.run()),
            "publish": asyncio.create_task(self._publisher.run()),
            "complete": asyncio.create_task(self._completer.run()),
            "housekeeping": asyncio.create_task(self._housekeeper.run()),
        }
        if self._checkpoints is not None:
            loops["checkpoints"] = asyncio.create_task(self._checkpoints.run())
        failed = asyncio.create_task(self._engine_failed())
        stop = asyncio.create_task(self._stop_asked.wait())
        self._state = "ready"
        models = self._models or self._engine.models
        log.info("worker_ready", worker=self.name, queue=self.queue, engine=self._engine.kind, models=models)
        await asyncio.wait({*loops.values(), failed, stop}, return_when=asyncio.FIRST_COMPLETED)
        status = self._verdict(loops, failed)
        self._state = "draining"
        try:
            await self._drain(loops, failed, status)
        finally:
            for task in (*loops.values(), failed, stop):
                task.cancel()
            await asyncio.gather(*loops.values(), failed, stop, return_exceptions=True)
            await self._keeper.stop()
        log.info("worker_stopped", worker=self.name, exit_status=status)
        return status

    async def _engine_failed(self) -> str:
        """Returns the reason as soon as the engine says that it failed, or a request finds out."""
        told = asyncio.ensure_future(self._shared.failed())
        found = self._dispatcher.engine_died
        try:
            await asyncio.wait({told, found}, return_when=asyncio.FIRST_COMPLETED)
            return found.result() if found.done() else await told
        except Exception as error:  # noqa: BLE001 - an engine that cannot be watched counts as dead
            return f"it could not be watched: {type(error).__name__}: {error}"
        finally:
            told.cancel()

    def _verdict(self, loops: dict[str, asyncio.Task[None]], failed: asyncio.Task[str]) -> int:
        if failed.done():
            log.critical("engine_failed", reason=failed.result())
            return EXIT_ENGINE_FAILED
        for name, task in loops.items():
            if task.done() and isinstance(task.exception(), SettingsError):
                # A permission is gone, the protocol is another, or a password that no file or provider can renew.
                log.critical("redis_refuses", loop=name, reason=str(task.exception()))
                return EXIT_REFUSED
            if task.done():
                log.critical("loop_broke", loop=name, exc_info=task.exception())
                return EXIT_BROKEN
        return EXIT_DRAINED

    async def _drain(self, loops: dict[str, asyncio.Task[None]], failed: asyncio.Task[str], status: int) -> None:
        patient = status == EXIT_DRAINED
        log.info("draining", running=len(self._in_flight), drain_ms=self._settings.drain_ms if patient else 0)
        self._dispatcher.close()
        hit(Point.DRAINING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITES_S):
                await self._puller.stop()
                await asyncio.wait({loops["pull"]})
        if patient:
            self._dispatcher.release_waiting(self._most_slots)  # what runs beyond a lower limit still runs
            if await self._others_work():
                self._dispatcher.hand_over()
            await self._wait_for_running(failed)
        in_order = patient and not failed.done()
        await self._dispatcher.stop(StopReason.RELEASED if in_order else StopReason.WORKER_FAILED, LAST_WRITES_S)
        self._completer.close()
        await asyncio.wait({loops["complete"]}, timeout=LAST_WRITES_S)
        await self._keeper.stop()  # otherwise its last heartbeat would come after the deregistration
        # If a loop broke, a remaining request may be the cause: its lease expires, and the attempt counts.
        if status != EXIT_BROKEN:
            # Nor is what an engine failed handed back where its outcome could not be written: that attempt counts, too.
            await self._deregister(self._in_flight.leases() if failed.done() else [])

    async def _others_work(self) -> bool:
        """True if another worker of the queue is ready; False if Redis does not tell."""
        with contextlib.suppress(StreamfleetError, TimeoutError):
            async with asyncio.timeout(PLACE_S):
                now_ms, workers = await self._broker.now_ms(), await self._broker.workers()
                recent_ms = now_ms - self._configuration.limits.lease_ms
                for name, found in workers.items():
                    seen = found.get("seen_ms")
                    alive = isinstance(seen, int | float) and seen >= recent_ms
                    if alive and name != self.name and found.get("state") == "ready" and "unready" not in found:
                        return True
        return False

    async def _deregister(self, kept: Sequence[Lease]) -> None:
        """Leave the queue, and hand back all but some leases."""
        try:
            async with asyncio.timeout(LAST_WRITES_S):
                await self._broker.disown(self.name, kept)
                hit(Point.BEFORE_CHECK_OUT)
                await self._broker.deregister(self.name)
        except (TimeoutError, StreamfleetError) as error:
            log.warning("left_without_redis", error=str(error))

    async def _wait_for_running(self, failed: asyncio.Task[str]) -> None:
        hurry = asyncio.create_task(self._hurry.wait())
        idle = asyncio.create_task(self._dispatcher.idle())
        await asyncio.wait(
            {idle, hurry, failed}, timeout=self._settings.drain_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        hurry.cancel()
        idle.cancel()

    async def _beat(self) -> None:
        while True:
            self._pulse.beat()
            self._batches.append(min(self._slots, self._in_flight.admitted().sequences))
            if self._state in ("ready", "unfit"):
                self._state = "ready" if self._dispatcher.fit else "unfit"
                self._dispatcher.heed_breaker()
                self._see_capacity()
            await self._clock.sleep(BEAT_S)


async def _raise_first(errors: asyncio.Queue[UnknownProtocol]) -> None:
    raise await errors.get()
