"""The observed fleet: a real Redis, an exporter, workers with the simulated engine, a gateway, load in every lane."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from monitoring.observe import gateway
from monitoring.observe.processes import ended_after
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.protocol import LANES
from streamfleet.producer import Client
from tests.support.redis_server import RedisServer, free_port

WORKERS = 2
BATCH, PAUSE_S = 60, 1.0
"""About twice the 28 requests a second that two workers of this profile answer, so that requests wait in every lane."""
BURSTS, LULL_S = 8, 8.0
"""After so many batches nothing comes for so long: who has ended its own takes what waits for the other."""
STREAMED = 12
"""Of this many requests, one per lane is streamed; more would delay the gateway's own streams."""
SETTINGS = {"ENGINE": "simulated", "SIMULATED_PROFILE": "smollm2-cpu", "LEASE_MS": "2000", "LOG_LEVEL": "error"}


@dataclass(frozen=True)
class Fleet:
    """URLs of its Redis and its gateway, and the addresses of all metrics pages."""

    redis_url: str
    gateway_url: str
    targets: list[str]


@contextmanager
def fleet() -> Iterator[Fleet]:
    """Start a queue with workers, an exporter and a gateway; they end with the context."""
    with RedisServer() as server, tempfile.TemporaryDirectory() as files, contextlib.ExitStack() as stack:
        ports, metrics = [free_port() for _ in range(WORKERS + 2)], free_port()
        outer = {name: value for name, value in os.environ.items() if not name.startswith("STREAMFLEET_")}
        settings = SETTINGS | gateway.SETTINGS | {"GATEWAY_FILES": f"file://{files}"}
        common = {**outer, "REDIS_URL": server.url, **{f"STREAMFLEET_{name}": text for name, text in settings.items()}}
        own = ["exporter", "gateway"]
        commands = [
            *([word, "--port", str(port)] for word, port in zip(own, ports, strict=False)),
            *[["worker"]] * WORKERS,
        ]
        for words, port in zip(commands, ports, strict=True):
            own_ports = {"STREAMFLEET_HEALTH_PORT": str(port), "STREAMFLEET_GATEWAY_HEALTH_PORT": str(metrics)}
            environment = {**common, **own_ports}
            command = [sys.executable, "-m", "streamfleet.cli", *words]
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
            stack.enter_context(ended_after(process))
        pages = [f"127.0.0.1:{port}" for port in (ports[0], metrics, *ports[2:])]
        yield Fleet(server.url, f"http://127.0.0.1:{ports[1]}", pages)


async def load(url: str, stopped: asyncio.Event) -> int:
    """Enqueue more than the fleet can run, some of it late, invalid or cancelled. Returns the number accepted."""
    accepted = batches = 0
    async with Client(url) as client:
        while not stopped.is_set():
            batches += 1
            handles = await client.enqueue_many(_asks())
            accepted += len(handles)
            await handles[-1].cancel()
            with contextlib.suppress(StreamfleetError):
                await client.enqueue({"messages": [{"role": "user", "content": "hi"}], "n": 1_000})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), PAUSE_S if batches % BURSTS else LULL_S)
    return accepted


def _asks() -> list[dict[str, Any]]:
    message = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 24}
    lives = (timedelta(milliseconds=300), timedelta(seconds=20), timedelta(minutes=2))
    return [
        {
            "body": message,
            "lane": LANES[number % len(LANES)],
            "deadline": lives[number % len(lives)],
            "tenant": ("a", "b")[number % 2],
            "session": f"s-{number % 7}",
            "stream": number % STREAMED >= STREAMED - len(LANES),
        }
        for number in range(BATCH)
    ]
