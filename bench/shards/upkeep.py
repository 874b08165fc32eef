"""Calls of workers that do not depend on requests: heartbeats, turns, waits, housekeeping, open connections."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager

import redis

from bench.core.rounds import Sample
from bench.scheduling.feeding import fill, queue_settings, stage_all
from bench.shards.costs import BESIDE, LONE, LONE_PAUSE_S
from bench.shards.life import together
from bench.shards.server import look, spent
from bench.shards.sizes import Sizes
from streamfleet.common.broker.types import Role
from streamfleet.common.clock import SystemClock
from streamfleet.common.limits import QueueLimits
from streamfleet.worker.housekeeping import Housekeeper
from tests.broker import Broker

NAMES = 50
"""Workers that take turns at calling."""
SHORT_MS = 2
TURN_MS, GAP_MS = 60_000, 5_000
PULL = 128
LEASE_MS = 600_000
SOCKETS_S = 1.0
LONE_NUMBER = 200
ASKING = ("heartbeat", "acquire_housekeeping_lock")
WORKING = "import json\ntext = json.dumps(list(range(100_000)))\nwhile True: json.loads(text)"
TICKS = 10
FORGOTTEN_MS = 3_600_000
RUNNING, KNOWN, TURNS = "running", "known", "turns"
"""Queues that hold requests, know workers, and whose turn somebody has."""


def description(number: int) -> dict[str, object]:
    """A worker's description of itself, as `Worker.describe` makes it."""
    return {
        "state": "ready",
        "version": "0.1.0",
        "engine": "vllm",
        "models": ["Qwen/Qwen2.5-7B-Instruct"],
        "running": 64,
        "slots": 64,
        "credit": 0,
        "host": f"worker-large-7d9f8b6c5d-{number:05d}",
        "pid": 7,
        "started_ms": 1_790_000_000_000,
        "lease_ms": 10_000,
        "oldest_held_ms": 1_790_000_000_000 + number,
    }


def measures(url: str, sizes: Sizes) -> dict[str, Callable[[], Sample]]:
    """Measures by name; each gives "us" of a call, and "number" if the cost grows with a number.

    Args:
        url: a server for this measurement alone, prepared by `furnish`.
        sizes: sizes of the measurement.
    """

    def calls(work: Callable[[Broker, int], Awaitable[object]], queue: str = "default") -> Callable[[], Sample]:
        return lambda: asyncio.run(_each(url, queue, sizes.calls, work))

    def lone(work: Callable[[Broker, int], Awaitable[object]]) -> Callable[[], Sample]:
        return lambda: asyncio.run(_each(url, TURNS, min(sizes.calls, LONE_NUMBER), work, LONE_PAUSE_S))

    def ticks(queue: str, number: int) -> Callable[[], Sample]:
        return lambda: {**asyncio.run(_each(url, queue, TICKS, _tick)), "number": number}

    def forgetting(queue: str, number: int) -> Callable[[], Sample]:
        return lambda: {**asyncio.run(_each(url, queue, TICKS, _forget)), "number": number}

    small = {"heartbeat": _heartbeat, "acquire_housekeeping_lock": _ask, "empty_pull": _pull, "PING": _ping}
    return {
        **{name: calls(work, TURNS if name in ASKING else "default") for name, work in small.items()},
        **{f"{LONE}{name}": lone(work) for name, work in small.items()},
        **{f"{LONE}{name}{BESIDE}": beside_others(lone(work)) for name, work in small.items()},
        "bench": lambda: asyncio.run(_waits(url, sizes.calls, lambda broker: broker.wait_idle(SHORT_MS, "w1", 0))),
        "notices": lambda: asyncio.run(_waits(url, sizes.calls, lambda broker: broker.read_notices("0-0", SHORT_MS))),
        "watch": lambda: asyncio.run(_watched(url, sizes.calls)),
        "tick": ticks("default", 0),
        "tick, many running": ticks(RUNNING, sizes.running),
        "forget": forgetting("default", 0),
        "forget, many known": forgetting(KNOWN, sizes.described),
        "alone": lambda: _open(url, 0),
        "connections": lambda: _open(url, sizes.sockets),
    }


def name(number: int) -> str:
    """A worker's name of realistic length."""
    return f"worker-large-7d9f8b6c5d-{number % NAMES:05d}-7-3fa9c1"


