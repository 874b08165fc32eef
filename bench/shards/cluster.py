"""Queues over a Redis Cluster: the same requests through one queue, three on one master, and three on three masters.

The result is the CPU time of the busiest master, divided by the number of all requests: this master decides when a
cluster is full. Wall-clock throughput says nothing if the masters share two cores. The CPU time of an idle node, for
its
replica and the other nodes, is measured first and subtracted: it grows with time, not with requests.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any

import redis

from bench.core.feeding import queue_settings
from bench.core.parts import Part, Say
from bench.core.redis import look, newest
from bench.core.reports import ROOT, Table, Target
from bench.core.rounds import Sample, interleave, middle, ratio
from bench.shards.life import Life
from bench.shards.sizes import Sizes
from streamfleet.producer import Client
from tests.ha.clusters import ClusterDeployment
from tests.support.redis_server import RedisServer, find_servers

BATCH, BODY = 8, 500
MASTERS = 3
IDLE_S = 2.0
LEAST_GAIN = 2.7
ONE, TOGETHER, APART = "1 queue", "3 queues on 1 master", "3 queues on 3 masters"
RECIPE = ROOT / "examples" / "many_queues.py"


@functools.cache
def recipe() -> ModuleType:
    """examples/many_queues.py: the measured code is the published example."""
    spec = importlib.util.spec_from_file_location("many_queues", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(sizes: Sizes, say: Say) -> Part:
    """Measure all three in turn, on one cluster of three masters, each with a replica."""
    samples = _samples(sizes, say)
    found = rows(samples)
    gain = found[-1]["carries, of one queue"]
    words = "3 queues on 3 masters carry, of one queue"
    return Part(
        [Table("Cluster: the same requests over three masters", list(found[0]), found)],
        [Target(words, gain, LEAST_GAIN, "at least", "x", "CPU of the busiest master")],
        {"rounds": samples},
    )


def _samples(sizes: Sizes, say: Say) -> dict[str, list[Sample]]:
    """For each, its rounds: CPU µs of a request, of each master ("master 1 us"), of the busiest ("busiest us")."""
    say("starting a cluster of 3 masters and 3 replicas")
    with ClusterDeployment(newest(find_servers())) as cluster:
        masters = cluster.nodes[:MASTERS]
        queues = names(masters[0].port)

        idle_us = idle(masters)

        def through(some: Sequence[str]) -> Sample:
            return asyncio.run(one_round(cluster.url, masters, some, sizes.cluster_requests, idle_us))

        through(queues[APART])  # loads scripts on all masters
        measures = {title: functools.partial(through, some) for title, some in queues.items()}
        return interleave(measures, sizes.rounds, title="cluster")


def names(port: int) -> dict[str, list[str]]:
    """Queue names for each of the three; the cluster tells on which master a name lives."""
    many_queues: Any = recipe()
    ranges = many_queues.slot_ranges("127.0.0.1", port)
    apart: list[str] = many_queues.names_apart("fleet", MASTERS, ranges)
    first_master = next(row for row in ranges if row[0] <= many_queues.slot_of(apart[0]) <= row[1])
    together: list[str] = many_queues.names_apart("near", MASTERS, [first_master])
    return {ONE: apart[:1], TOGETHER: together, APART: apart}


def idle(masters: Sequence[RedisServer]) -> list[float]:
    """CPU µs a second of idle masters."""
    before, began = [_look(master) for master in masters], time.monotonic()
    time.sleep(IDLE_S)
    seconds = time.monotonic() - began
    return [(_look(master) - earlier) / seconds for master, earlier in zip(masters, before, strict=True)]


async def one_round(
    url: str, masters: Sequence[RedisServer], queues: Sequence[str], requests: int, idle_us: Sequence[float]
) -> Sample:
    """Send so many requests, the same number through each queue, all queues at once.

    Args:
        url: URL of the cluster.
        masters: masters whose CPU time is measured.
        queues: their names.
        requests: total number.
        idle_us: CPU µs that each idle master uses in a second.
    """
    async with AsyncExitStack() as opened:
        clients = [
            await opened.enter_async_context(Client(settings=queue_settings(url, queue=queue))) for queue in queues
        ]
        lives = [Life(client, BATCH, BODY) for client in clients]
        for life in lives:
            await life.warm_up()
            life.prepare(requests // len(queues))
        before, began = [_look(master) for master in masters], time.monotonic()
        await asyncio.gather(*(_through(life) for life in lives))
        seconds = time.monotonic() - began
        nothing_us = [each_us * seconds for each_us in idle_us]
        spent = [
            max(0.0, _look(master) - earlier - nothing) / requests
            for master, earlier, nothing in zip(masters, before, nothing_us, strict=True)
        ]
    each = {f"master {number} us": cost for number, cost in enumerate(spent, 1)}
    return {**each, "busiest us": max(spent)}


async def _through(life: Life) -> None:
    for work in life.verbs().values():
        await work()


def _look(master: RedisServer) -> float:
    with redis.Redis.from_url(master.url) as client:
        return look(client).cpu_us


def rows(samples: dict[str, list[Sample]]) -> list[dict[str, Any]]:
    """Rows of the table."""
    return [
        {
            "queues": title,
            **{
                f"master {number}, µs a request": middle(found, f"master {number} us")
                for number in range(1, MASTERS + 1)
            },
            "busiest, µs a request": middle(found, "busiest us"),
            "carries, of one queue": ratio(samples[ONE], found, "busiest us"),
        }
        for title, found in samples.items()
    ]
