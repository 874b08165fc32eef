"""BullMQ for Python: one asynchronous worker."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bullmq import Queue, QueueEvents, Worker

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, main

AT_ONCE = 500
EVENTS_BLOCK_MS = 500
CONCURRENCY = {"drain": 10, "defaults": 1, "tuned": 1}


class BullMQ(Peer):
    uvloop = True

    async def open(self) -> None:
        self._queue = Queue("bench", {"connection": self.url})
        self._events: Any = None
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    async def close(self) -> None:
        if self._events is not None:  # its own close() waits for ever, because the pending read survives its cancelling
            self._events.closing = True
            await asyncio.sleep(2 * EVENTS_BLOCK_MS / 1000)
        await self._queue.close()

    async def enqueue(self, count: int) -> None:
        while count > 0:
            some = min(count, AT_ONCE)
            await self._queue.addBulk([{"name": "noop", "data": {"payload": PAYLOAD}} for _ in range(some)])
            count -= some

    async def call(self, *, tuned: bool) -> Any:  # noqa: ARG002 - nothing polls that could be shortened
        if self._events is None:
            # From the stream's beginning: the library does not tell when it has begun to listen.
            options = {"connection": self.url, "lastEventId": "0", "blockingTimeout": EVENTS_BLOCK_MS}
            self._events = QueueEvents("bench", options)
            self._events.on("completed", self._completed)
        job = await self._queue.add("noop", {"payload": PAYLOAD})
        return await self._waiting.setdefault(job.id, asyncio.get_running_loop().create_future())

    def _completed(self, event: dict[str, Any], _: str) -> None:
        # The event may come before `add` has returned.
        future = self._waiting.setdefault(event["jobId"], asyncio.get_running_loop().create_future())
        future.set_result(event["returnvalue"])

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("LLEN", "bull:bench:wait"))

    def finished(self, wire: Wire) -> int:
        return int(wire.ask("ZCARD", "bull:bench:completed"))

    def stored(self, wire: Wire) -> int:
        return sum(wire.ask("HEXISTS", f"bull:bench:{number}", "returnvalue") for number in range(1, self.jobs + 1))

    def work(self, mode: Mode) -> None:
        async def noop(job: Any, token: str) -> str:  # noqa: ARG001 - it is carried, not used
            return RESULT

        async def run() -> None:
            # Without a reference, the worker would be collected while it waits, with its tasks.
            worker = Worker("bench", noop, {"connection": self.url, "concurrency": CONCURRENCY[mode]})
            await asyncio.Event().wait()
            await worker.close()

        asyncio.run(run())


if __name__ == "__main__":
    main(BullMQ)
