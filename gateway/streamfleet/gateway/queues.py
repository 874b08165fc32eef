"""Clients of the queues that this gateway puts requests into. Each is opened at first use and kept.

A queue's name goes in, an open `Client` comes out. All clients have the same settings but for that name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamfleet.common.settings import QueueSettings
from streamfleet.operator.fleet import WorkerView, worker_views
from streamfleet.producer.client import Client

PATIENCE_S = 2.0
"""How long an operation waits for an unreachable Redis: short, so that callers soon hear of it and try again."""


class Queues:
    """Open clients by queue.

    Args:
        settings: for all queues; the name is replaced.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._clients: dict[str, Client] = {}
        self._opening = asyncio.Lock()

    async def client(self, queue: str) -> Client:
        """Returns the client of a queue.

        Raises:
            BrokerUnavailable: Redis cannot be reached.
        """
        client = self._clients.get(queue)
        if client is None:
            async with self._opening:
                client = self._clients.get(queue)
                if client is None:
                    client = Client(queue=queue, settings=self._settings, patience_s=PATIENCE_S)
                    await client.__aenter__()
                    self._clients[queue] = client
        return client

    async def workers(self, queue: str) -> Sequence[WorkerView]:
        """Returns the workers of a queue as they describe themselves. Raises like `client`."""
        broker = (await self.client(queue)).broker
        return worker_views(await broker.workers(), {}, await broker.now_ms())

    async def ping(self, queue: str) -> None:
        """Check that Redis answers. Raises like `client`."""
        await (await self.client(queue)).broker.connection.ping()

    async def close(self) -> None:
        """Close all clients; their requests go on."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()
