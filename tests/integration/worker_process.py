"""Real worker processes for tests: ended by signals, watched from outside."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from streamfleet.common.broker.types import Lease
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import LANES
from streamfleet.common.results import Result
from tests.broker import Broker
from tests.constants import SPEED, Constants
from tests.integration.forked import ForkedProcess
from tests.integration.own_pages import Answer, page, sample_on
from tests.waiting import eventually, eventually_blocking

START_S = 60.0
SETTINGS = {
    "ENGINE": "simulated",
    "SIMULATED_PROFILE": "fast",
    "LEASE_MS": "1000",
    "HEALTH_PORT": "0",
    "LOG_FORMAT": "json",
    "LOG_LEVEL": "debug",
}


def chat(seconds: float = 0.0, **more: Any) -> dict[str, Any]:
    """A chat request that takes so long on the fast simulated engine, which makes 100 tokens a second when alone."""
    tokens = max(1, round(seconds * 100))
    message = {"role": "user", "content": "Say hi"}
    return {"messages": [message], "max_tokens": tokens, "ignore_eos": True, **more}


class WorkerProcess:
    """One worker, as a process, which is killed at the end of its context.

    Args:
        redis_url: its Redis.
        folder: where its log goes.
        name: its name in the queue.
        constants: values of its constants, but for those of a worker with vLLM.
        speed: how much faster than its profile its simulated engine runs.
        patches: names of `worker_patches.PATCHES` to apply before it runs; tests of guards take the guard out so.
        settings: in lower case, without the prefix.
    """

    def __init__(
        self,
        redis_url: str,
        folder: Path,
        name: str,
        patches: Iterable[str] = (),
        constants: Constants | None = None,
        speed: object = 1.0,
        **settings: object,
    ) -> None:
        self.name = name
        given = {key.upper(): str(value) for key, value in settings.items()}
        values = {**SETTINGS, "REDIS_URL": redis_url, "WORKER_NAME": name, **given}
        environment = {key: value for key, value in os.environ.items() if not key.startswith("STREAMFLEET_")}
        environment.update({f"STREAMFLEET_{key}": value for key, value in values.items()})
        runs = ["tests.integration.worker_patches", *patches] if patches else ["streamfleet.worker"]
        self._log = folder / f"{name}.log"
        self._process: ForkedProcess | subprocess.Popen[bytes]
        if values["ENGINE"] != "vllm":
            self._process = ForkedProcess(runs, environment, self._log, {**(constants or {}), SPEED: speed})
            return
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *runs], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, signum: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(signum)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of this name that it has logged so far."""
        lines = self._log.read_text(errors="replace").splitlines()
        logged = [json.loads(line) for line in lines if name in line and line.startswith("{") and line.endswith("}")]
        return [event for event in logged if event.get("event") == name]

    def printed(self) -> str:
        """Everything that it wrote."""
        return self._log.read_text(errors="replace")

    async def logged(self, name: str, within_s: float = 10.0) -> list[dict[str, Any]]:
        """Wait until it logged an event of this name."""
        return await eventually(lambda: self.events(name), within_s, f"{self.name} logs {name}")

    async def ready(self) -> WorkerProcess:
        """Wait until it takes requests."""
        await eventually(lambda: self.events("worker_ready") or not self.alive, START_S, f"{self.name} is ready")
        assert self.alive, self.printed()
        return self

    def ready_blocking(self) -> WorkerProcess:
        """As `ready`, for fixtures without an event loop."""
        eventually_blocking(lambda: self.events("worker_ready") or not self.alive, START_S)
        assert self.alive, self.printed()
        return self

    async def ended(self, within_s: float = 10.0) -> int:
        """Wait for its end; its exit status."""
        await eventually(lambda: not self.alive, within_s, f"{self.name} has ended")
        return int(self._process.wait())

    def get(self, path: str) -> Answer:
        """A page of its health server."""
        port = self.events("worker_starting")[0]["health_port"]
        return page(port, path)

    def metric(self, sample: str) -> float:
        """Value of a sample on its metrics page, such as `streamfleet_ready`; 0 when it is not there."""
        return sample_on(self.get("/metrics").text, sample)

    def destroy(self) -> None:
        """SIGKILL, whatever state it is in."""
        if self.alive:
            self._process.kill()
        self._process.wait()


