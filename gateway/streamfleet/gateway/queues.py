"""Clients of the queues that this gateway puts requests into. Each is opened at first use and kept.

A queue's name goes in, an open `Client` comes out. All clients have the same settings but for that name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from streamfleet.common.connection import Connection
from streamfleet.common.settings import QueueSettings
from streamfleet.operator.fleet import WorkerView, worker_views
from streamfleet.producer.client import Client

T = TypeVar("T")
PATIENCE_S, ANSWER_S = 2.0, 1.2
"""Most seconds that an operation waits for a Redis that cannot be reached, or that hangs: few, so that callers soon
hear of it and try again. The first try leaves time for a second one, over a new connection."""


def open_connection(settings: QueueSettings) -> Connection:
    """Returns a connection with this patience. Raises SettingsError if the Redis URL cannot be read."""
    return Connection.open(settings, PATIENCE_S, ANSWER_S)


class Shared(Generic[T]):
    """Work that is done once for all who ask for it meanwhile: they get the same result, or the same error.

    With a lock they would do it one after the other, and each would wait for a Redis that hangs.
    """

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[T]] = {}

    async def run(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work of this name, or wait for it if it is being done."""
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda ended: self._end(name, ended))
        return await asyncio.shield(task)

    async def finish(self) -> None:
        """Wait until nothing is being done."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _end(self, name: str, ended: asyncio.Task[T]) -> None:
        del self._running[name]
        if not ended.cancelled():
            ended.exception()  # seen, also where all who asked have left


class Queues:
    """Open clients by queue.

    Args:
        settings: for all queues; the name is replaced.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._clients: dict[str, Client] = {}
        self._opening: Shared[Client] = Shared()

    async def client(self, queue: str) -> Client:
        """Returns the client of a queue.

        Raises:
            BrokerUnavailable: Redis cannot be reached.
            UnknownProtocol: this version does not know the queue's protocol.
        """
        client = self._clients.get(queue)
        return client if client is not None else await self._opening.run(queue, lambda: self._open(queue))

    async def workers(self, queue: str) -> Sequence[WorkerView]:
        """Returns the workers of a queue as they describe themselves. Raises like `client`."""
        broker = (await self.client(queue)).broker
        return worker_views(await broker.workers(), {}, await broker.now_ms())

    async def ping(self, queue: str) -> None:
        """Check that Redis answers, and has a queue that this version can serve. Raises like `client`."""
        broker = (await self.client(queue)).broker
        await broker.connection.ping()
        await broker.refresh_configuration()

    async def _open(self, queue: str) -> Client:
        client = Client(queue=queue, settings=self._settings, patience_s=PATIENCE_S, answer_timeout_s=ANSWER_S)
        await client.__aenter__()
        self._clients[queue] = client
        return client

    async def close(self) -> None:
        """Close all clients, those that are being opened too; their requests go on."""
        await self._opening.finish()
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()
