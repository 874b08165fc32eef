"""Webhooks of the HTTP gateway as stored in Redis: their keys, their messages and their dead letters. Pure.

Stored bytes go in, and typed values come out, or None for what is no message. The webhook scripts know the same keys,
limits and outcomes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from streamfleet.common.keys import gateway_base
from streamfleet.common.protocol import stream_ms
from streamfleet.common.settings_gateway import WebhookSettings


class WebhookNames:
    """Redis keys of the webhooks of all gateways with this prefix.

    Args:
        prefix: put before every key, as before those of the queues.

    Raises:
        InvalidRequest: the prefix is not usable.
    """

    def __init__(self, prefix: str = "") -> None:
        self.base = gateway_base(prefix)
        self.due = f"{self.base}webhooks:due"
        """Stream of ids to deliver now, with the group `deliverers`."""
        self.later = f"{self.base}webhooks:later"
        """Sorted set of ids by the time of their next attempt, epoch ms."""
        self.messages = f"{self.base}webhooks:messages"
        """Hash of id to message, JSON, while it is outstanding."""
        self.tries = f"{self.base}webhooks:tries"
        """Hash of id to number of started attempts; `refused:<id>` is how often settings forbade its address,
        and `refuser:<id>` the last deliverer whose settings did."""
        self.ended = f"{self.base}webhooks:ended"
        """Sorted set of ids by their end, epoch ms, so that the same event is not announced again for a while."""
        self.dead = f"{self.base}webhooks:dead"
        """Stream of dead webhooks."""
        self.use = f"{self.base}webhooks:use"
        """Hash: tenant of each announced webhook, and number of webhooks per tenant; recounted from time to time."""
        self.secrets = f"{self.base}webhooks:secrets"
        """Hash of tenant to its signing secrets, JSON, newest first."""

    def shared(self) -> list[str]:
        """The keys that scripts get as KEYS[1..6]."""
        return [self.due, self.later, self.messages, self.tries, self.ended, self.dead]


class Ending(StrEnum):
    """Outcome of a delivery, as webhook_settle.lua takes it."""

    DELIVERED = "delivered"
    LATER = "later"  # failed; the attempt counts
    BACK = "back"  # not made or not finished; the attempt does not count
    DEAD = "dead"


class Reason(StrEnum):
    """Reason for giving up a webhook."""

    ATTEMPTS = "attempts"  # every attempt failed
    AGE = "age"  # its next attempt would come too late
    GONE = "gone"  # the receiver said 410
    REFUSED = "refused"  # its address is not one that may be called; also of BACK, where another gateway may call it
    LOST = "lost"  # its last attempts ended with the process that made them


DEAD_TTL_MS = 604_800_000
"""Time for which a dead webhook is kept: a week leaves operators time to notice and requeue it."""


@dataclass(frozen=True, slots=True)
class WebhookLimits:
    """Limits that the scripts enforce.

    Attributes:
        lease_ms: time after which an unfinished delivery may be taken by another gateway: more than twice as long as an
            attempt may take.
        outstanding, per_tenant: largest number of outstanding webhooks, in all and of one tenant; without keys, only
            in all.
        remember_ms: time for which the id of an ended webhook is kept: a day, because a batch's gateways may announce
            its end again until then.
        dead_cap, dead_ttl_ms: approximate number of dead letters that are kept, and for how long.
        now_ms: epoch ms in place of the server's, for tests.
    """

    lease_ms: int = 60_000
    outstanding: int = 10_000
    per_tenant: int = 2_500
    remember_ms: int = 86_400_000
    dead_cap: int = 10_000
    dead_ttl_ms: int = DEAD_TTL_MS
    now_ms: int | None = None

    @classmethod
    def of(cls, settings: WebhookSettings) -> Self:
        """Limits that the settings name; a tenant may have a quarter of all outstanding webhooks."""
        return cls(
            outstanding=settings.gateway_webhooks_limit,
            per_tenant=max(1, settings.gateway_webhooks_limit // 4),
            dead_ttl_ms=DEAD_TTL_MS,
        )

    def encoded(self) -> str:
        """JSON for the scripts."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})


@dataclass(frozen=True, slots=True)
class Message:
    """One webhook.

    Attributes:
        id: its `webhook-id`, the same at every attempt.
        url: address of the receiver.
        type: type of the event.
        tenant: tenant whose secrets sign it; empty where keys are off.
        body: the exact text to send.
        since_ms: time of its announcement or requeueing, epoch ms.
    """

    id: str
    url: str
    type: str
    tenant: str
    body: str
    since_ms: int

    def encoded(self) -> str:
        """The message as it is stored, JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


def read_message(text: bytes) -> Message | None:
    """Read a stored message; None if it is not valid."""
    try:
        value: Any = json.loads(text)
        words = {name: str(value[name]) for name in ("id", "url", "type", "tenant", "body")}
        return Message(**words, since_ms=int(value["since_ms"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def message_id(tenant: str, event_id: str, url: str) -> str:
    """The `webhook-id` of an event for a receiver; the same for every announcement of the event.

    It contains no full stop, because full stops separate the parts of the signed text.
    """
    named = json.dumps([tenant, event_id, url]).encode()
    return f"msg_{hashlib.sha256(named).hexdigest()[:40]}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that was taken for delivery.

    Attributes:
        entry: its stream id in the stream of due webhooks.
        attempt: number of this attempt, from 1.
        message: the message; None if it cannot be read.
        id: id of the message.
        refusals: how often settings of gateways have forbidden its address.
    """

    entry: str
    attempt: int
    message: Message | None
    id: str
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class Settlement:
    """End of a delivery.

    Attributes:
        ending: the outcome.
        delay_ms: ms until the next attempt (LATER, BACK).
        reason: reason for giving up (DEAD); REFUSED if settings of this gateway forbid the address (BACK).
        status: HTTP status; 0 without an answer.
        error: description of the fault, for people; never the receiver's own text.
    """

    ending: Ending
    delay_ms: int = 0
    reason: Reason | None = None
    status: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """Answer to `take`.

    Attributes:
        deliveries: deliveries to make now.
        now_ms: Redis's clock, epoch ms.
        next_ms: ms until the next webhook is due; None if none waits.
        outstanding: number of outstanding webhooks.
        last: newest stream id of the due webhooks, to wait after.
    """

    deliveries: list[Delivery]
    now_ms: int
    next_ms: int | None
    outstanding: int
    last: str


@dataclass(frozen=True, slots=True)
class DeadWebhook:
    """A dead webhook.

    Attributes:
        letter_id: its stream id, which contains the time of its end.
        message: the message; None if it cannot be read.
        webhook_id, reason, attempts, status, error: values at its end.
    """

    letter_id: str
    message: Message | None
    webhook_id: str
    reason: str
    attempts: int
    status: int
    error: str

    @property
    def written_ms(self) -> int:
        """Time at which it was given up, epoch ms."""
        return stream_ms(self.letter_id)


def read_dead(letter_id: str, fields: Mapping[bytes, bytes]) -> DeadWebhook:
    """Read a stored dead webhook."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    def count(name: bytes) -> int:
        digits = text(name)
        return int(digits) if digits.isdecimal() and len(digits) < 19 else 0

    message = read_message(fields.get(b"message", b""))
    return DeadWebhook(
        letter_id, message, text(b"id"), text(b"reason"), count(b"attempts"), count(b"status"), text(b"error")
    )
