"""Reads reply streams from outside, straight from Redis: every notification, and the result as it first stood."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

from tests.fault.journal import Journal
from tests.fault.redis_faults import AWAY, Faulty

POLL_S = 0.1
FIND_EVERY = 10
SIGNATURE = ("status", "worker", "attempt", "finished_ms", "http_status")


def text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


class Collector:
    """Looks every now and then until stopped.

    Attributes:
        ended: how many requests have ended, as the queues count them.
    """

    def __init__(self, redis: Faulty, journal: Journal, queues: Sequence[str]) -> None:
        self._redis, self._journal, self._queues = redis, journal, queues
        self._positions: dict[str, str] = {}
        self.ended = 0
        self._stopped = False

    def stop(self) -> None:
        """`run` ends soon, after a last look."""
        self._stopped = True

    async def run(self) -> None:
        for look in itertools.count():
            if self._stopped:
                return
            with contextlib.suppress(*AWAY):
                await self._count()
                if look % FIND_EVERY == 0:
                    await self._find_streams()
                await self._read()
            await asyncio.sleep(POLL_S)

    async def _count(self) -> None:
        names = ("succeeded", "failed", "expired", "cancelled", "dead")
        counts = [await self._redis.direct.hmget(f"{{{queue}}}:counts", names) for queue in self._queues]
        self.ended = sum(int(count or 0) for of_queue in counts for count in of_queue)

    async def _find_streams(self) -> None:
        async for key in self._redis.direct.scan_iter("{*}:reply:*", count=10_000, _type="stream"):
            self._positions.setdefault(text(key), "0-0")

    async def _read(self) -> None:
        if not self._positions:
            return
        for key, entries in await self._redis.direct.xread(self._positions, count=500) or ():
            ids = [text(fields.get(b"id")) for _, fields in entries]
            async with self._redis.direct.pipeline(transaction=False) as pipe:
                for name in ids:
                    pipe.hmget(f"{text(key).partition(':')[0]}:result:{name}", SIGNATURE)
                results = await pipe.execute()
            for (stream_id, fields), name, values in zip(entries, ids, results, strict=True):
                self._note(text(key), name, text(fields.get(b"status")), values)
                self._positions[text(key)] = text(stream_id)

    def _note(self, key: str, name: str, status: str, values: list[Any]) -> None:
        seen = dict(zip(SIGNATURE, map(text, values), strict=True))
        self._journal.write("notified", reply=key.partition(":reply:")[2], id=name, told=status, result=seen)