async def furnish(url: str, sizes: Sizes) -> None:
    """Make queues that hold many requests and know many workers."""
    with redis.Redis.from_url(url) as client:
        async with _broker(url, RUNNING) as broker:
            await broker.ensure_groups()
            fill(client, "normal", sizes.running, name="held-", queue=RUNNING)
            await stage_all(broker)
            held = 0
            while held < sizes.running:
                held += len((await broker.pull(name(held // PULL), PULL)).claims)
        async with _broker(url, KNOWN) as broker:
            await broker.ensure_groups()
            for number in range(sizes.described):
                await broker.heartbeat(f"{name(number)}-{number}", description(number))
        for queue in ("default", TURNS):
            async with _broker(url, queue) as broker:
                await broker.ensure_groups()


def _broker(url: str, queue: str) -> _Opened:
    return _Opened(Broker.open(queue_settings(url, queue=queue)))


class _Opened:
    """Context with an open broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def __aenter__(self) -> Broker:
        return self._broker

    async def __aexit__(self, *_: object) -> None:
        await self._broker.close()


async def _each(
    url: str, queue: str, number: int, work: Callable[[Broker, int], Awaitable[object]], pause_s: float | None = None
) -> Sample:
    """CPU µs of each of so many calls: together, or one by one with a pause before each."""
    with redis.Redis.from_url(url) as client:
        async with _broker(url, queue) as broker:
            await work(broker, 0)
            before = look(client)
            if pause_s is None:
                await together(work(broker, at) for at in range(number))
            else:
                for at in range(number):
                    await asyncio.sleep(pause_s)
                    await work(broker, at)
            cost = spent(before, look(client))
    return {"us": cost.cpu_us / number, "in B": cost.in_bytes / number, "out B": cost.out_bytes / number}


def beside_others(measure: Callable[[], Sample]) -> Callable[[], Sample]:
    """The same measure while as many processes as there are cores but one work on JSON."""

    def measured() -> Sample:
        with ExitStack() as stack:
            for _ in range(max(1, (os.cpu_count() or 1) - 1)):
                process = stack.enter_context(subprocess.Popen([sys.executable, "-c", WORKING]))
                stack.callback(process.kill)
            return measure()

    return measured


async def _heartbeat(broker: Broker, at: int) -> None:
    await broker.heartbeat(name(at), description(at))


async def _ask(broker: Broker, at: int) -> None:
    await broker.acquire_housekeeping_lock(name(at), TURN_MS, GAP_MS)


async def _pull(broker: Broker, at: int) -> None:
    """A pull that finds nothing."""
    await broker.pull(name(at), 64)


async def _ping(broker: Broker, _: int) -> None:
    await broker.connection.command("PING")


async def _waits(url: str, number: int, wait: Callable[[Broker], Awaitable[object]]) -> Sample:
    """µs of a blocking read that brings nothing. Many run at once, because the server ends each 0.1 s late."""
    brokers = [Broker.open(queue_settings(url, queue=TURNS)) for _ in range(min(number, NAMES))]
    rounds = -(-number // len(brokers))
    with redis.Redis.from_url(url) as client:
        try:
            await asyncio.gather(*(wait(broker) for broker in brokers))
            before = look(client)
            for _ in range(rounds):
                await asyncio.gather(*(wait(broker) for broker in brokers))
            cost = spent(before, look(client))
        finally:
            for broker in brokers:
                await broker.close()
    waits = rounds * len(brokers)
    return {"us": cost.cpu_us / waits, "in B": cost.in_bytes / waits, "out B": cost.out_bytes / waits}


async def _tick(broker: Broker, _: int) -> None:
    """One second's work of the worker whose turn it is."""
    clock = SystemClock()
    housekeeper = Housekeeper(broker, name(0), QueueLimits(lease_ms=LEASE_MS), clock)
    housekeeper._reclaim_guard.heard(clock.monotonic() - LEASE_MS / 1000)  # noqa: SLF001 - as after a lease of watching Redis
    housekeeper._reclaim_guard.gap_s = float("inf")  # noqa: SLF001
    housekeeper._forget_at = float("inf")  # noqa: SLF001 - once a minute, and measured separately
    await broker.return_delayed()
    await broker.tend_watchers()
    await housekeeper.tick()


async def _forget(broker: Broker, _: int) -> None:
    await broker.deregister(silent_ms=FORGOTTEN_MS, limit=500)


async def _watched(url: str, number: int) -> Sample:
    """µs of the blocking read that gives a watcher one arrival; removing the arrival is not measured."""
    with redis.Redis.from_url(url) as client:
        async with _broker(url, "default") as broker:
            fill(client, "normal", number, name="watched-")
            before = look(client)
            for _ in range(number):
                assert await broker.wait(Role.WATCHER, 1_000), "an arrival was not delivered"
            cost = spent(before, look(client))
            client.delete(*broker.keys.lanes, *(broker.keys.ready(lane) for lane in ("normal",)))
            await broker.ensure_groups()
    return {"us": cost.cpu_us / number, "in B": cost.in_bytes / number, "out B": cost.out_bytes / number}


def _open(url: str, sockets: int) -> Sample:
    """µs a second of a server with so many idle connections; "bytes" of each connection."""
    with redis.Redis.from_url(url) as client:
        without = look(client)
        with _sockets(client, sockets):
            before, began = look(client), time.monotonic()
            time.sleep(SOCKETS_S)
            after = look(client)
            seconds = time.monotonic() - began
    taken = (before.clients_bytes - without.clients_bytes) / max(1, sockets)
    return {"us": (after.cpu_us - before.cpu_us) / seconds, "number": sockets, "bytes": taken}


@contextmanager
def _sockets(client: redis.Redis, number: int) -> Iterator[None]:
    host = client.get_connection_kwargs()
    with ExitStack() as opened:
        for _ in range(number):
            link = opened.enter_context(socket.create_connection((host["host"], host["port"]), timeout=10))
            link.sendall(b"PING\r\n")
            assert link.recv(64).startswith(b"+PONG"), "the server takes no more connections"
        yield
