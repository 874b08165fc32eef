"""celery: one worker with the solo pool, which runs jobs in its own process, one at a time."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, main

PREFETCH = {"drain": 64, "defaults": 4, "tuned": 4}


def noop(payload: str) -> str:  # noqa: ARG001 - it is carried, not used
    return RESULT


class OnCelery(Peer):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._app = Celery("bench", broker=url, backend=url)
        self._app.conf.broker_connection_retry_on_startup = True
        self._app.conf.task_default_queue = "bench"
        self._noop = self._app.task(name="noop")(noop)

    async def close(self) -> None:
        self._app.close()

    async def enqueue(self, count: int) -> None:
        with self._app.producer_pool.acquire(block=True) as producer:
            for _ in range(count):
                self._noop.apply_async((PAYLOAD,), producer=producer, ignore_result=False)

    async def call(self, *, tuned: bool) -> Any:  # noqa: ARG002 - the result comes by publish and subscribe
        return self._noop.delay(PAYLOAD).get(timeout=10)

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("LLEN", "bench"))

    def finished(self, wire: Wire) -> int:
        waiting = wire.ask("EVAL", "return redis.call('LLEN', 'bench') + redis.call('HLEN', 'unacked')", 0)
        return self.jobs - int(waiting)

    def stored(self, wire: Wire) -> int:
        return len(wire.keys("celery-task-meta-*"))

    def work(self, mode: Mode) -> None:
        self._app.conf.worker_prefetch_multiplier = PREFETCH[mode]
        self._app.conf.worker_hijack_root_logger = False
        options = ["--pool=solo", "--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        self._app.worker_main(["worker", *options, "--queues=bench"])


if __name__ == "__main__":
    main(OnCelery)
