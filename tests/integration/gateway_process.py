"""Real gateway processes for tests, and a stage of one: Redis, a worker with the simulated engine, a gateway."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest
import redis.asyncio

from streamfleet.common.connection import Connection
from streamfleet.common.protocol import Lane
from streamfleet.gateway.api_keys import GatewayNames, KeyRecord, digest_of, make_record, new_secret
from streamfleet.gateway.broker.api_keys import GatewayBroker
from tests.constants import Constants
from tests.integration.cli_processes import environment
from tests.integration.forked import ForkedProcess
from tests.integration.own_pages import Answer, page, sample_on
from tests.integration.worker_process import WorkerProcess
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually, eventually_blocking

if TYPE_CHECKING:
    import openai

START_S = 40.0
SETTINGS = {"GATEWAY_PORT": "0", "GATEWAY_HEALTH_PORT": "0", "LOG_FORMAT": "json", "LOG_LEVEL": "debug"}


class GatewayProcess:
    """`streamfleet gateway`, as a process, which is killed at the end of its context.

    Args:
        redis_url: its Redis.
        folder: where its log goes.
        constants: values of its constants.
        settings: in lower case, without the prefix; those of the gateway without `gateway_` too.
    """

    def __init__(self, redis_url: str, folder: Path, constants: Constants | None = None, **settings: object) -> None:
        given = {f"STREAMFLEET_{key.upper()}": str(value) for key, value in settings.items()}
        usual = {f"STREAMFLEET_{key}": value for key, value in SETTINGS.items()}
        self._log = folder / "gateway.log"
        self.process = ForkedProcess(self.command(), environment(redis_url, **(usual | given)), self._log, constants)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def command(self) -> list[str]:
        """The module to run, and its arguments."""
        return ["streamfleet.cli", "gateway"]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def printed(self) -> str:
        """Everything that it wrote."""
        return self._log.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of this name that it has logged so far."""
        lines = self.printed().splitlines()
        logged = [json.loads(line) for line in lines if name in line and line.startswith("{") and line[-1] == "}"]
        return [event for event in logged if event.get("event") == name]

    def ready(self) -> GatewayProcess:
        """Wait until it listens."""
        eventually_blocking(lambda: self.events("gateway_ready") or not self.alive, START_S, "the gateway listens")
        assert self.alive, self.printed()
        return self

    @cached_property
    def port(self) -> int:
        return int(self.events("gateway_ready")[0]["port"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def http(self, key: str | None = None, timeout_s: float = 20.0) -> httpx.AsyncClient:
        """A client of it, with an API key or without."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False)

    def http_blocking(self, key: str) -> httpx.Client:
        """The same for tests without an event loop."""
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20, trust_env=False)

    def get(self, path: str) -> Answer:
        """One of its own pages."""
        return page(self.port, path)

    def probe(self, path: str) -> Answer:
        """A page of its health port."""
        return page(int(self.events("gateway_ready")[0]["health_port"]), path)

    def metric(self, sample: str) -> float:
        """Value of a sample on its metrics page; 0 when it is not there."""
        return sample_on(self.probe("/metrics").text, sample)

    def raw(self) -> socket.socket:
        """A bare connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), 10)

    def resident_bytes(self) -> int:
        """Its memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * 4096

    async def ended(self, within_s: float = 15.0) -> int:
        """Wait for its end; its exit status."""
        await eventually(lambda: not self.alive, within_s, "the gateway has ended")
        return int(self.process.wait())

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)

    def destroy(self) -> None:
        """SIGKILL, whatever state it is in."""
        if self.alive:
            self.process.kill()
        self.process.wait()


async def status_of(url: str, request_id: str) -> str:
    """Returns the status of a request of the default queue; empty while it has not ended."""
    async with redis.asyncio.Redis.from_url(url) as rows:
        found = await rows.hget(f"{{default}}:result:{request_id}", "status")
    return found.decode() if isinstance(found, bytes) else ""


@dataclass(frozen=True)
class Stage:
    """Everything that a module's tests share.

    Attributes:
        url: the Redis.
        gateway: asks for keys.
        key: one that may use all lanes, without limits.
        worker: has the simulated engine, with tokens as fast as it can.
    """

    url: str
    gateway: GatewayProcess
    key: str
    worker: WorkerProcess

    def client(self) -> httpx.AsyncClient:
        """An HTTP client with the key."""
        return self.gateway.http(self.key)


def make_key(url: str, name: str = "test", **options: Any) -> tuple[str, KeyRecord]:
    """An API key, straight in Redis."""
    return asyncio.run(add_key(url, name, **options))


async def add_key(url: str, name: str = "test", **options: Any) -> tuple[str, KeyRecord]:
    """The same, on an event loop."""
    secret = new_secret()
    digest = digest_of(secret)
    record = make_record(digest, name, options.pop("tenant", name), **options)
    broker = GatewayBroker(Connection(url), GatewayNames())
    try:
        await broker.add(digest, record)
    finally:
        await broker.close()
    return secret, record


@contextmanager
def gateway_on(
    url: str, folder: Path, kind: Any = GatewayProcess, constants: Any = None, **settings: object
) -> Iterator[GatewayProcess]:
    """A gateway that listens, of this class; killed at the end."""
    with kind(url, folder, constants, **settings) as process:
        yield process.ready()


@contextmanager
def stage_in(
    folder: Path,
    speed: float = 1.0,
    kind: Any = GatewayProcess,
    constants: Any = None,
    **settings: object,
) -> Iterator[Stage]:
    """A stage of one's own; `speed` is how much faster than usual its engine is."""
    with (
        RedisServer(newest(find_servers())) as server,
        WorkerProcess(server.url, folder, "w1", speed=speed) as worker,
        gateway_on(server.url, folder, kind, constants, **settings) as gateway,
    ):
        key, _ = make_key(server.url, "everything", lanes=tuple(Lane))
        yield Stage(server.url, gateway, key, worker.ready_blocking())


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for all tests that want nothing special of it: a gateway takes seconds of a processor to start."""
    with stage_in(tmp_path_factory.mktemp("gateway")) as stage:
        yield stage


@pytest.fixture
async def sdk(stage: Stage) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, as it is but for the address."""
    import openai  # half a second, which only those who ask by it have to spend

    async with openai.AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key=stage.key, max_retries=0) as client:
        yield client


@pytest.fixture
async def http(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client with the stage's key."""
    async with stage.client() as client:
        yield client


@pytest.fixture
async def rows(stage: Stage) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of the stage's Redis, whose values are text."""
    async with redis.asyncio.Redis.from_url(stage.url, decode_responses=True, socket_timeout=None) as client:
        yield client
