"""Cache of API keys, so that Redis is not asked again for each of their requests.

It holds only keys without limits, because Redis counts those that have limits. A change of a key is announced to all
gateways through Redis, and each clears its cache. Announcements can be lost, and keys deleted by hand: so no entry is
used for longer than `MAX_AGE_S`, and none after `MAX_SILENCE_S` without news from Redis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamfleet.common.clock import Clock
from streamfleet.gateway.api_keys import KeyRecord, digest_of
from streamfleet.gateway.background import Repeated
from streamfleet.gateway.broker.api_keys import Admission, GatewayBroker, Verdict
from streamfleet.gateway.open_calls import OpenCalls

MAX_AGE_S = 5.0
"""Longest age of an entry."""
LISTEN_MS = 1_000
"""Duration of a blocking read; its end is a sign of life."""
MAX_SILENCE_S = 3.0
"""Without a sign of life for this long, no entry is used."""
RETRY_S = 1.0
EXPIRES_SOON_MS = 60_000
"""A key that ends within a minute is asked for each time, because Redis's clock decides when it ends."""
MOST_KEYS = 10_000
READ_AGAIN_S = 2.0
"""Pause after which the keys of open calls are read again: an announcement may be lost, and no one tells of a key that
was deleted by hand or expires."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Outcome of a key's last request, and until when it holds for the next one (monotonic seconds)."""

    admission: Admission
    until_s: float


class KeyCache:
    """Admits callers from the cache, or by asking Redis.

    Args:
        broker: keys in Redis; nothing else may block on its connection.
        clock: for the age of entries.
        follow: gets the record of each key that lets a request in, and again when keys have changed.
        open_calls: end when their keys do.
    """

    def __init__(
        self, broker: GatewayBroker, clock: Clock, follow: Callable[[KeyRecord], None], open_calls: OpenCalls
    ) -> None:
        self._broker, self._clock, self._follow, self._open_calls = broker, clock, follow, open_calls
        self._read_at_s = float("-inf")
        self._seen: dict[str, None] = {}
        self._entries: dict[str, _Entry] = {}
        self._changes = 0
        self._last_heard_s = float("-inf")
        self._position = "0-0"
        self._listening = Repeated(self._listen, RETRY_S, "key_cache_off")

    def start(self) -> None:
        """Listen for changes; before that, Redis is asked each time."""
        self._listening.start()

    async def close(self) -> None:
        """Stop listening and clear the cache."""
        await self._listening.close()
        self._clear()

    async def admit(self, secret: str, requests: int = 1) -> Admission:
        """Same as `GatewayBroker.admit`."""
        digest, now_s = digest_of(secret), self._clock.monotonic()
        entry = self._entries.get(digest)
        if entry is not None and now_s < entry.until_s and now_s - self._last_heard_s < MAX_SILENCE_S:
            return entry.admission
        changes = self._changes
        admission = await self._broker.admit(secret, requests)
        if admission.record is not None and admission.verdict is not Verdict.ENDED:
            self._follow(admission.record)
            if len(self._seen) >= MOST_KEYS:
                self._seen.clear()
            self._seen[digest] = None
        # A change announced meanwhile may be newer than this answer.
        if changes == self._changes and self._is_cacheable(admission):
            if len(self._entries) >= MOST_KEYS:
                self._entries.clear()
            self._entries[digest] = _Entry(admission, now_s + MAX_AGE_S)
        return admission

    def _is_cacheable(self, admission: Admission) -> bool:
        ends_ms = admission.record.expires_ms if admission.record is not None else None
        return admission.unlimited and (ends_ms is None or ends_ms > self._clock.now_ms() + EXPIRES_SOON_MS)

    def _clear(self) -> None:
        self._entries.clear()
        self._changes += 1

    async def _listen(self) -> bool:
        try:
            self._position, changed = await self._broker.changes(self._position, LISTEN_MS)
            if changed:
                self._clear()
            if changed or self._clock.monotonic() - self._read_at_s >= READ_AGAIN_S:
                await self._read_again(changed=changed)
        except Exception:
            self._last_heard_s = float("-inf")
            self._clear()
            self._position = "0-0"  # after a failover, another server may give out other ids
            raise
        self._last_heard_s = self._clock.monotonic()
        return True

    async def _read_again(self, *, changed: bool) -> None:
        """End the calls whose keys have ended. If keys were changed, follow those that were seen before."""
        self._read_at_s = self._clock.monotonic()
        digests = dict.fromkeys([*self._open_calls.digests, *(self._seen if changed else ())])
        if not digests:
            return
        records = await self._broker.read([*digests])
        ends = any(record is not None and record.expires_ms is not None for record in records)
        now_ms = await self._broker.now_ms() if ends else 0
        for digest, record in zip(digests, records, strict=True):
            self._open_calls.check(digest, record, now_ms)
            if changed and record is not None and digest in self._seen:
                self._follow(record)
