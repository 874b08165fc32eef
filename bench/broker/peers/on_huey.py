"""huey: one consumer with greenlets."""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import sys

if "work" in sys.argv:  # before anything else is imported
    from gevent import monkey

    monkey.patch_all()

import logging
from typing import TYPE_CHECKING, Any

from huey import RedisHuey

if TYPE_CHECKING:
    from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, main
else:  # beside this file: nothing else of bench is in a peer's environment
    from shared import PAYLOAD, RESULT, Mode, Peer, Wire, main

WORKERS = {"drain": 50, "defaults": 1, "tuned": 1}


class Huey(Peer):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._connect(notify=False)

    def _connect(self, *, notify: bool) -> None:
        self._huey = RedisHuey("bench", url=self.url, notify_result=notify)
        self._notify = notify
        self._noop = self._huey.task(name="noop")(lambda payload: RESULT)  # noqa: ARG005 - it is carried, not used

    async def close(self) -> None:
        self._huey.storage.conn.close()

    async def enqueue(self, count: int) -> None:
        for _ in range(count):
            self._noop(PAYLOAD)

    async def call(self, *, tuned: bool) -> Any:
        if tuned is not self._notify:
            self._connect(notify=tuned)
        return self._noop(PAYLOAD).get(blocking=True, timeout=10)

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("LLEN", "huey.redis.bench"))

    def finished(self, wire: Wire) -> int:
        return int(wire.ask("HLEN", "huey.results.bench"))

    def stored(self, wire: Wire) -> int:
        return self.finished(wire)

    def work(self, mode: Mode) -> None:
        logging.getLogger("huey").setLevel(logging.WARNING)
        self._connect(notify=mode == "tuned")
        self._huey.create_consumer(workers=WORKERS[mode], worker_type="greenlet", periodic=False).run()


if __name__ == "__main__":
    main(Huey)
