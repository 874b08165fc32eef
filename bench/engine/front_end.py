"""CPU time of a worker's own part: a real worker process whose engine answers at once, at a steady rate of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.core.processes import cpu_seconds, workers
from bench.core.redis import own_server
from streamfleet.producer import Client, Handle

RATE_PER_S = 50
ANSWER_S = 30.0
BODY = {"messages": [{"role": "user", "content": "Say hi. " * 50}], "max_tokens": 16}


@dataclass(frozen=True)
class FrontEnd:
    """CPU time of a worker's process.

    Attributes:
        seconds: length of the measurement with requests, and of the one without.
        requests: number of requests.
        busy_s, idle_s: CPU time with requests, and without any.
    """

    seconds: float
    requests: int
    busy_s: float
    idle_s: float

    @property
    def busy_percent(self) -> float:
        """Per cent of one core with requests."""
        return self.busy_s / self.seconds * 100

    @property
    def idle_percent(self) -> float:
        """Per cent of one core without requests."""
        return self.idle_s / self.seconds * 100


def measure(seconds: float, rate_per_s: int = RATE_PER_S) -> FrontEnd:
    """Measure a worker whose engine does nothing, at a constant rate of requests."""
    with _noop_worker() as (url, pid):
        asyncio.run(_feed(url, rate_per_s, rate_per_s))  # one-time work, not measured
        before_s = cpu_seconds(pid)
        time.sleep(seconds)
        began_s = cpu_seconds(pid)
        count = round(seconds * rate_per_s)
        took_s = asyncio.run(_feed(url, count, rate_per_s))
        return FrontEnd(took_s, count, cpu_seconds(pid) - began_s, (began_s - before_s) * took_s / seconds)


@contextmanager
def _noop_worker() -> Iterator[tuple[str, int]]:
    with own_server() as server, workers(server.url, module="bench.core.noop_worker") as processes:
        yield server.url, processes[0].pid


async def _feed(url: str, count: int, rate_per_s: int) -> float:
    """Enqueue evenly and wait for all results; returns the seconds it took."""
    loop = asyncio.get_running_loop()
    async with Client(url) as client:
        handles: list[Handle] = []
        began = loop.time()
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / rate_per_s - loop.time()))
            handles.append(await client.enqueue(BODY))
        async for result in client.as_completed(handles, timeout=ANSWER_S):
            result.raise_for_status()
        return loop.time() - began
