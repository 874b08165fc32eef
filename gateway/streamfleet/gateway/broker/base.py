"""Base of the gateway's brokers: their connection, the names of their keys, and the clock.

Scripts take the time from Redis, so gateways whose clocks differ agree on leases and limits; a test hands a time in.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from streamfleet.common.connection import Connection


class Names(Protocol):
    """Names of keys that all gateways share, with their common prefix."""

    base: str


N = TypeVar("N", bound=Names)


class SharedKeys(Generic[N]):
    """Keys that all gateways share. Every method raises like the queue's `BrokerBase`.

    Args:
        connection: a connection of its own: in a cluster, these keys live on another node than a queue's.
        names: names of the keys.
        now_ms: epoch ms in place of the server's, for tests.
    """

    def __init__(self, connection: Connection, names: N, now_ms: Callable[[], int] | None = None) -> None:
        self.connection, self.names = connection, names
        connection.home(names.base)
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


def new_owner() -> str:
    """A unique name for this process, for the leases that it has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
