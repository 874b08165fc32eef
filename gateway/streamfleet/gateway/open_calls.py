"""Calls that wait for an answer, read a stream or move a file, by API key: they end when their key does.

A `DisconnectWatcher`, an upload and a `Streamed` answer add their call and remove it. `key_cache` reads the records of
the keys that have calls, when keys have changed and every few seconds, and gives them to `check`. Redis is asked once
for each key, however many calls it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streamfleet.common.protocol import Lane
from streamfleet.gateway.api_keys import KeyRecord
from streamfleet.gateway.errors import ApiError, access_ended


@dataclass(eq=False, frozen=True, slots=True)
class OpenCall:
    """One call.

    Attributes:
        digest: of its API key.
        lane: that its request uses; None for a call that needs none.
        end: ends it with an error.
    """

    digest: str
    lane: Lane | None
    end: Callable[[ApiError], None]


class OpenCalls:
    """All calls of one process that have a key."""

    def __init__(self) -> None:
        self._calls: dict[str, set[OpenCall]] = {}

    @property
    def digests(self) -> list[str]:
        """Digests of the keys that have calls."""
        return [*self._calls]

    def add(self, call: OpenCall) -> None:
        self._calls.setdefault(call.digest, set()).add(call)

    def remove(self, call: OpenCall) -> None:
        calls = self._calls.get(call.digest, set())
        calls.discard(call)
        if not calls:
            self._calls.pop(call.digest, None)

    @contextmanager
    def during(self, digest: str, end: Callable[[ApiError], None]) -> Iterator[None]:
        """Has a call of a key that needs no lane, within its `with`. The arguments are those of `OpenCall`."""
        call = OpenCall(digest, None, end)
        self.add(call)
        try:
            yield
        finally:
            self.remove(call)

    def check(self, digest: str, record: KeyRecord | None, now_ms: int) -> None:
        """End the calls that a key does not allow any more.

        Args:
            digest: of the key.
            record: what is stored of it now; None if it was revoked.
            now_ms: Redis's clock, epoch ms.
        """
        ended = record is None or (record.expires_ms is not None and record.expires_ms <= now_ms)
        for call in [*self._calls.get(digest, ())]:
            if ended:
                call.end(access_ended())
            elif record is not None and call.lane is not None and call.lane not in record.lanes:
                call.end(access_ended(call.lane))
