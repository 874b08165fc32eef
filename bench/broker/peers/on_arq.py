"""arq: one asynchronous worker, which polls."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from arq.connections import RedisSettings, create_pool
from arq.worker import Worker

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, each, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, each, main

ENQUEUES_AT_ONCE = 50
TUNED_POLL_S = 0.001
SETTINGS: dict[Mode, dict[str, Any]] = {
    "drain": {"max_jobs": 100, "poll_delay": 0.005},
    "defaults": {},
    "tuned": {"poll_delay": TUNED_POLL_S},
}


async def noop(context: Any, payload: str) -> str:  # noqa: ARG001 - it is carried, not used
    return RESULT


class Arq(Peer):
    uvloop = True

    async def open(self) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(self.url))

    async def close(self) -> None:
        await self._pool.aclose()

    async def enqueue(self, count: int) -> None:
        await each(count, ENQUEUES_AT_ONCE, lambda: self._pool.enqueue_job("noop", PAYLOAD))

    async def call(self, *, tuned: bool) -> Any:
        job = await self._pool.enqueue_job("noop", PAYLOAD)
        return await (job.result(poll_delay=TUNED_POLL_S) if tuned else job.result())

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("ZCARD", "arq:queue"))

    def finished(self, wire: Wire) -> int:
        return self.jobs - self.queued(wire)

    def stored(self, wire: Wire) -> int:
        return len(wire.keys("arq:result:*"))

    def work(self, mode: Mode) -> None:
        logging.getLogger("arq").setLevel(logging.WARNING)
        Worker([noop], redis_settings=RedisSettings.from_dsn(self.url), log_results=False, **SETTINGS[mode]).run()


if __name__ == "__main__":
    main(Arq)
