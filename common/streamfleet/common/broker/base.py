"""Base of every part of the broker: the connection, the keys, the consumer groups."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import redis.exceptions

from streamfleet.common.connection import Connection, MissingGroup, another_type
from streamfleet.common.keys import GROUP, Keys
from streamfleet.common.records import QueueLimits

T = TypeVar("T")


class BrokerBase:
    """One queue on one Redis.

    Every method raises BrokerUnavailable if Redis cannot be reached within the connection's patience, BrokerOutOfMemory
    if a new request does not fit into Redis, and NotPermitted if the Redis user lacks a permission.
    """

    def __init__(self, connection: Connection, keys: Keys, limits: QueueLimits | None = None) -> None:
        self.connection = connection
        connection.home(keys.base)
        self.keys = keys
        self.limits = limits or QueueLimits()
        self._shared = keys.shared()
        self._config = self._configuration()

    def _configuration(self) -> str:
        limits = self.limits
        values: dict[str, Any] = {
            "prefix": self.keys.base,
            "result_ttl_ms": limits.result_ttl_ms,
            "patience_ms": limits.patience_ms,
            "record_ttl_ms": limits.record_ttl_ms,
            "dead_ttl_ms": limits.dead_ttl_ms,
            "dead_cap": limits.dead_cap,
            "dead_bytes": limits.dead_bytes,
            "reply_cap": limits.reply_cap,
            "max_entry_bytes": limits.max_entry_bytes,
        }
        if limits.now_ms is not None:
            values["now_ms"] = limits.now_ms
        return json.dumps(values)

    async def close(self) -> None:
        await self.connection.close()

    async def ensure_groups(self) -> None:
        """Create missing streams and groups of the lanes; groups start at 0, never at ``$``."""
        for key in (*self.keys.lanes, self.keys.wake):
            if await self._has_group(key):
                continue
            try:
                await self._expect_again(key)
                await self.connection.command("XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM")
            except redis.exceptions.ResponseError as error:
                if "WRONGTYPE" in str(error):
                    raise another_type(self.connection.address) from error
                if "BUSYGROUP" not in str(error):
                    raise

    async def _has_group(self, key: str) -> bool:
        try:
            await self._look("XPENDING", key, GROUP)
        except MissingGroup:
            return False
        return True

    async def _expect_again(self, key: str) -> None:
        """After a lane's group is recreated, its entries are delivered again; remember which were staged before."""
        if key == self.keys.wake:
            return
        number = self.keys.lanes.index(key) + 1
        if seen := await self._look("HGET", self.keys.sched, f"seen:{number}"):
            await self._look("HSET", self.keys.sched, f"again:{number}", seen)

    async def _ask(self, key: str, most: int, name: str, value: str) -> None:
        """Add a request to a stream that workers read; works at the memory limit too, because workers free memory."""
        await self.connection.script("ask", [key, self.keys.reply("")], [most, name, value])

    async def _look(self, *words: Any) -> Any:
        """Send a command on a shared key; reports a key that was overwritten with another type."""
        try:
            return await self.connection.command(*words)
        except redis.exceptions.ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise another_type(self.connection.address) from error
            raise

    async def _look_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The same for several commands in one round trip; replies in their order."""
        try:
            return await self.connection.pipeline(commands)
        except redis.exceptions.ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise another_type(self.connection.address) from error
            raise

    async def _with_groups(self, operation: Callable[[], Awaitable[T]]) -> T:
        try:
            return await operation()
        except MissingGroup:
            await self.ensure_groups()
            return await operation()
