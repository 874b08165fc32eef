"""Webhooks of the HTTP gateway as Redis holds them: their keys, messages, dead letters and signing secrets. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from streamfleet.common.gateway_keys import GatewayNames

DELIVERERS = "deliverers"
"""The consumer group of what is due; the webhook scripts name it too."""


class WebhookNames:
    """Redis keys of the webhooks of all gateways with this prefix.

    Args:
        prefix: put before every key, as before those of the queues.

    Raises:
        InvalidRequest: the prefix is not usable.
    """

    def __init__(self, prefix: str = "") -> None:
        self.base = GatewayNames(prefix).base
        self.due = f"{self.base}webhooks:due"
        """Stream of ids to deliver now, with the group `deliverers`."""
        self.later = f"{self.base}webhooks:later"
        """Sorted set of ids by their next try, epoch ms."""
        self.messages = f"{self.base}webhooks:messages"
        """Hash of id to message, JSON, while it is outstanding."""
        self.tries = f"{self.base}webhooks:tries"
        """Hash of id to how many attempts were begun."""
        self.ended = f"{self.base}webhooks:ended"
        """Sorted set of ids by when they ended, epoch ms: the same event is not announced again for a while."""
        self.dead = f"{self.base}webhooks:dead"
        """Stream of what was given up."""
        self.use = f"{self.base}webhooks:use"
        """Hash: tenant of each webhook that was announced, and how many each tenant has; counted anew now and then."""
        self.secrets = f"{self.base}webhooks:secrets"
        """Hash of tenant to its signing secrets, JSON, newest first."""

    def shared(self) -> list[str]:
        """What the scripts get as KEYS[1..6]."""
        return [self.due, self.later, self.messages, self.tries, self.ended, self.dead]


class Ending(StrEnum):
    """What becomes of a delivery that was taken; webhook_settle.lua knows these words."""

    DELIVERED = "delivered"
    LATER = "later"  # the attempt counts
    BACK = "back"  # it was not made, or not finished: it does not count
    DEAD = "dead"


class Reason(StrEnum):
    """Why a webhook was given up."""

    ATTEMPTS = "attempts"  # every attempt failed
    AGE = "age"  # its next attempt would come too late
    GONE = "gone"  # the receiver said 410
    REFUSED = "refused"  # its address is not one that may be called
    LOST = "lost"  # its last attempts ended with the process that made them


@dataclass(frozen=True, slots=True)
class WebhookLimits:
    """What the scripts need to know.

    Attributes:
        lease_ms: after so long without an ending, a delivery is anybody's.
        outstanding, per_tenant: most webhooks at a time, of all and of one tenant; without keys, only of all.
        remember_ms: how long an ended one's id is known.
        dead_cap, dead_ttl_ms: how many dead letters are kept, about, and how long.
        now_ms: epoch ms in place of the server's, for tests.
    """

    lease_ms: int = 60_000
    outstanding: int = 10_000
    per_tenant: int = 2_500
    remember_ms: int = 86_400_000
    dead_cap: int = 10_000
    dead_ttl_ms: int = 604_800_000
    now_ms: int | None = None

    def encoded(self) -> str:
        """As the scripts take it."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})


@dataclass(frozen=True, slots=True)
class Message:
    """One webhook.

    Attributes:
        id: its `webhook-id`, the same at every attempt.
        url: where it goes.
        type: of the event.
        tenant: whose secrets sign it; empty where keys are off.
        body: what is sent, byte for byte.
        since_ms: when it was announced, or requeued; epoch ms.
    """

    id: str
    url: str
    type: str
    tenant: str
    body: str
    since_ms: int

    def encoded(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


def read_message(text: bytes) -> Message | None:
    """A message as it is stored; None where somebody wrote something else there."""
    try:
        value: Any = json.loads(text)
        words = {name: str(value[name]) for name in ("id", "url", "type", "tenant", "body")}
        return Message(**words, since_ms=int(value["since_ms"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def message_id(tenant: str, event_id: str, url: str) -> str:
    """The `webhook-id` of an event for a receiver: whoever announces it again means the same message.

    It has no full stop, whatever the event is called: a signature is over text that full stops divide.
    """
    named = json.dumps([tenant, event_id, url]).encode()
    return f"msg_{hashlib.sha256(named).hexdigest()[:40]}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that was taken to be delivered.

    Attributes:
        entry: its stream id among what is due.
        attempt: which this is, from 1.
        message: what to deliver; None where it cannot be read.
        id: of the message.
    """

    entry: str
    attempt: int
    message: Message | None
    id: str


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a delivery ended.

    Attributes:
        ending: which way.
        delay_ms: until the next try (LATER, BACK).
        reason: why it was given up (DEAD).
        status: of HTTP, 0 where none came.
        error: what went wrong, for people; never what a receiver wrote.
    """

    ending: Ending
    delay_ms: int = 0
    reason: Reason | None = None
    status: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What `take` found.

    Attributes:
        deliveries: to be made now.
        now_ms: the server's clock.
        next_ms: in how many ms the next one is due; None for none that waits.
        outstanding: how many there are.
        last: newest stream id among what is due, to wait behind.
    """

    deliveries: list[Delivery]
    now_ms: int
    next_ms: int | None
    outstanding: int
    last: str


@dataclass(frozen=True, slots=True)
class DeadWebhook:
    """A webhook that was given up.

    Attributes:
        letter_id: its stream id, which tells when.
        message: what was to be delivered; None where it cannot be read.
        webhook_id, reason, attempts, status, error: as they were at the end.
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
        """When it was given up, epoch ms."""
        return int(self.letter_id.partition("-")[0])


def read_dead(letter_id: str, fields: Mapping[bytes, bytes]) -> DeadWebhook:
    """A dead letter as it is stored."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    def count(name: bytes) -> int:
        digits = text(name)
        return int(digits) if digits.isdecimal() and len(digits) < 19 else 0

    message = read_message(fields.get(b"message", b""))
    return DeadWebhook(
        letter_id, message, text(b"id"), text(b"reason"), count(b"attempts"), count(b"status"), text(b"error")
    )
