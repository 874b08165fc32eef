"""What one gateway process has: its settings, its queues, its door, and whether it is about to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog
from starlette.requests import Request

from streamfleet.common.broker.gateway import GatewayBroker
from streamfleet.common.clock import SystemClock
from streamfleet.common.connection import Connection
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.gateway_keys import GatewayNames
from streamfleet.common.settings import QueueSettings
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.batches.service import Batching
from streamfleet.gateway.door import Door
from streamfleet.gateway.models import Models
from streamfleet.gateway.queues import PATIENCE_S, Queues
from streamfleet.gateway.token_budget import TokenBudget
from streamfleet.gateway.ui.desk import Desk
from streamfleet.gateway.webhooks.service import Webhooks, open_webhook_broker

log = structlog.get_logger(__name__)
FINISHING_S = 5.0


def open_gateway_broker(queue: QueueSettings, settings: GatewaySettings) -> GatewayBroker:
    """The gateways' own keys in Redis; nothing is sent yet.

    Raises:
        SettingsError: the Redis URL cannot be read.
    """
    return GatewayBroker(
        Connection(queue.redis_url.get_secret_value(), PATIENCE_S),
        GatewayNames(queue.key_prefix),
        settings.gateway_requests_per_minute,
        settings.gateway_tokens_per_minute,
    )


class Gateway:
    """One process's parts. Make it on the event loop that serves.

    Attributes:
        settings, queue_settings: as given.
        queues: clients by queue.
        models: which there are.
        batching: files, batches and the simple service.
        webhooks: tell of their ends.
        door: who may come in.
        budget: tokens that callers may use.
        desk: where operators sit.
        stopping: done once callers are to be told to ask elsewhere; never cancel it, all wait for it.
        draining: SIGTERM came: nobody new is to be sent here.
    """

    def __init__(self, queue_settings: QueueSettings, settings: GatewaySettings) -> None:
        self.queue_settings, self.settings = queue_settings, settings
        self._broker = open_gateway_broker(queue_settings, settings) if settings.gateway_keys == "on" else None
        self.clock = SystemClock()
        self.door = Door(self._broker, self.clock, settings.gateway_origins)
        self.queues = Queues(queue_settings)
        self.budget = TokenBudget(self._broker, self.queues, queue_settings.result_ttl_ms, self.clock)
        self.models = Models(settings.routes, queue_settings.queue, self.queues.workers, self.clock)
        self.webhooks = Webhooks(open_webhook_broker(queue_settings, settings), settings)
        self.batching = Batching(queue_settings, settings, self.queues, self.models, self.webhooks)
        self.desk = Desk(queue_settings, settings, self.clock)
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.draining = False
        self._errands: set[asyncio.Task[None]] = set()

    @property
    def keys_on(self) -> bool:
        """Whether callers need an API key."""
        return self._broker is not None

    def errand(self, work: Coroutine[Any, Any, object], what: str) -> None:
        """Do something that nobody waits for; what goes wrong is logged."""
        task = asyncio.get_running_loop().create_task(_quietly(work, what))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def stop(self) -> None:
        """Tell all who wait to ask elsewhere."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    async def close(self) -> None:
        """Finish errands, and leave."""
        if self._errands:
            await asyncio.wait(set(self._errands), timeout=FINISHING_S)
        await self.budget.close()
        await self.batching.close()
        await self.webhooks.stop(FINISHING_S)
        await self.desk.close()
        await self.queues.close()
        await self.door.close()
        if self._broker is not None:
            await self._broker.close()


def gateway_of(request: Request) -> Gateway:
    """The process's parts, for a handler."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def _quietly(work: Coroutine[Any, Any, object], what: str) -> None:
    try:
        await work
    except StreamfleetError as error:
        log.warning("errand_failed", errand=what, error=str(error))
