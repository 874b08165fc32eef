"""State of the operators' page in one process: its connections to the queues, and its cached readings of them.

`routes` asks for brokers, clients and readings here. The page has connections of its own, so that a slow look delays no
request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamfleet.common.clock import Clock
from streamfleet.common.errors import SettingsError
from streamfleet.common.settings import QueueSettings
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.errors import LIMITED, ApiError, retry_after
from streamfleet.gateway.queues import Queues
from streamfleet.gateway.ui.readings import CachedReading, QueueReader
from streamfleet.operator.broker import OperatorBroker
from streamfleet.producer.client import Client

MOST_SEARCHES = 4
"""Searches at once: each may read megabytes from Redis."""
BUSY_S = 1


class UiSession:
    """The page's connections and readings. Sends nothing before somebody opens the page.

    Args:
        queue: Redis settings.
        settings: hold the page's own Redis URL, if it has one.
        clock: for the age of a reading.

    Raises:
        SettingsError: the page's Redis URL cannot be read.
    """

    def __init__(self, queue: QueueSettings, settings: GatewaySettings, clock: Clock) -> None:
        self._queues = Queues(ui_settings(queue, settings))
        self._clock = clock
        self._readings: dict[str, CachedReading] = {}
        self._searches = 0

    async def client(self, queue: str) -> Client:
        """Returns the page's own client of a queue. Raises BrokerUnavailable."""
        return await self._queues.client(queue)

    async def broker(self, queue: str) -> OperatorBroker:
        """Returns an operator's broker on that client's connection. Raises BrokerUnavailable."""
        return OperatorBroker.of((await self._queues.client(queue)).broker)

    def reading(self, queue: str) -> CachedReading:
        """Returns the reading of a queue that all viewers share."""
        if queue not in self._readings:
            self._readings[queue] = CachedReading(QueueReader(lambda: self.broker(queue)).read, self._clock)
        return self._readings[queue]

    @contextmanager
    def search_slot(self) -> Iterator[None]:
        """Holds one of the slots for searches.

        Raises:
            ApiError: all slots are taken.
        """
        if self._searches >= MOST_SEARCHES:
            text = "too many searches run at once; try again"
            raise ApiError(429, text, "searching", LIMITED, headers=retry_after(BUSY_S))
        self._searches += 1
        try:
            yield
        finally:
            self._searches -= 1

    async def close(self) -> None:
        """Close the page's connections."""
        await self._queues.close()


def ui_settings(queue: QueueSettings, settings: GatewaySettings) -> QueueSettings:
    """Returns the queue's settings with the page's own Redis URL, if there is one.

    Raises:
        SettingsError: the page's Redis URL cannot be parsed.
    """
    if not settings.gateway_ui_redis_url.get_secret_value():
        return queue
    separate = queue.model_copy(update={"redis_url": settings.gateway_ui_redis_url})
    try:
        OperatorBroker.open(separate)
    except SettingsError as error:
        raise SettingsError(f"STREAMFLEET_GATEWAY_UI_REDIS_URL: {error}") from None
    return separate
