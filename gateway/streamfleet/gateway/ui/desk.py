"""Where operators sit: the page's own connections to the queues, and its shared readings of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamfleet.common.broker import Broker
from streamfleet.common.clock import Clock
from streamfleet.common.errors import SettingsError
from streamfleet.common.settings import QueueSettings
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.errors import LIMITED, ApiError, retry_after
from streamfleet.gateway.queues import Queues
from streamfleet.gateway.ui.watching import Shared, Watcher
from streamfleet.producer.client import Client, open_broker

MOST_SEARCHES = 4
"""At once: each may read megabytes out of Redis."""
BUSY_S = 1


class Desk:
    """The page's part of a gateway process. Nothing is sent before somebody looks.

    Args:
        queue: where Redis is.
        settings: which user the page is there.
        clock: for how long a reading serves.

    Raises:
        SettingsError: the page's Redis URL cannot be read.
    """

    def __init__(self, queue: QueueSettings, settings: GatewaySettings, clock: Clock) -> None:
        self._queues = Queues(own_settings(queue, settings))
        self._clock = clock
        self._readings: dict[str, Shared] = {}
        self._searches = 0

    async def client(self, queue: str) -> Client:
        """The page's own client of a queue. Raises BrokerUnavailable."""
        return await self._queues.client(queue)

    async def broker(self, queue: str) -> Broker:
        """The same, for what clients do not do."""
        return (await self._queues.client(queue)).broker

    def reading(self, queue: str) -> Shared:
        """What all who look at a queue see."""
        if queue not in self._readings:
            self._readings[queue] = Shared(Watcher(lambda: self.broker(queue)).look, self._clock)
        return self._readings[queue]

    @contextmanager
    def searching(self) -> Iterator[None]:
        """While one reads much.

        Raises:
            ApiError: too many do.
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
        """Leave."""
        await self._queues.close()


def own_settings(queue: QueueSettings, settings: GatewaySettings) -> QueueSettings:
    """The queue, as the page's own user sees it.

    Raises:
        SettingsError: the page's Redis URL cannot be read.
    """
    if not settings.gateway_ui_redis_url.get_secret_value():
        return queue
    own = queue.model_copy(update={"redis_url": settings.gateway_ui_redis_url})
    try:
        open_broker(own)
    except SettingsError as error:
        raise SettingsError(f"STREAMFLEET_GATEWAY_UI_REDIS_URL: {error}") from None
    return own
