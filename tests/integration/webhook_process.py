"""One process that delivers webhooks, for a test to kill: as a gateway does, and nothing else."""

from __future__ import annotations

import asyncio
import sys

from streamfleet.common import logs
from streamfleet.common.settings import LogSettings, QueueSettings, load
from streamfleet.common.settings_gateway import WebhookSettings
from streamfleet.gateway.webhooks.service import Webhooks, open_webhook_broker


async def deliver(redis_url: str) -> None:
    """Deliver until killed."""
    settings = load(WebhookSettings)
    webhooks = Webhooks(open_webhook_broker(load(QueueSettings, redis_url=redis_url), settings), settings)
    webhooks.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    logs.configure(load(LogSettings))
    asyncio.run(deliver(sys.argv[1]))