class Fleet:
    """A queue with the workers of one test.

    Attributes:
        url: the Redis.
        redis: a client whose answers are text.
        broker: operations of the queue.
    """

    def __init__(self, url: str, folder: Path, queue: str = "default") -> None:
        self.url, self._folder = url, folder
        self.redis: Any = redis.asyncio.Redis.from_url(
            url,
            decode_responses=True,
            encoding_errors="backslashreplace",
            socket_timeout=None,
            retry=Retry(ConstantBackoff(0.05), 100),  # tests kill servers
        )
        self.queue = queue
        self.broker = Broker(Connection(url), Keys(queue))
        self.workers: list[WorkerProcess] = []
        self._numbers = itertools.count(1)

    async def close(self) -> None:
        for worker in self.workers:
            worker.destroy()
        await self.redis.aclose()
        await self.broker.close()

    def start(
        self, name: str, patches: Iterable[str] = (), constants: Constants | None = None, **settings: object
    ) -> WorkerProcess:
        """Start a worker without waiting for it."""
        given = {"redis_url": self.url, **settings}
        worker = WorkerProcess(str(given.pop("redis_url")), self._folder, name, patches, constants, **given)
        self.workers.append(worker)
        return worker

    async def worker(
        self, name: str, patches: Iterable[str] = (), constants: Constants | None = None, **settings: object
    ) -> WorkerProcess:
        """Start a worker and wait until it takes requests."""
        return await self.start(name, patches, constants, **settings).ready()

    async def add(self, request_id: str = "", lane: str = "normal", body: Any = None, **fields: Any) -> str:
        """A plain XADD; the request id."""
        request_id = request_id or f"r-{next(self._numbers)}"
        text = body if isinstance(body, (str, bytes)) else json.dumps(chat() if body is None else body)
        await self.redis.xadd(f"{{{self.queue}}}:lane:{lane}", {"id": request_id, "body": text, **fields})
        return request_id

    async def add_many(self, count: int, body: Any = None, **fields: Any) -> list[str]:
        """Plain XADDs in one round trip; the request ids."""
        ids = [f"r-{next(self._numbers)}" for _ in range(count)]
        async with self.redis.pipeline(transaction=False) as pipe:
            for request_id in ids:
                text = json.dumps(chat() if body is None else body)
                pipe.xadd(f"{{{self.queue}}}:lane:normal", {"id": request_id, "body": text, **fields})
            await pipe.execute()
        return ids

    async def result(self, request_id: str, within_s: float = 10.0) -> Result:
        """Wait for a result."""
        return (await self.results([request_id], within_s))[0]

    async def results(self, ids: list[str], within_s: float = 20.0) -> list[Result]:
        """Wait for all results."""

        async def all_there() -> list[Result]:
            found = await self.broker.results(ids)
            there = [result for result in found if result is not None]
            return there if len(there) == len(ids) else []

        return await eventually(all_there, within_s, f"results of {', '.join(ids[:3])}, {len(ids)} in all")

    async def finished(self) -> int:
        """Number of requests that have ended."""
        return sum((await self.broker.audit()).ended.values())

    async def running(self) -> dict[str, int]:
        """Number of requests that each worker runs."""
        total: dict[str, int] = {}
        for lane in LANES:
            for name, count in (await self.broker.running_by_worker(lane)).items():
                total[name] = total.get(name, 0) + count
        return total

    async def runs(self, expected: dict[str, int], within_s: float = 10.0) -> None:
        """Wait until exactly this runs."""

        async def as_expected() -> bool:
            return await self.running() == expected

        await eventually(as_expected, within_s, f"{expected} runs")

    async def notified(self, reply: str) -> list[str]:
        """Request ids that a reply stream was told of, in order."""
        return [fields["id"] for _, fields in await self.redis.xrange(f"{{{self.queue}}}:reply:{reply}")]

    async def dead_letters(self) -> list[dict[str, str]]:
        """All dead letters, oldest first."""
        return [fields for _, fields in await self.redis.xrange(f"{{{self.queue}}}:dead")]

    async def settled(self) -> None:
        """Nothing is outstanding, and the books balance."""

        async def empty() -> bool:
            return (await self.broker.audit()).outstanding == 0

        await eventually(empty, 5, "nothing is outstanding")
        assert (await self.broker.audit()).problems() == []
        assert await self.running() == {}


@contextlib.asynccontextmanager
async def fleet_on(url: str, folder: Path) -> AsyncIterator[Fleet]:
    """A fleet on a Redis of the test's own."""
    fleet = Fleet(url, folder)
    try:
        yield fleet
    finally:
        await fleet.close()


@pytest.fixture
async def fleet(redis_url: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet on the newest server, emptied; its workers are killed at the end."""
    async with fleet_on(redis_url, tmp_path) as fleet:
        yield fleet


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Request ids as workers inside the test hand them back."""
    back: list[str] = []
    release = WorkerBroker.release

    async def listening(self: WorkerBroker, worker: str, leases: Sequence[Lease], **more: Any) -> int:
        back.extend(lease.request_id for lease in leases)
        return await release(self, worker, leases, **more)

    monkeypatch.setattr(WorkerBroker, "release", listening)
    return back
