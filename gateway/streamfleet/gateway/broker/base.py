"""Base of the gateway's brokers: their connection, and the clock."""

from __future__ import annotations

from collections.abc import Callable

from streamfleet.common.connection import Connection


class SharedKeys:
    """Keys that all gateways share. Every method raises like the queue's `BrokerBase`.

    Args:
        connection: a connection of its own: in a cluster, these keys live on another node than a queue's.
        base: prefix of all keys of the gateways.
        now_ms: epoch ms in place of the server's, for tests.
    """

    def __init__(self, connection: Connection, base: str, now_ms: Callable[[], int] | None = None) -> None:
        self.connection = connection
        connection.home(base)
        self._now_ms = now_ms

    async def close(self) -> None:
        await self.connection.close()

    async def now_ms(self) -> int:
        """Redis's clock, epoch ms."""
        if self._now_ms is not None:
            return self._now_ms()
        seconds, microseconds = await self.connection.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def _clock(self) -> str:
        return "" if self._now_ms is None else str(self._now_ms())
