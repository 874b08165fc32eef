"""A gateway to measure: its process, workers behind it, a Redis of its own, and an API key without limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from bench.core.processes import cpu_seconds, started, variables, workers
from bench.core.redis import own_server
from streamfleet.common.connection import Connection
from streamfleet.common.protocol import LANES
from streamfleet.gateway.api_keys import GatewayNames, digest_of, make_record, new_secret
from streamfleet.gateway.broker.api_keys import GatewayBroker
from tests.support.redis_server import free_port

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Stage:
    """A gateway with everything behind it, ready.

    Attributes:
        redis_url: URL of the Redis behind it.
        port: port of the gateway.
        key: an API key.
        pids: process ids by part: redis, gateway, and workers as worker 1, worker 2, …
    """

    redis_url: str
    port: int
    key: str
    pids: Mapping[str, int]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of a caller's request."""
        return {"Authorization": f"Bearer {self.key}"}

    def cpu(self) -> dict[str, float]:
        """CPU time that each part has used so far, in seconds."""
        return {part: cpu_seconds(pid) for part, pid in self.pids.items()}


@contextmanager
def staged(environment: Mapping[str, object], *, module: str = "streamfleet.worker", count: int = 1) -> Iterator[Stage]:
    """Start a gateway in front of so many workers.

    Args:
        environment: settings of the workers.
        module: module that a worker runs.
        count: number of workers.
    """
    with own_server() as server, workers(server.url, count, module=module, environment=environment) as running:
        port = free_port()
        settings = {
            "REDIS_URL": server.url,
            "STREAMFLEET_GATEWAY_PORT": str(port),
            "STREAMFLEET_GATEWAY_HEALTH_PORT": "0",
            "STREAMFLEET_LOG_FORMAT": "json",  # a line for each request, as in production
        }
        words = ["-m", "streamfleet.cli", "gateway"]
        with started(words, talks=False, environment=variables(settings)) as child:
            child.wait_until(lambda: _ready(port))
            pids = {f"worker {number}": process.pid for number, process in enumerate(running, 1)}
            pids |= {"gateway": child.pid, "redis": server.pid}
            yield Stage(server.url, port, asyncio.run(_new_key(server.url)), pids)


async def _new_key(url: str) -> str:
    secret = new_secret()
    broker = GatewayBroker(Connection(url), GatewayNames())
    try:
        await broker.add(digest_of(secret), make_record(digest_of(secret), "bench", "bench", lanes=tuple(LANES)))
    finally:
        await broker.close()
    return secret


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://{HOST}:{port}/readyz", timeout=5.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
