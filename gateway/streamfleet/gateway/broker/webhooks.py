"""Webhooks in Redis, shared by all gateways: announce, take and settle deliveries; dead letters; signing secrets.

A gateway that takes a delivery has it for a lease. Every attempt counts from its start, and is settled once: after the
lease, another gateway has it, and what the first one says of it is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from streamfleet.common.connection import Connection, MissingGroup
from streamfleet.common.errors import InvalidRequest, StreamfleetError
from streamfleet.common.replies import entries, mapping
from streamfleet.gateway.broker.base import SharedKeys
from streamfleet.gateway.webhook_messages import (
    DeadWebhook,
    Delivery,
    Message,
    Settlement,
    Taken,
    WebhookLimits,
    WebhookNames,
    read_dead,
    read_message,
)
from streamfleet.operator.broker.inspecting import stream_entries


class WebhooksFull(StreamfleetError):
    """The limit of outstanding webhooks, of all or of one tenant, is reached; try again later, or raise
    STREAMFLEET_GATEWAY_WEBHOOKS_LIMIT."""

    retryable = True


class WebhookBroker(SharedKeys[WebhookNames]):
    """One method for each operation, each one script or one command.

    Args:
        connection, names: as in SharedKeys.
        limits: limits that the scripts enforce.
    """

    def __init__(self, connection: Connection, names: WebhookNames, limits: WebhookLimits | None = None) -> None:
        super().__init__(connection, names)
        self.limits = limits or WebhookLimits()
        self._shared = names.shared()
        self._config = self.limits.encoded()

    async def announce(self, message: Message) -> bool:
        """Schedule a message for delivery; False if it was announced before.

        Raises:
            WebhooksFull: too many are outstanding, of all or of this tenant.
        """
        args = [self._config, message.id, message.encoded(), message.tenant]
        code = int(await self.connection.script("webhook_announce", [*self._shared, self.names.use], args))
        if code < 0:
            most, whose = (self.limits.outstanding, "") if code == -1 else (self.limits.per_tenant, " of this tenant")
            raise WebhooksFull(
                f"{most} webhooks{whose} are outstanding, which is the limit "
                "(STREAMFLEET_GATEWAY_WEBHOOKS_LIMIT): try again later, or see why they are not delivered"
            )
        return code == 1

    async def take(self, deliverer: str, most: int) -> Taken:
        """Take webhooks to deliver now, leased to this deliverer. Sent once: if the answer is lost, the leases run out.

        Args:
            deliverer: name of the deliverer.
            most: largest number of webhooks.
        """
        args = [self._config, deliverer, most]
        now, next_ms, outstanding, last, rows = await self.connection.script_once("webhook_take", self._shared, args)
        deliveries = [
            Delivery(entry.decode(), attempt, read_message(message), id.decode(errors="replace"), refusals)
            for entry, id, attempt, message, refusals in rows  # noqa: A001 - what it is
        ]
        waits = int(next_ms)
        return Taken(deliveries, int(now), None if waits < 0 else waits, outstanding, last.decode())

    async def settle(self, delivery: Delivery, settlement: Settlement) -> bool:
        """Record the end of a delivery; False if another attempt has it by now, and nothing was written."""
        ending = (settlement.ending, settlement.delay_ms, settlement.reason or "", settlement.status, settlement.error)
        args = [self._config, delivery.entry, delivery.id, delivery.attempt, *ending]
        try:
            return bool(await self.connection.script("webhook_settle", self._shared, args))
        except MissingGroup:  # deleted by hand; the next take recreates it, and all due webhooks are delivered again
            return False

    async def wait(self, last: str, timeout_ms: int) -> None:
        """Block until a webhook becomes due after `last`, or for `timeout_ms`."""
        timeout_ms = max(2, timeout_ms)  # 0 would block for ever
        words = ("XREAD", "COUNT", 1, "BLOCK", timeout_ms, "STREAMS", self.names.due, last)
        await self.connection.block(timeout_ms / 1000, *words)

    async def unblock(self) -> None:
        """End a `wait` in progress."""
        await self.connection.unblock()

    async def dead(self, newest: int) -> list[DeadWebhook]:
        """Dead webhooks, newest first."""
        words = ("XREVRANGE", self.names.dead, "+", "-", "COUNT", newest)
        return [read_dead(*entry) for entry in entries(await self.connection.command(*words))]

    async def every_dead(self) -> AsyncIterator[DeadWebhook]:
        """All dead webhooks, oldest first."""
        async for entry in stream_entries(self.connection.command, self.names.dead, "-"):
            yield read_dead(*entry)

    async def requeue(self, letter_id: str, message: Message) -> bool:
        """Requeue a dead webhook; False if it no longer exists."""
        args = [self._config, letter_id, message.id, message.encoded()]
        return bool(await self.connection.script("webhook_requeue", self._shared, args))

    async def secrets(self, tenant: str) -> bytes:
        """A tenant's signing secrets as they are stored; empty where it has none."""
        return await self.connection.command("HGET", self.names.secrets, tenant) or b""

    async def every_secret(self) -> dict[str, bytes]:
        """The signing secrets of all tenants."""
        found = mapping(await self.connection.command("HGETALL", self.names.secrets))
        return {tenant.decode(errors="replace"): text for tenant, text in found.items()}

    async def set_secrets(self, tenant: str, before: bytes, after: bytes) -> None:
        """Change a tenant's secrets.

        Raises:
            InvalidRequest: somebody else changed them since `before` was read.
        """
        if not await self.connection.script("gateway_change", [self.names.secrets], [tenant, before, after]):
            raise InvalidRequest("its secrets were changed by somebody else just now: look, and try again", "tenant")
