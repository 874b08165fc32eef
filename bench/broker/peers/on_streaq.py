"""streaq: one asynchronous worker on a stream."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from streaq import Worker

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, main

AT_ONCE = 500
CONCURRENCY = {"drain": 100, "defaults": 16, "tuned": 16}


async def noop(payload: str) -> str:  # noqa: ARG001 - it is carried, not used
    return RESULT


class Streaq(Peer):
    uvloop = True

    def _make(self, concurrency: int = 16) -> Any:
        worker = Worker(redis_url=self.url, queue_name="bench", concurrency=concurrency)
        self._task = worker.task(name="noop", silent=True)(noop)
        return worker

    async def open(self) -> None:
        self._worker = self._make()
        self._inside = self._worker.__asynccontextmanager__()
        await self._inside.__aenter__()

    async def close(self) -> None:
        await self._inside.__aexit__(None, None, None)

    async def enqueue(self, count: int) -> None:
        while count > 0:
            some = min(count, AT_ONCE)
            await self._worker.enqueue_many([self._task.enqueue(PAYLOAD) for _ in range(some)])
            count -= some

    async def call(self, *, tuned: bool) -> Any:  # noqa: ARG002 - nothing polls that could be shortened
        task = await self._task.enqueue(PAYLOAD)
        return (await task.result(10)).result

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("XLEN", "streaq:bench:queues:normal"))

    def finished(self, wire: Wire) -> int:
        return self.jobs - self.queued(wire)

    def stored(self, wire: Wire) -> int:
        return len(wire.keys("streaq:bench:task:results:*"))

    def work(self, mode: Mode) -> None:
        logging.getLogger("streaq").setLevel(logging.WARNING)
        self._make(CONCURRENCY[mode]).run_sync()


if __name__ == "__main__":
    main(Streaq)
