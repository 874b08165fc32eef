"""Interface of webhooks for the rest of the gateway: check a callback URL, announce an event, start, stop.

An announced event is stored in Redis, where any gateway's `deliverer` finds it. Secrets of tenants are read from there.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from streamfleet.common.clock import Clock, SystemClock
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.settings import QueueSettings
from streamfleet.common.settings_gateway import WebhookSettings
from streamfleet.gateway.broker.webhooks import WebhookBroker
from streamfleet.gateway.queues import open_connection
from streamfleet.gateway.webhook_messages import Message, WebhookLimits, WebhookNames, message_id
from streamfleet.gateway.webhooks.deliverer import ConcurrencyLimits, Deliverer
from streamfleet.gateway.webhooks.retry_policy import RetryPolicy
from streamfleet.gateway.webhooks.sender import TIMEOUT_S, Sender
from streamfleet.gateway.webhooks.signing import active_secrets, read_secrets
from streamfleet.gateway.webhooks.targets import (
    NOT_A_TARGET,
    LookUps,
    NameUnknown,
    Policy,
    Resolver,
    read_target,
    resolve,
    resolve_target,
)

MOST_BODY_BYTES = 32_768
"""Limit for one webhook, which announces an event; the receiver fetches results itself."""
LOOK_UP_S = 5.0
ANY_POLICY = Policy(allow_private=True, allow_http=True, ports=(0,))
"""The widest policy that a gateway may have."""
_TYPE = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")


def open_webhook_broker(queue: QueueSettings, settings: WebhookSettings) -> WebhookBroker:
    """Returns the broker of the webhooks' keys in Redis. Sends nothing yet.

    Raises:
        SettingsError: the Redis URL cannot be parsed.
    """
    connection = open_connection(queue)
    return WebhookBroker(connection, WebhookNames(queue.key_prefix), WebhookLimits.of(settings))


class Webhooks:
    """Webhooks of one gateway process. Make it on the event loop that serves.

    Args:
        broker: has its own connection, because deliveries block it.
        settings: allowed targets.
        clock: the time.
        resolver: resolves names.
        trust: trusted certificates; httpx's by default.
        retry_policy: times of attempts.
        limits: numbers of attempts at once.
        timeout_s: limit for one attempt.
    """

    def __init__(
        self,
        broker: WebhookBroker,
        settings: WebhookSettings,
        *,
        clock: Clock | None = None,
        resolver: Resolver = resolve,
        trust: ssl.SSLContext | None = None,
        retry_policy: RetryPolicy | None = None,
        limits: ConcurrencyLimits | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._broker, self._clock, self._look_ups = broker, clock or SystemClock(), LookUps(resolver)
        self._policy = Policy(
            settings.gateway_webhooks_allow_private,
            settings.gateway_webhooks_allow_http,
            settings.gateway_webhooks_ports,
        )
        self._deliverer = Deliverer(
            broker,
            Sender(self._policy, self._look_ups, trust, timeout_s),
            retry_policy or RetryPolicy(),
            limits or ConcurrencyLimits(),
            self._clock,
        )

    async def check(self, url: object, tenant: str | None = None, param: str = "callback_url") -> None:
        """Refuse a wrong callback URL when it is given, not when there is an event to send.

        Args:
            url: the callback URL.
            tenant: its owner; None where keys are off.
            param: the field that contained it.

        Raises:
            InvalidRequest: webhooks may not be sent to it, or the tenant has no secret to sign them with.
        """
        target = read_target(url, self._policy, param)
        if not active_secrets(read_secrets(await self._broker.secrets(tenant or "")), self._clock.now_ms()):
            option = f" --tenant {tenant}" if tenant else ""
            text = (
                "cannot be used: there is no secret to sign webhooks with; the operator makes one with "
                f"`streamfleet gateway webhooks secret create{option}`"
            )
            raise InvalidRequest(text, param, "no_webhook_secret")
        try:
            async with asyncio.timeout(LOOK_UP_S):
                await resolve_target(target, self._policy, self._look_ups, tenant or "", param)
        except NameUnknown:
            raise InvalidRequest(NOT_A_TARGET, param) from None
        except (OSError, TimeoutError):
            pass  # a temporary failure; each attempt checks the name again

    async def announce(
        self,
        callback_url: str,
        event_type: str,
        data: Mapping[str, Any],
        *,
        event_id: str,
        tenant: str | None = None,
    ) -> str:
        """Announce an event to a callback URL. The same event announced again, by any gateway, is the same webhook.

        Args:
            callback_url: a URL that `check` accepted, in this gateway or another one.
            event_type: such as ``batch.completed``.
            data: JSON values; small, because the receiver fetches results itself.
            event_id: unique id of the event, such as ``batch_abc.completed``.
            tenant: owner of the secrets that sign it; None where keys are off.

        Returns:
            The `webhook-id`.

        Raises:
            InvalidRequest: the URL, the type or the data is not valid.
            WebhooksFull: too many are outstanding.
        """
        url = str(read_target(callback_url, ANY_POLICY))  # this gateway may forbid what the one that checked it allows
        if not _TYPE.fullmatch(event_type) or len(event_type) > 128:
            raise InvalidRequest("must be words of letters, digits and _ with full stops between", "event_type")
        now_ms = self._clock.now_ms()
        body = payload(event_type, data, now_ms)
        if len(body.encode()) > MOST_BODY_BYTES:
            raise InvalidRequest(f"makes a webhook of more than {MOST_BODY_BYTES} bytes; send a reference", "data")
        name = message_id(tenant or "", event_id, url)
        await self._broker.announce(Message(name, url, event_type, tenant or "", body, now_ms))
        return name

    def start(self) -> None:
        """Deliver from now on."""
        self._deliverer.start()

    async def stop(self, within_s: float = 10.0) -> None:
        """Finish attempts in progress, release the rest, and close the connection."""
        await self._deliverer.stop(within_s)
        await self._broker.close()


def payload(event_type: str, data: Mapping[str, Any], now_ms: int) -> str:
    """Returns the body of a webhook, in the form that the specification suggests."""
    moment = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    try:
        return json.dumps(
            {"type": event_type, "timestamp": moment, "data": dict(data)}, separators=(",", ":"), allow_nan=False
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"cannot be written as JSON: {error}", "data") from None
