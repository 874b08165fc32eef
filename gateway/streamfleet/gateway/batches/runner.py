"""Every gateway runs batches: it takes those that nobody has, and keeps them for as long as it renews their leases.

While others wait for its slots, a batch that only waits itself is parked: it is handed back for a while, with its
requests in their queue, and its results are there when it is taken again. So is one whose tenant or queue has too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from streamfleet.common.batch_records import BatchStatus
from streamfleet.common.broker.gateway_batches import BatchBroker, Contender, Taken
from streamfleet.common.errors import BrokerUnavailable, StreamfleetError
from streamfleet.gateway.batches import metrics
from streamfleet.gateway.batches.ledger import BatchLost
from streamfleet.gateway.batches.run import NotNow, Run, Tools
from streamfleet.gateway.batches.running import Tell, run_to_the_end
from streamfleet.gateway.batches.turns import gives_way, next_in_turn, waits_too_long

log = structlog.get_logger(__name__)
LOOK_S = 1.0
LOOK_AT = 200
PARKED_MS = 20_000
AGAIN_MS, LATEST_AGAIN_MS, STUMBLED_MS = 1_000, 30_000, 5_000
LEAVE_S = 2.0
_CANCELLABLE = frozenset({BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS})


@dataclass(slots=True)
class _Held:
    """A batch that has a slot; `run` once its progress was read, `leaves` once it is to give its slot up."""

    contender: Contender
    task: asyncio.Task[None]
    run: Run | None = None
    leaves: NotNow | None = None


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
        self._runs: dict[str, _Held] = {}
        self._skip = 0
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
        running = (held.task for held in self._runs.values())
        tasks = [task for task in (self._looking, *running) if task is not None]
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
        free = await self._broker.free_batches(LOOK_AT, self._skip)
        # In the table already: its lease was missed, and it does not know yet.
        waiting = [one for one in free if one.id not in self._runs]
        while (one := next_in_turn(waiting, self._running())) is not None:
            if len(self._runs) >= self._tools.settings.gateway_batches_at_once:
                if await self._make_room(one):
                    return  # for this one: it is not skipped at the next look
                break
            waiting.remove(one)
            await self._take(one)
        # The next ones at the next look: who has many that wait does not hide those of others.
        self._skip = self._skip + LOOK_AT if len(free) == LOOK_AT else 0

    async def _take(self, one: Contender) -> None:
        taken = await self._broker.take_batch(one.id, self._owner, self._tools.settings.gateway_batch_lease_ms)
        if taken is not None:
            metrics.took(taken.epoch)
            task = asyncio.get_running_loop().create_task(self._run(taken))
            self._runs[one.id] = _Held(one, task)
            task.add_done_callback(lambda _: self._ended(one.id))

    def _running(self) -> list[Contender]:
        return [held.run.contender if held.run is not None else held.contender for held in self._runs.values()]

    async def _make_room(self, one: Contender) -> bool:
        """Have a batch give up its slot for another, where one should."""
        if any(held.leaves for held in self._runs.values()):
            return True
        unfair = gives_way(self._running(), one)
        if unfair is not None:
            self._leave(self._runs[unfair.id], "its slot goes to another tenant's or another queue's batch", 0)
            return True
        for held in list(self._runs.values()):
            if held.run is not None and _differ(held.run.contender, one) and await self._only_waits(held.run):
                left_ms = held.run.batch.deadline_ms - held.run.now_ms(asyncio.get_running_loop().time())
                self._leave(held, "its requests wait for workers", max(0, min(PARKED_MS, round(left_ms))))
                return True
        return False

    async def _only_waits(self, run: Run) -> bool:
        if run.waits_since_s is None:
            return False
        for_s = asyncio.get_running_loop().time() - run.waits_since_s
        if not waits_too_long(for_s, served=False):
            return False
        views = [await self._tools.queues.workers(queue) for queue in run.contender.queues]
        return waits_too_long(for_s, served=any(worker.alive for each in views for worker in each))

    def _leave(self, held: _Held, reason: str, after_ms: int) -> None:
        held.leaves = NotNow(reason, after_ms)
        held.task.cancel()

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
            leaves = self._runs[batch_id].leaves
            if leaves is not None:
                log.info("batch_waits", batch=batch_id, reason=str(leaves))
            metrics.RUNS_ENDED.labels(metrics.WAITS if leaves else metrics.BACK).inc()
            await asyncio.shield(self._release(taken, leaves.after_ms if leaves else 0))
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
        self._runs[batch_id].run = run
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


def _differ(one: Contender, other: Contender) -> bool:
    """True if the other may get further where this one does not, or is another tenant's."""
    return (one.tenant, one.queues) != (other.tenant, other.queues)


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
