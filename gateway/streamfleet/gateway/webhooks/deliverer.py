"""Delivers webhooks: any gateway takes those that are due. If it dies, another takes them when its lease ends.

`Deliverer` takes deliveries from Redis, sends them through `Sender`, and records each outcome in Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata

import httpx
import structlog
from standardwebhooks.webhooks import Webhook

from streamfleet.common.clock import Clock
from streamfleet.common.errors import StreamfleetError
from streamfleet.gateway import metrics
from streamfleet.gateway.broker.base import new_owner
from streamfleet.gateway.broker.webhooks import WebhookBroker
from streamfleet.gateway.webhook_messages import Delivery, Ending, Message, Reason, Settlement
from streamfleet.gateway.webhooks.retry_policy import Answer, RetryPolicy, decide, give_up_unattempted
from streamfleet.gateway.webhooks.sender import Sender
from streamfleet.gateway.webhooks.signing import Secret, active_secrets, read_secrets
from streamfleet.gateway.webhooks.targets import host_of

log = structlog.get_logger(__name__)
LOOK_MS = 1_000
"""Longest time between two looks for webhooks that are due by time, or whose lease ended (as in webhook_take.lua)."""
MOST_AT_ONCE = 64
PER_HOST = 4
"""Attempts of one gateway at once at one host: enough for a host that answers, and little load for one that is down."""
WAITING_PER_SLOT = 8
PARKED_MS = (2_000, 4_000)
"""Pause of a delivery whose host has too many waiting. It counts as no attempt, and lets other hosts proceed."""
TROUBLE_S = 1.0


@dataclass(frozen=True, slots=True)
class ConcurrencyLimits:
    """Limits of one process.

    Attributes:
        together: attempts at once; each has a connection of its own, so this bounds open files.
        per_host: attempts at once to one host.
    """

    together: int = 128
    per_host: int = PER_HOST

    @property
    def most_held(self) -> int:
        """Most deliveries that this process holds: more than may be sent at once, so that slow hosts leave some."""
        return 4 * self.together


class HostSlots:
    """Slots for each host, so that a slow receiver delays only itself; a host without webhooks needs no memory.

    Args:
        per_host: slots of one host.
        per_host_waiting: most webhooks that wait for a slot of one host.
        together: slots of all hosts together.
        waiting: most webhooks that wait, for all hosts together.
    """

    def __init__(self, per_host: int, per_host_waiting: int, together: int, waiting: int) -> None:
        self._per_host, self._most, self._most_waiting = per_host, per_host + per_host_waiting, waiting
        self._together = asyncio.Semaphore(together)
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._asking: dict[str, int] = {}

    def crowded(self, host: str) -> bool:
        """True if another webhook for this host would have to wait, and no more may wait, for this host or in total."""
        asking = self._asking.get(host, 0)
        waiting = sum(max(0, each - self._per_host) for each in self._asking.values())
        return asking >= self._most or (asking >= self._per_host and waiting >= self._most_waiting)

    @asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """Holds a slot of this host; slots are given in the order of the calls."""
        self._asking[host] = self._asking.get(host, 0) + 1
        slots = self._slots.setdefault(host, asyncio.Semaphore(self._per_host))
        try:
            async with slots, self._together:
                yield
        finally:
            self._asking[host] -= 1
            if not self._asking[host]:
                del self._asking[host], self._slots[host]


class Deliverer:
    """Deliveries of one process.

    Args:
        broker: has its own connection, because it blocks.
        sender: sends requests.
        retry_policy: number and times of attempts.
        limits: limits of concurrency.
        clock: the time.
    """

    def __init__(
        self,
        broker: WebhookBroker,
        sender: Sender,
        retry_policy: RetryPolicy,
        limits: ConcurrencyLimits,
        clock: Clock,
    ) -> None:
        self._broker, self._sender, self._retry_policy, self._limits = broker, sender, retry_policy, limits
        self._clock, self._name, self._chance = clock, new_owner(), random.random
        self._slots = HostSlots(
            limits.per_host, limits.per_host * WAITING_PER_SLOT, limits.together, 2 * limits.together
        )
        self._held: dict[asyncio.Task[None], Delivery] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._stopping = False
        self._loop: asyncio.Task[None] | None = None
        self._agent = f"streamfleet/{metadata.version('streamfleet')}"

    def start(self) -> None:
        """Begin to deliver."""
        self._loop = asyncio.get_running_loop().create_task(self._deliver_forever())

    async def stop(self, within_s: float) -> None:
        """Take no more; finish attempts within `within_s`; release the rest at once, uncounted."""
        self._stopping = True
        self._freed.set()
        if self._loop is not None:
            while not self._loop.done():
                with contextlib.suppress(StreamfleetError):
                    await self._broker.unblock()
                await asyncio.wait([self._loop], timeout=0.2)
        for task in set(self._held) - self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running), timeout=within_s)
        left = dict(self._held)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        for delivery in (delivery for task, delivery in left.items() if task.cancelled()):
            await self._end(delivery, Settlement(Ending.BACK))

    async def _deliver_forever(self) -> None:
        told = ""
        while not self._stopping:
            try:
                await self._step()
                told = ""
            except StreamfleetError as error:
                if str(error) != told:  # an outage is one line, not one a second
                    told = str(error)
                    log.warning("webhooks_waiting_for_redis", reason=told)
                await self._clock.sleep(TROUBLE_S)

    async def _step(self) -> None:
        room = min(MOST_AT_ONCE, self._limits.most_held - len(self._held))
        if room <= 0:
            self._freed.clear()
            await self._freed.wait()
            return
        taken = await self._broker.take(self._name, room)
        metrics.WEBHOOKS_OUTSTANDING.set(taken.outstanding)
        for delivery in taken.deliveries:
            task = asyncio.get_running_loop().create_task(self._deliver(delivery, self._clock.monotonic()))
            self._held[task] = delivery
            task.add_done_callback(self._forget)
        if len(taken.deliveries) < room and not self._stopping:
            await self._broker.wait(taken.last, LOOK_MS if taken.next_ms is None else min(LOOK_MS, taken.next_ms))

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._freed.set()
        if task.cancelled():
            return
        self._held.pop(task, None)
        if (error := task.exception()) is not None:
            log.error("webhook_delivery_broke", error=type(error).__name__, exc_info=error)

    async def _deliver(self, delivery: Delivery, taken_at_s: float) -> None:
        message = delivery.message
        if message is None:
            text = "what Redis holds of it cannot be read: somebody changed it"
            await self._end(delivery, Settlement(Ending.DEAD, reason=Reason.REFUSED, error=text))
            return
        host = _host(message)
        if self._slots.crowded(host):
            await self._end(delivery, self._postponed())
            return
        async with self._slots.slot(host):
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - this is always inside a task
            self._running.add(task)
            # After so long a wait, its lease could end before the attempt does.
            if (self._clock.monotonic() - taken_at_s) * 2_000 > self._broker.limits.lease_ms:
                await self._end(delivery, self._postponed())
                return
            await self._attempt(delivery, message)

    async def _attempt(self, delivery: Delivery, message: Message) -> None:
        policy = self._retry_policy
        ending = give_up_unattempted(delivery.attempt, message.since_ms, self._clock.now_ms(), policy)
        if ending is None:
            answer = await self._send(message)
            now_ms, chance = self._clock.now_ms(), self._chance()
            ending = decide(answer, delivery.attempt, message.since_ms, now_ms, policy, chance, delivery.refusals)
        await self._end(delivery, ending)

    async def _send(self, message: Message) -> Answer:
        now_ms = self._clock.now_ms()
        keys = active_secrets(read_secrets(await self._broker.secrets(message.tenant)), now_ms)
        if not keys:
            return Answer(error="there is no secret to sign it with: `streamfleet gateway webhooks secret create`")
        now_s = now_ms // 1000
        headers = {
            "content-type": "application/json",
            "user-agent": self._agent,
            "webhook-id": message.id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signatures(keys, message.id, now_s, message.body),
        }
        return await self._sender.post(message.url, headers, message.body.encode(), message.tenant)

    async def _end(self, delivery: Delivery, ending: Settlement) -> None:
        """Record the outcome. If Redis cannot be reached, the lease ends and the webhook is delivered again."""
        try:
            written = await self._broker.settle(delivery, ending)
        except StreamfleetError as error:
            log.warning("webhook_not_settled", webhook_id=delivery.id, ending=ending.ending, reason=str(error))
            return
        metrics.WEBHOOK_ATTEMPTS.labels(ending.ending if written else metrics.WEBHOOK_LOST).inc()
        if not written:
            log.warning("webhook_lease_lost", webhook_id=delivery.id, attempt=delivery.attempt)
            return
        self._report(delivery, ending)

    def _report(self, delivery: Delivery, ending: Settlement) -> None:
        """Log and count the outcome, without the URL: its path and query may be secrets of the receiver."""
        message = delivery.message
        about = {"webhook_id": delivery.id, "attempt": delivery.attempt, "host": _host(message) if message else None}
        if ending.ending is Ending.DELIVERED:
            if message is not None:
                metrics.WEBHOOK_DELIVERED.observe(max(0, self._clock.now_ms() - message.since_ms) / 1000)
            log.info("webhook_delivered", status=ending.status, **about)
        elif ending.ending is Ending.DEAD:
            metrics.WEBHOOKS_DEAD.labels(ending.reason).inc()
            log.warning("webhook_dead", reason=ending.reason, error=ending.error, **about)
        elif ending.ending is Ending.LATER or ending.error:
            log.info("webhook_postponed", error=ending.error, delay_ms=ending.delay_ms, **about)

    def _postponed(self) -> Settlement:
        least, most = PARKED_MS
        return Settlement(Ending.BACK, round(least + (most - least) * self._chance()))


def signatures(keys: Sequence[Secret], message_id: str, timestamp_s: int, body: str) -> str:
    """Returns the header `webhook-signature`: one signature for each secret, of which a receiver needs one."""
    moment = datetime.fromtimestamp(timestamp_s, UTC)
    return " ".join(Webhook(secret.text).sign(message_id, moment, body) for secret in keys)


def _host(message: Message) -> str:
    try:
        return host_of(httpx.URL(message.url))
    except httpx.InvalidURL:
        return ""
