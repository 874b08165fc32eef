"""dramatiq: one worker process with 8 threads, its default."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING, Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, main

THREADS = 8


class Dramatiq(Peer):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._broker = RedisBroker(url=url)
        self._broker.add_middleware(Results(backend=RedisBackend(url=url)))
        dramatiq.set_broker(self._broker)
        self._noop = dramatiq.actor(lambda payload: RESULT, actor_name="noop", store_results=True)  # noqa: ARG005

    async def close(self) -> None:
        self._broker.client.close()

    async def enqueue(self, count: int) -> None:
        for _ in range(count):
            self._noop.send(PAYLOAD)

    async def call(self, *, tuned: bool) -> Any:  # noqa: ARG002 - the result is waited for, not polled for
        return self._noop.send(PAYLOAD).get_result(block=True)

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("HLEN", "dramatiq:default.msgs"))

    def finished(self, wire: Wire) -> int:
        return self.jobs - self.queued(wire)

    def stored(self, wire: Wire) -> int:
        return int(wire.ask("DBSIZE")) - len(wire.keys("dramatiq:*"))

    def work(self, mode: Mode) -> None:  # noqa: ARG002 - its default is its best
        logging.getLogger("dramatiq").setLevel(logging.WARNING)
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        worker = dramatiq.Worker(self._broker, worker_threads=THREADS)
        worker.start()
        stop.wait()
        worker.stop(timeout=1000)


if __name__ == "__main__":
    main(Dramatiq)
