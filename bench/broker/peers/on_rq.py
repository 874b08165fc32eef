"""rq: SimpleWorker, which runs jobs in its own process, one at a time."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import redis
from rq import Queue, SimpleWorker

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, main

AT_ONCE = 500


def noop(payload: str) -> str:  # noqa: ARG001 - it is carried, not used
    return RESULT


class Rq(Peer):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._redis = redis.Redis.from_url(url)
        self._queue = Queue("bench", connection=self._redis)

    async def close(self) -> None:
        self._redis.close()

    async def enqueue(self, count: int) -> None:
        while count > 0:
            some = min(count, AT_ONCE)
            self._queue.enqueue_many([Queue.prepare_data("on_rq.noop", (PAYLOAD,)) for _ in range(some)])
            count -= some

    async def call(self, *, tuned: bool) -> Any:  # noqa: ARG002 - both block, nothing polls
        return self._queue.enqueue("on_rq.noop", PAYLOAD).latest_result(timeout=10).return_value

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("LLEN", "rq:queue:bench"))

    def finished(self, wire: Wire) -> int:
        return int(wire.ask("ZCARD", "rq:finished:bench"))

    def stored(self, wire: Wire) -> int:
        return len(wire.keys("rq:results:*"))

    def work(self, mode: Mode) -> None:  # noqa: ARG002 - one way to run it
        logging.getLogger("rq").setLevel(logging.WARNING)
        SimpleWorker([self._queue], connection=self._redis).work(logging_level="WARNING")


if __name__ == "__main__":
    main(Rq)
