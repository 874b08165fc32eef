"""streamfleet, with the same command line as the adapters of its peers, and one more command, `stage`.

`python -m bench.broker.ours URL drain 20000`. All settings have their defaults: a service's client, one worker whose
engine answers at once. Producer and worker use their default event loops.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.broker.peers.shared import PAYLOAD, RESULT, Mode, Peer, Wire, main
from bench.core.processes import workers
from streamfleet.producer import Client
from tests.broker import Broker

AT_ONCE = 5_000
LANE = "{default}:lane:normal"
COUNTS = "{default}:counts"


def body() -> dict[str, object]:
    """A request whose JSON has the size of a peer's payload."""
    empty = {"messages": [{"role": "user", "content": ""}], "max_tokens": 16, "temperature": 0}
    content = "x" * (len(PAYLOAD) - len(json.dumps(empty, separators=(",", ":"))))
    return {**empty, "messages": [{"role": "user", "content": content}]}


class Ours(Peer):
    """streamfleet as a peer."""

    async def open(self) -> None:
        self._client = await Client(self.url).__aenter__()
        self._body = body()

    async def close(self) -> None:
        await self._client.close()

    async def enqueue(self, count: int) -> None:
        while count > 0:
            some = min(count, AT_ONCE)
            await self._client.enqueue_many([{"body": self._body} for _ in range(some)])
            count -= some

    async def call(self, *, tuned: bool) -> str:  # noqa: ARG002 - there is nothing to tune
        result = await (await self._client.enqueue(self._body)).result(timeout=10)
        result.raise_for_status()
        return RESULT if result.text else ""

    def queued(self, wire: Wire) -> int:
        return int(wire.ask("XLEN", LANE))

    def finished(self, wire: Wire) -> int:
        return int(wire.ask("HGET", COUNTS, "succeeded") or 0)

    def picked(self, wire: Wire) -> bool:
        return bool(wire.ask("HGET", COUNTS, "staged"))

    def stored(self, wire: Wire) -> int:
        return len(wire.keys("{default}:result:*")) - self.queued(wire)

    @contextmanager
    def worker(self, mode: Mode) -> Iterator[Callable[[], bool]]:  # noqa: ARG002 - the same worker for all
        environment = {"BENCH_ANSWER_BYTES": len(RESULT)}
        with workers(self.url, module="bench.core.noop_worker", environment=environment) as (process,):
            yield lambda: process.running


async def stage(url: str) -> int:
    """Move every waiting request into its lane's ready set, as a worker's pulls do; returns the number of requests."""
    staged = 0
    async with Client(url) as client:
        while some := (await Broker.of(client.broker).pull("stager", 0)).staged:
            staged += some
    return staged


if __name__ == "__main__":
    if sys.argv[2:] == ["stage"]:
        print(json.dumps({"staged": asyncio.run(stage(sys.argv[1]))}))
    else:
        main(Ours)
