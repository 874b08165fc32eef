"""Every gateway runs batches: it takes those that nobody has, and keeps them for as long as it renews their leases."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Coroutine
from typing import Any

import structlog

from streamfleet.common.batch_records import BatchStatus
from streamfleet.common.broker.gateway_batches import BatchBroker, Taken
from streamfleet.common.errors import BrokerUnavailable, StreamfleetError
from streamfleet.gateway.batches import metrics
from streamfleet.gateway.batches.ledger import BatchLost
from streamfleet.gateway.batches.run import NotNow, Run, Tools
from streamfleet.gateway.batches.running import Tell, run_to_the_end

log = structlog.get_logger(__name__)
LOOK_S = 1.0
LOOK_AT = 50
AGAIN_MS, LATEST_AGAIN_MS, STUMBLED_MS = 1_000, 30_000, 5_000
LEAVE_S = 2.0
_CANCELLABLE = frozenset({BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS})


class Runner:
    """Takes batches and runs them. Start it, and close it: its batches are then anybody's, at once.

    Args:
        tools: to run batches with.
        tell: tells whoever asked for it of a batch's end.
    """

    def __init__(self, tools: Tools, tell: Tell) -> None:
        self._tools, self._tell = tools, tell
        self._broker: BatchBroker = tools.broker
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._nudged = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._interrupted: dict[str, int] = {}

    @property
    def running(self) -> int:
        """How many batches this gateway has."""
        return len(self._runs)

    def start(self) -> None:
        """From now on, take what nobody has."""
        if self._tools.settings.gateway_batches_at_once:
            self._looking = asyncio.get_running_loop().create_task(self._look_forever())

    def nudge(self) -> None:
        """There is one to take."""
        self._nudged.set()

    async def close(self) -> None:
        """Take none any more, and hand back those that it has."""
        tasks = [task for task in (self._looking, *self._runs.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_forever(self) -> None:
        away = False
        while True:
            self._nudged.clear()
            try:
                await self._take_some()
                away = False
            except StreamfleetError as error:
                if not away:
                    log.warning("no_batches_taken", error=str(error))
                away = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._nudged.wait()

    async def _take_some(self) -> None:
        settings = self._tools.settings
        if len(self._runs) >= settings.gateway_batches_at_once:
            return
        for batch_id in await self._broker.free_batches(LOOK_AT):
            if len(self._runs) >= settings.gateway_batches_at_once:
                return
            if batch_id in self._runs:
                continue  # its lease was missed, and it does not know yet
            taken = await self._broker.take_batch(batch_id, self._owner, settings.gateway_batch_lease_ms)
            if taken is not None:
                metrics.took(taken.epoch)
                task = asyncio.get_running_loop().create_task(self._run(taken))
                self._runs[batch_id] = task
                task.add_done_callback(lambda _, batch_id=batch_id: self._ended(batch_id))  # type: ignore[misc]

    def _ended(self, batch_id: str) -> None:
        del self._runs[batch_id]
        self.nudge()

    async def _run(self, taken: Taken) -> None:
        batch_id, epoch = taken.record.id, taken.epoch
        log.info("batch_taken", batch=batch_id, status=taken.record.status.value, epoch=epoch)
        after_ms, stumbled = 0, False
        try:
            await self._keep_while_running(taken)
            self._interrupted.pop(batch_id, None)
            metrics.RUNS_ENDED.labels(metrics.ENDED).inc()
            return
        except BatchLost as error:
            log.warning("batch_lost", batch=batch_id, reason=str(error))
            metrics.RUNS_ENDED.labels(metrics.LOST).inc()
            return
        except NotNow as wait:
            log.info("batch_waits", batch=batch_id, reason=str(wait))
            after_ms, why = wait.after_ms, metrics.WAITS
        except StreamfleetError as error:
            log.warning("batch_interrupted", batch=batch_id, error=f"{type(error).__name__}: {error}")
            after_ms, why = self._pause_ms(batch_id), metrics.INTERRUPTED
        except Exception:
            log.exception("batch_stumbled", batch=batch_id)
            after_ms, stumbled, why = STUMBLED_MS, True, metrics.STUMBLED
        except asyncio.CancelledError:
            metrics.RUNS_ENDED.labels(metrics.BACK).inc()
            await asyncio.shield(self._release(taken, 0))
            raise
        metrics.RUNS_ENDED.labels(why).inc()
        await self._release(taken, after_ms, stumbled=stumbled)

    def _pause_ms(self, batch_id: str) -> int:
        """Longer each time: whoever takes it next reads its input from the beginning."""
        times = self._interrupted.get(batch_id, 0)
        self._interrupted[batch_id] = times + 1
        return min(LATEST_AGAIN_MS, AGAIN_MS << min(times, 5))

    async def _release(self, taken: Taken, after_ms: int, *, stumbled: bool = False) -> None:
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._broker.release_batch(taken.record.id, taken.epoch, after_ms, stumbled=stumbled)
        except (StreamfleetError, TimeoutError) as error:
            log.warning("batch_not_released", batch=taken.record.id, error=str(error))  # its lease ends by itself

    async def _keep_while_running(self, taken: Taken) -> None:
        batch_id = taken.record.id
        loop = asyncio.get_running_loop()
        ahead_ms = await self._broker.now_ms() - loop.time() * 1000
        run = Run(self._tools, taken, await self._broker.done_lines(batch_id), ahead_ms)
        await _first_of(run_to_the_end(run, self._tell), self._renew(run))

    async def _renew(self, run: Run) -> None:
        """Renew the lease until that fails; whatever callers did to the batch is heard of so."""
        lease_ms = self._tools.settings.gateway_batch_lease_ms
        heard_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(min(1.0, lease_ms / 4000))
            try:
                status = await self._broker.renew_batch(run.batch.id, run.epoch, lease_ms)
            except BrokerUnavailable:
                if asyncio.get_running_loop().time() - heard_s > lease_ms / 1000:
                    raise
                continue
            if status is None:
                raise BatchLost("it was taken while this gateway was silent for a whole lease")
            heard_s = asyncio.get_running_loop().time()
            if status is BatchStatus.CANCELLING and run.status in _CANCELLABLE:
                run.status = status  # nothing else moves a batch that this gateway has


async def _first_of(work: Coroutine[Any, Any, None], company: Coroutine[Any, Any, None]) -> None:
    """Do the work; stop it as soon as its company ends. Raises what either raises."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work), loop.create_task(company)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    (tasks[0] if tasks[0] in done else tasks[1]).result()
