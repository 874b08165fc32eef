"""The limit of redis-py: the same work as plain commands, 100 jobs in a pipeline, without a queue.

A job is a stream entry with an id of 32 characters and the payload. The worker reads 100 through a consumer group; for
each it stores the result with a time to live, acknowledges and deletes the entry. It fences, orders and notifies
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, main

STREAM, GROUP, CONSUMER = "jobs", "workers", "w"
AT_ONCE = 100
RESULT_TTL_MS = 86_400_000


class Raw(Peer):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._redis = redis.Redis.from_url(url)
        self._count = 0

    async def open(self) -> None:
        if not self._redis.exists(STREAM):
            self._redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    async def close(self) -> None:
        self._redis.close()

    def _job(self) -> dict[Any, Any]:
        self._count += 1
        return {"id": f"{self._count:032x}", "body": PAYLOAD}

    async def enqueue(self, count: int) -> None:
        while count > 0:
            pipe = self._redis.pipeline(transaction=False)
            for _ in range(min(count, AT_ONCE)):
                pipe.xadd(STREAM, self._job())
            count -= len(pipe.execute())

    async def call(self, *, tuned: bool) -> Any:  # noqa: ARG002 - there is but one way
        job = self._job()
        self._redis.xadd(STREAM, job)
        self._redis.blpop([f"reply:{job['id']}"], timeout=10)
        return self._redis.get(f"result:{job['id']}")

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("XLEN", STREAM))

    def finished(self, wire: Wire) -> int:
        return self.jobs - self.queued(wire)

    def stored(self, wire: Wire) -> int:
        return len(wire.keys("result:*"))

    def work(self, mode: Mode) -> None:
        answer: Any
        while True:
            answer = self._redis.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=AT_ONCE, block=0)
            for _, entries in answer:
                pipe = self._redis.pipeline(transaction=False)
                for entry, job in entries:
                    pipe.set(b"result:" + job[b"id"], RESULT, px=RESULT_TTL_MS)
                    if mode != "drain":
                        pipe.lpush(b"reply:" + job[b"id"], "1")
                    pipe.xack(STREAM, GROUP, entry)
                    pipe.xdel(STREAM, entry)
                pipe.execute()


if __name__ == "__main__":
    main(Raw)
