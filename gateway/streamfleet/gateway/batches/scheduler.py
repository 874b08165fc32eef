"""Takes batches and runs them: every gateway takes free batches and keeps them while it renews their leases.

A batch that only waits for results gives up its slot if others wait for one: it is released for a while, its requests
stay in their queue, and its results are there when it is taken again. A batch whose tenant or queue has more than its
share of the slots does the same.

Slots are shared evenly between tenants, then between queues. A batch with unchecked lines counts for the queue that has
most slots, because its models are unknown.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from streamfleet.common.errors import BrokerUnavailable, StreamfleetError
from streamfleet.gateway.background import Repeated
from streamfleet.gateway.batch_records import BatchStatus
from streamfleet.gateway.batches.claimed_batch import BatchDeferred, ClaimedBatch, Dependencies
from streamfleet.gateway.batches.ledger import BatchLost
from streamfleet.gateway.batches.lifecycle import Announce, run_batch
from streamfleet.gateway.broker.base import new_owner
from streamfleet.gateway.broker.batches import BatchBroker, Contender, Taken

log = structlog.get_logger(__name__)
LEASE_MS = 15_000
"""Silence after which a gateway loses its batches to others: it renews every second, so that many answers are late."""
POLL_S = 1.0
POLL_COUNT = 200
PARKED_MS = 20_000
RETRY_MS, LONGEST_RETRY_MS, STUMBLED_MS = 1_000, 30_000, 5_000
RELEASE_TIMEOUT_S = 2.0
_CANCELLABLE = frozenset({BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS})
UNSERVED_S, STALLED_S = 2.0, 30.0


@dataclass(slots=True)
class _Claim:
    """A batch that has a slot.

    Attributes:
        state: set when its progress was read.
        preempted: set when it has to give up its slot.
    """

    contender: Contender
    task: asyncio.Task[None]
    state: ClaimedBatch | None = None
    preempted: BatchDeferred | None = None


class Scheduler:
    """Takes batches and runs them. After `close`, other gateways can take them at once.

    Args:
        dependencies: parts of the gateway.
        announce: announces the end of a batch.
    """

    def __init__(self, dependencies: Dependencies, announce: Announce) -> None:
        self._dependencies, self._announce = dependencies, announce
        self._broker: BatchBroker = dependencies.broker
        self._owner = new_owner()
        self._claims: dict[str, _Claim] = {}
        self._skip = 0
        self._polling = Repeated(self._claim_free_batches, POLL_S, "no_batches_taken")
        self._interrupted: dict[str, int] = {}

    @property
    def running(self) -> int:
        """Number of batches that this gateway runs."""
        return len(self._claims)

    def running_of(self, tenant: str) -> int:
        """Number of a tenant's batches among them."""
        return sum(claim.contender.tenant == tenant for claim in self._claims.values())

    def start(self) -> None:
        """Take free batches from now on."""
        if self._dependencies.settings.gateway_batches_at_once:
            self._polling.start()

    def wake(self) -> None:
        """Look for free batches now."""
        self._polling.wake()

    async def close(self) -> None:
        """Take no more batches, and release those that run."""
        await self._polling.close()
        tasks = [claim.task for claim in self._claims.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _claim_free_batches(self) -> None:
        free = await self._broker.free_batches(POLL_COUNT, self._skip)
        # A batch that still runs here may be free in Redis: its lease ended, and its task has not noticed yet.
        waiting = [one for one in free if one.id not in self._claims]
        while (one := choose_next(waiting, self._running())) is not None:
            if len(self._claims) >= self._dependencies.settings.gateway_batches_at_once:
                if await self._make_room(one):
                    return  # the next look has to see this batch again
                break
            waiting.remove(one)
            await self._claim(one)
        # Skip those seen, so that one tenant's many waiting batches do not hide those of others.
        self._skip = self._skip + POLL_COUNT if len(free) == POLL_COUNT else 0

    async def _claim(self, one: Contender) -> None:
        taken = await self._broker.take_batch(one.id, self._owner, LEASE_MS)
        if taken is not None:
            task = asyncio.get_running_loop().create_task(self._run(taken))
            self._claims[one.id] = _Claim(one, task)
            task.add_done_callback(lambda _: self._forget(one.id))

    def _running(self) -> list[Contender]:
        return [
            claim.state.contender if claim.state is not None else claim.contender for claim in self._claims.values()
        ]

    async def _make_room(self, one: Contender) -> bool:
        """Make a batch give up its slot for this one, if one should. Returns True if a slot will be free."""
        if any(claim.preempted for claim in self._claims.values()):
            return True
        victim = choose_victim(self._running(), one)
        if victim is not None:
            self._preempt(self._claims[victim.id], "its slot goes to another tenant's or another queue's batch", 0)
            return True
        for claim in list(self._claims.values()):
            if claim.state is not None and _differ(claim.state.contender, one) and await self._is_stalled(claim.state):
                left_ms = claim.state.batch.deadline_ms - claim.state.now_ms(asyncio.get_running_loop().time())
                self._preempt(claim, "its requests wait for workers", max(0, min(PARKED_MS, round(left_ms))))
                return True
        return False

    async def _is_stalled(self, claimed: ClaimedBatch) -> bool:
        if claimed.waiting_since_s is None:
            return False
        for_s = asyncio.get_running_loop().time() - claimed.waiting_since_s
        if not is_stalled(for_s, served=False):
            return False
        views = [await self._dependencies.queues.workers(queue) for queue in claimed.contender.queues]
        return is_stalled(for_s, served=any(worker.alive for each in views for worker in each))

    def _preempt(self, claim: _Claim, reason: str, after_ms: int) -> None:
        claim.preempted = BatchDeferred(reason, after_ms)
        claim.task.cancel()

    def _forget(self, batch_id: str) -> None:
        del self._claims[batch_id]
        self.wake()

    async def _run(self, taken: Taken) -> None:
        batch_id, epoch = taken.record.id, taken.epoch
        log.info("batch_taken", batch=batch_id, status=taken.record.status.value, epoch=epoch)
        after_ms, stumbled = 0, False
        try:
            await self._run_under_lease(taken)
            self._interrupted.pop(batch_id, None)
            return
        except BatchLost as error:
            log.warning("batch_lost", batch=batch_id, reason=str(error))
            return
        except BatchDeferred as wait:
            log.info("batch_waits", batch=batch_id, reason=str(wait))
            after_ms = wait.after_ms
        except StreamfleetError as error:
            log.warning("batch_interrupted", batch=batch_id, error=f"{type(error).__name__}: {error}")
            after_ms = self._pause_ms(batch_id)
        except Exception:
            log.exception("batch_stumbled", batch=batch_id)
            after_ms, stumbled = STUMBLED_MS, True
        except asyncio.CancelledError:
            preempted = self._claims[batch_id].preempted
            if preempted is not None:
                log.info("batch_waits", batch=batch_id, reason=str(preempted))
            await asyncio.shield(self._release(taken, preempted.after_ms if preempted else 0))
            raise
        await self._release(taken, after_ms, stumbled=stumbled)

    def _pause_ms(self, batch_id: str) -> int:
        """A pause that grows with each interruption, because the next run reads the input from the beginning."""
        times = self._interrupted.get(batch_id, 0)
        self._interrupted[batch_id] = times + 1
        return min(LONGEST_RETRY_MS, RETRY_MS << min(times, 5))

    async def _release(self, taken: Taken, after_ms: int, *, stumbled: bool = False) -> None:
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._broker.release_batch(taken.record.id, taken.epoch, after_ms, stumbled=stumbled)
        except (StreamfleetError, TimeoutError) as error:
            log.warning("batch_not_released", batch=taken.record.id, error=str(error))  # the lease ends by itself

    async def _run_under_lease(self, taken: Taken) -> None:
        batch_id = taken.record.id
        loop = asyncio.get_running_loop()
        ahead_ms = await self._broker.now_ms() - loop.time() * 1000
        claimed = ClaimedBatch(self._dependencies, taken, await self._broker.done_lines(batch_id), ahead_ms)
        self._claims[batch_id].state = claimed
        await _run_until_first_ends(run_batch(claimed, self._announce), self._renew(claimed))

    async def _renew(self, claimed: ClaimedBatch) -> None:
        """Renew the lease until that fails. The answers also tell if a caller cancelled the batch."""
        heard_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(min(1.0, LEASE_MS / 4000))
            try:
                status = await self._broker.renew_batch(claimed.batch.id, claimed.epoch, LEASE_MS)
            except BrokerUnavailable:
                if asyncio.get_running_loop().time() - heard_s > LEASE_MS / 1000:
                    raise
                continue
            if status is None:
                raise BatchLost("it was taken while this gateway was silent for a whole lease")
            heard_s = asyncio.get_running_loop().time()
            if status is BatchStatus.CANCELLING and claimed.status in _CANCELLABLE:
                claimed.status = status  # no other process changes the status while this gateway has the batch


def _differ(one: Contender, other: Contender) -> bool:
    """True if the batches have different tenants or queues, so that one may proceed where the other waits."""
    return (one.tenant, one.queues) != (other.tenant, other.queues)


async def _run_until_first_ends(work: Coroutine[Any, Any, None], company: Coroutine[Any, Any, None]) -> None:
    """Run both until either ends, then cancel the other. Raises the error of the one that ended."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work), loop.create_task(company)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    (tasks[0] if tasks[0] in done else tasks[1]).result()


def _slots_used(one: Contender, running: Sequence[Contender]) -> tuple[int, int]:
    """Returns the number of slots of the batch's tenant, and of its queues."""
    queues = Counter(each.queues for each in running)
    most = queues[one.queues] if one.queues else max(queues.values(), default=0)
    return sum(each.tenant == one.tenant for each in running), most


def choose_next(waiting: Sequence[Contender], running: Sequence[Contender]) -> Contender | None:
    """Returns the batch for the next slot: of the tenant with fewest, then the queues with fewest, then the first."""
    return min(waiting, key=lambda each: _slots_used(each, running), default=None)


def choose_victim(running: Sequence[Contender], waiting: Contender) -> Contender | None:
    """Returns the batch that gives up its slot for a waiting one; None if that would not make the shares more even.

    Args:
        running: batches that have a slot, oldest first. The newest one loses least.
        waiting: the next batch in turn.
    """
    tenants, queues = _slots_used(waiting, running)

    def unfair(each: Contender) -> bool:
        theirs = _slots_used(each, running)
        level = each.tenant == waiting.tenant or tenants + 1 == theirs[0]
        return tenants + 1 < theirs[0] or (level and queues + 1 < theirs[1])

    return max(filter(unfair, reversed(running)), key=lambda each: _slots_used(each, running), default=None)


def is_stalled(for_s: float, *, served: bool) -> bool:
    """True if a batch that waits for results should give up its slot.

    Args:
        for_s: seconds since its last progress.
        served: True if its queues have a worker.
    """
    return for_s >= (STALLED_S if served else UNSERVED_S)
