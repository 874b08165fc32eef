"""Workers and users on a deployment, for as long as a context."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamfleet.common.secret_files import FileSecret
from streamfleet.common.settings import QueueSettings, load
from streamfleet.producer import Client
from tests.broker import Broker
from tests.ha.judge import Verdict, judge
from tests.ha.traffic import Log, Traffic
from tests.integration.worker_process import WorkerProcess
from tests.waiting import eventually

QUEUE = "default"
USERS, BATCH = 12, 5
AT_ONCE = USERS * BATCH
"""Most requests that are accepted and not answered at any moment."""


@contextlib.asynccontextmanager
async def workers_on(url: str | Path, folder: Path, count: int = 2) -> AsyncIterator[list[WorkerProcess]]:
    """Real worker processes with the simulated engine, killed at the end; the URL may be a file's."""
    settings: Any = {} if isinstance(url, str) else {"redis_url_file": url}
    shown = url if isinstance(url, str) else ""
    workers = [WorkerProcess(shown, folder, f"w{number + 1}", lease_ms=2_000, **settings) for number in range(count)]
    try:
        for worker in workers:
            await worker.ready()
        yield workers
    finally:
        for worker in workers:
            worker.destroy()


@dataclass
class Scene:
    """Users at work; `verdict` is there when they have gone."""

    client: Client
    traffic: Traffic
    verdict: Verdict | None = None

    def line(self) -> str:
        """The verdict, and what users' enqueueing raised on the way."""
        errors = " ".join(f"{name}={count}" for name, count in sorted(self.log.errors.items()))
        return f"{self.verdict.line() if self.verdict else 'no verdict'} {errors}".strip()

    @property
    def log(self) -> Log:
        return self.traffic.log

    async def answers(self, count: int, since: float, within_s: float = 30.0) -> None:
        """Wait until so many answers have come after a moment (monotonic seconds)."""

        def came() -> bool:
            self.traffic.check()
            return sum(at > since for at in self.log.answered_at.values()) >= count

        await eventually(came, within_s, f"{count} answers")


@contextlib.asynccontextmanager
async def users_on(url: str | Path, replicas: int = 0, users: int = USERS) -> AsyncIterator[Scene]:
    """Users who enqueue and wait; when the context ends, they finish, and everything is compared."""
    given = url if isinstance(url, str) else FileSecret("REDIS_URL_FILE", str(url))
    settings = load(QueueSettings, redis_url=given, queue=QUEUE, enqueue_replicas=replicas)
    async with Client(settings=settings) as client:
        client.mailbox._untrimmed = -(10**9)  # the judge reads the whole reply stream at the end
        scene = Scene(client, Traffic(client, users=users, batch=BATCH))
        try:
            yield scene
        finally:
            await scene.traffic.stop()
        scene.verdict = await judge(scene.log, Broker.of(client.broker), client.mailbox.name)
