"""saq: one asynchronous worker."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from saq import Queue, Worker

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, each, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, each, main

ENQUEUES_AT_ONCE = 20  # more do not help: the queue lets 20 operations through
CONCURRENCY = {"drain": 50, "defaults": 10, "tuned": 10}


async def noop(context: Any, *, payload: str) -> str:  # noqa: ARG001 - it is carried, not used
    return RESULT


class Saq(Peer):
    uvloop = True

    async def open(self) -> None:
        self._queue = Queue.from_url(self.url, name="bench")
        await self._queue.connect()
        # As if a worker had swept just now: a worker that sweeps while it picks its first job aborts that job as lost.
        await self._queue.redis.setex("saq:bench:sweep", 60, 1)

    async def close(self) -> None:
        await self._queue.disconnect()

    async def enqueue(self, count: int) -> None:
        await each(count, ENQUEUES_AT_ONCE, lambda: self._queue.enqueue("noop", payload=PAYLOAD))

    async def call(self, *, tuned: bool) -> Any:
        if tuned:
            return await self._queue.apply("noop", payload=PAYLOAD, poll_interval=0)
        return await self._queue.apply("noop", payload=PAYLOAD)

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("LLEN", "saq:bench:queued"))

    def finished(self, wire: Wire) -> int:
        return self.jobs - int(wire.ask("ZCARD", "saq:bench:incomplete"))

    def stored(self, wire: Wire) -> int:
        keys = sorted(wire.keys("saq:job:bench:*"))
        jobs = [job for at in range(0, len(keys), 500) for job in wire.ask("MGET", *keys[at : at + 500])]
        return sum(b'"status": "complete"' in job and RESULT.encode() in job for job in jobs)

    def work(self, mode: Mode) -> None:
        logging.getLogger("saq").setLevel(logging.WARNING)

        async def run() -> None:
            worker = Worker(Queue.from_url(self.url, name="bench"), [noop], concurrency=CONCURRENCY[mode])
            await worker.start()

        asyncio.run(run())


if __name__ == "__main__":
    main(Saq)
