"""All parts of one gateway process, made from its settings, and the order in which they close.

`Gateway` opens connections to Redis through its parts, at first use. Handlers reach it with `gateway_of`.

`TenantRules` brings weights and limits of tenants from API keys into the queues. Each key that lets a request in passes
there. The values that it names are written where `streamfleet tenants set` writes its own. Redis keeps the newest of
all, so a gateway may write the same values again at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog
from starlette.requests import Request

from streamfleet.common.broker.types import TenantRule
from streamfleet.common.clock import Clock, SystemClock
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.settings import QueueSettings
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.api_keys import GatewayNames, KeyRecord
from streamfleet.gateway.authentication import Authenticator
from streamfleet.gateway.batches.service import Batching
from streamfleet.gateway.body import Bodies
from streamfleet.gateway.broker.api_keys import GatewayBroker
from streamfleet.gateway.left_tries import LeftTries
from streamfleet.gateway.models import Models
from streamfleet.gateway.queues import Queues, open_connection
from streamfleet.gateway.responses.service import Responses
from streamfleet.gateway.shared_counts import SharedCounts
from streamfleet.gateway.token_budget import TokenBudget
from streamfleet.gateway.ui.session import UiSession
from streamfleet.gateway.webhooks.deliverer import PER_HOST, ConcurrencyLimits
from streamfleet.gateway.webhooks.service import Webhooks, open_webhook_broker

log = structlog.get_logger(__name__)
FINISHING_S = 5.0
AGAIN_S = 60.0
"""Time after which values are written again, in case a failover has lost them, or the writing failed."""


def open_gateway_broker(queue: QueueSettings, settings: GatewaySettings) -> GatewayBroker:
    """Returns a broker for the gateways' own keys in Redis. Sends nothing yet.

    Raises:
        SettingsError: the Redis URL cannot be parsed.
    """
    return GatewayBroker(
        open_connection(queue),
        GatewayNames(queue.key_prefix),
        settings.gateway_requests_per_minute,
        settings.gateway_tokens_per_minute,
    )


class Gateway:
    """The parts of one process. Make it on the event loop that serves.

    Attributes:
        settings, queue_settings: as given.
        queues: clients by queue.
        models: model names and their queues.
        batching: files, batches and the simple service.
        responses: stored responses.
        webhooks: announce the ends of batches, jobs and background responses.
        authenticator: authenticates callers, and applies their rate limits.
        budget: tokens that callers may use.
        left_tries: requests that their callers' next tries take over.
        bodies: bytes of the bodies that the gateway holds.
        answers: bytes of the large answers that it holds for their readers.
        ui_session: state of the operators' page.
        stopping: done when waiting callers have to be sent to another gateway. All wait for it: never cancel it.
        draining: True after SIGTERM: no new caller may be sent here.
    """

    def __init__(
        self, queue_settings: QueueSettings, settings: GatewaySettings, shared: SharedCounts | None = None
    ) -> None:
        self.queue_settings, self.settings = queue_settings, settings
        self._broker = open_gateway_broker(queue_settings, settings)
        keys = self._broker if self.keys_on else None
        self.clock = SystemClock()
        self.queues = Queues(queue_settings)
        self.bodies = Bodies(settings.gateway_max_held_bytes, shared=shared)
        self.answers = Bodies(settings.gateway_max_held_bytes, answers=True, shared=shared)
        self.models = Models(settings.routes, queue_settings.queue, self.queues.workers, self.clock)
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left_tries = LeftTries(self._broker, self.clock, self.stopping)
        self.budget = TokenBudget(keys, self.queues, queue_settings.result_ttl_ms, self.models.context)
        rules = TenantRules(self.models.queues, self.queues, self.clock, self.run_in_background)
        self.authenticator = Authenticator(keys, self.clock, rules.follow, settings.gateway_origins)
        at_once = ConcurrencyLimits(per_host=(shared or SharedCounts()).part(PER_HOST))
        self.webhooks = Webhooks(open_webhook_broker(queue_settings, settings), settings, limits=at_once)
        self.batching = Batching(queue_settings, settings, self.queues, self.models, self.webhooks, self.budget, shared)
        stores = settings.gateway_store_responses == "on"
        self.responses = Responses(self.batching.files, self.queues, self.webhooks, self.clock, stores=stores)
        self.ui_session = UiSession(queue_settings, settings, self.clock)
        self.draining = False
        self._background_tasks: set[asyncio.Task[None]] = set()

    @property
    def keys_on(self) -> bool:
        """True if callers need an API key."""
        return self.settings.gateway_keys == "on"

    def run_in_background(self, work: Coroutine[Any, Any, object], what: str) -> None:
        """Run something in the background; log it if it fails."""
        task = asyncio.get_running_loop().create_task(_log_failure(work, what))
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def stop(self) -> None:
        """Tell all waiting callers to ask another gateway."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    async def close(self) -> None:
        """Finish background tasks, then close all parts."""
        self.stop()
        if self._background_tasks:
            await asyncio.wait(set(self._background_tasks), timeout=FINISHING_S)
        await self.budget.close()
        await self.responses.close()
        await self.batching.close()
        await self.webhooks.stop(FINISHING_S)
        await self.ui_session.close()
        await self.queues.close()
        await self.authenticator.close()
        await self._broker.close()


def gateway_of(request: Request) -> Gateway:
    """Returns the parts of the process, for a handler."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def _log_failure(work: Coroutine[Any, Any, object], what: str) -> None:
    try:
        await work
    except StreamfleetError as error:
        log.warning("background_task_failed", errand=what, error=str(error))


class TenantRules:
    """Writes what keys name, in the background.

    Args:
        names: queues of this gateway.
        queues: their clients.
        clock: for the time of the next writing.
        run: runs something in the background, and logs its failure.
    """

    def __init__(
        self,
        names: Sequence[str],
        queues: Queues,
        clock: Clock,
        run: Callable[[Coroutine[Any, Any, object], str], None],
    ) -> None:
        self._names, self._queues, self._clock, self._run = names, queues, clock, run
        self._written: dict[str, tuple[int, float]] = {}
        """By id of the key: when its values were given, and when they are written again."""

    def follow(self, record: KeyRecord) -> None:
        """Write the values that a key names, unless that was done lately."""
        rule, now_s = record.rule, self._clock.monotonic()
        if rule is None:
            return
        since_ms, again_s = self._written.get(record.id, (0, 0.0))
        if rule.set_ms == since_ms and now_s < again_s:
            return
        self._written[record.id] = (rule.set_ms, now_s + AGAIN_S)
        self._run(self._write(record.tenant, rule), "set a tenant's weight and limit")

    async def _write(self, tenant: str, rule: TenantRule) -> None:
        for name in self._names:
            await (await self._queues.client(name)).broker.set_tenant(tenant, rule)
