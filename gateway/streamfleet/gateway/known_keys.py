"""Cache of API keys, so that Redis is not asked again for each of their requests.

It holds only keys without limits, because Redis counts those that have limits. Every change of a key is announced to
all gateways through Redis, and each then clears its cache. An announcement can be lost, a connection can die silently,
and a key can be deleted by hand; so no entry is used for longer than `BELIEVED_S`, and none after `DEAF_S` without news
from Redis.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from streamfleet.common.broker.gateway import Admission, GatewayBroker
from streamfleet.common.clock import Clock
from streamfleet.common.gateway_keys import digest_of

log = structlog.get_logger(__name__)
BELIEVED_S = 5.0
"""Longest age of an entry."""
LISTEN_MS = 1_000
"""Duration of a blocking read; its end is a sign of life."""
DEAF_S = 3.0
"""Without a sign of life for this long, no entry is used."""
AGAIN_S = 1.0
ENDS_SOON_MS = 60_000
"""A key that ends within a minute is asked for each time, because Redis's clock decides when it ends."""
MOST_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    """Outcome of a key's last request, and until when it holds for the next one (monotonic seconds)."""

    admission: Admission
    until_s: float


class KnownKeys:
    """Admits callers from the cache, or by asking Redis.

    Args:
        broker: keys in Redis; nothing else may block on its connection.
        clock: for the age of entries.
    """

    def __init__(self, broker: GatewayBroker, clock: Clock) -> None:
        self._broker, self._clock = broker, clock
        self._known: dict[str, _Known] = {}
        self._changes = 0
        self._heard_s = float("-inf")
        self._silenced = False
        self._listening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen for changes; before that, Redis is asked each time."""
        self._listening = asyncio.get_running_loop().create_task(self._listen_forever())

    async def close(self) -> None:
        """Stop listening and clear the cache."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        self._forget()

    async def admit(self, secret: str, requests: int = 1) -> Admission:
        """Same as `GatewayBroker.admit`."""
        digest, now_s = digest_of(secret), self._clock.monotonic()
        known = self._known.get(digest)
        if known is not None and now_s < known.until_s and now_s - self._heard_s < DEAF_S:
            return known.admission
        changes = self._changes
        admission = await self._broker.admit(secret, requests)
        # A change announced meanwhile may be newer than this answer.
        if changes == self._changes and self._lasting(admission):
            if len(self._known) >= MOST_KEYS:
                self._known.clear()
            self._known[digest] = _Known(admission, now_s + BELIEVED_S)
        return admission

    def _lasting(self, admission: Admission) -> bool:
        ends_ms = admission.record.expires_ms if admission.record is not None else None
        return admission.unlimited and (ends_ms is None or ends_ms > self._clock.now_ms() + ENDS_SOON_MS)

    def _forget(self) -> None:
        self._known.clear()
        self._changes += 1

    async def _listen_forever(self) -> None:
        position = "0-0"
        while True:
            try:
                position, changed = await self._broker.changes(position, LISTEN_MS)
            except Exception as error:  # noqa: BLE001 - no error may end the listening for good
                self._deaf(error)
                position = "0-0"  # after a failover, another server may give out other ids
                await self._clock.sleep(AGAIN_S)
                continue
            if changed:
                self._forget()
            self._heard_s = self._clock.monotonic()
            self._silenced = False

    def _deaf(self, error: Exception) -> None:
        self._heard_s = float("-inf")
        self._forget()
        if not self._silenced:
            log.warning("keys_are_asked_for_each_time", error=f"{type(error).__name__}: {error}")
        self._silenced = True
