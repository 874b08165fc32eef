"""Cost of waiting for replicas when enqueueing: on loopback, where the network costs nothing."""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path

from streamfleet.common.settings import QueueSettings, load
from streamfleet.producer import Ask, Client
from tests.ha.nodes import AT_ONCE, make_replica, tell
from tests.integration.worker_process import chat
from tests.support.redis_server import RedisServer

SINGLES, BULK = 300, 4_000
AFTER = (0, 1, 2)


async def wait_cost(binary: Path | None, rounds: int) -> str:
    """Medians of interleaved rounds: latency of one `enqueue`, and requests a second of `enqueue_many`."""
    single: dict[int, list[float]] = {count: [] for count in AFTER}
    bulk: dict[int, list[float]] = {count: [] for count in AFTER}
    with contextlib.ExitStack() as opened:
        # With an append-only file, as it should be run.
        options = {**AT_ONCE, "appendonly": "yes", "appendfsync": "everysec"}
        master, *replicas = (opened.enter_context(RedisServer(binary, options=options)) for _ in range(3))
        for replica in replicas:
            make_replica(replica, master)
        for number in range(rounds):
            for count in AFTER:
                tell(master.port, "FLUSHALL")
                latencies, rate = await _measure(master.url, count)
                single[count] += latencies
                bulk[count].append(rate)
            print(f"round {number + 1} of {rounds}", flush=True)
    parts = [
        f"[replicas={count} single_p50={statistics.median(single[count]):.2f}ms "
        f"single_p99={statistics.quantiles(single[count], n=100)[98]:.2f}ms "
        f"bulk={statistics.median(bulk[count]):.0f}/s]"
        for count in AFTER
    ]
    return f"wait {' '.join(parts)}"


async def _measure(url: str, replicas: int) -> tuple[list[float], float]:
    """Latencies in ms, and requests a second."""
    settings = load(QueueSettings, redis_url=url, enqueue_replicas=replicas)
    latencies = []
    async with Client(settings=settings, notify=False) as client:
        await client.enqueue(chat())
        for _ in range(SINGLES):
            begun = time.perf_counter()
            await client.enqueue(chat())
            latencies.append((time.perf_counter() - begun) * 1000)
        asks = [Ask(body=chat()) for _ in range(BULK)]
        begun = time.perf_counter()
        await client.enqueue_many(asks)
        return latencies, BULK / (time.perf_counter() - begun)
