"""taskiq with taskiq-redis: one asynchronous worker on a stream, which acknowledges."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, each, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, each, main

ENQUEUES_AT_ONCE = 10
TUNED_POLL_S = 0.001
RESULT_TTL_S = 86_400
STREAM = "bench"


class Taskiq(Peer):
    uvloop = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        results: Any = RedisAsyncResultBackend(url, result_ex_time=RESULT_TTL_S, prefix_str="result")
        # From the stream's beginning: by default it skips jobs from before the first worker.
        self._broker = RedisStreamBroker(url, queue_name=STREAM, consumer_id="0").with_result_backend(results)

        async def noop(payload: str) -> str:  # noqa: ARG001 - it is carried, not used
            return RESULT

        self._noop = self._broker.register_task(noop, task_name="noop")

    async def open(self) -> None:
        await self._broker.startup()

    async def close(self) -> None:
        await self._broker.shutdown()

    async def enqueue(self, count: int) -> None:
        await each(count, ENQUEUES_AT_ONCE, lambda: self._noop.kiq(PAYLOAD))

    async def call(self, *, tuned: bool) -> Any:
        task = await self._noop.kiq(PAYLOAD)
        result = await (task.wait_result(check_interval=TUNED_POLL_S) if tuned else task.wait_result())
        return result.return_value

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("XLEN", STREAM))

    def finished(self, wire: Wire) -> int:
        expiring = dict(item.split(b"=") for item in _keyspace(wire).split(b","))
        return int(expiring.get(b"expires", 0))

    def stored(self, wire: Wire) -> int:
        return len(wire.keys("result:*"))

    def work(self, mode: Mode) -> None:  # noqa: ARG002 - one way to run it
        logging.getLogger("taskiq").setLevel(logging.WARNING)
        asyncio.run(run_receiver_task(self._broker, run_startup=True))


def _keyspace(wire: Wire) -> bytes:
    return bytes(wire.ask("INFO", "keyspace")).partition(b"db0:")[2].strip() or b"expires=0"


if __name__ == "__main__":
    main(Taskiq)
