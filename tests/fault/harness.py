"""One run's processes, put together: Redis, workers behind proxies, producers, and who watches them from outside."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamfleet.common.connection import Connection
from streamfleet.common.connection.login import Login
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.keys import Keys
from tests.broker import Broker
from tests.fault.collector import Collector
from tests.fault.fleet import Fleet
from tests.fault.journal import Journal, read
from tests.fault.launcher import Launcher, PlainLauncher, ZygoteLauncher
from tests.fault.plan import Setup, Step, steps_as_json
from tests.fault.proxy import Proxy
from tests.fault.redis_faults import Faulty
from tests.waiting import eventually

MARK = "FAULT_RUN"
SETTLED_POLL_S = 0.2


@dataclass
class ProducerProcess:
    """One producer.

    Attributes:
        ended: its exit status, once there is one.
    """

    name: str
    journal: Path
    proxy: Proxy
    pid: int = 0
    ended: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def says(self, event: str) -> bool:
        """True if it logged such an event."""
        return any(line["e"] == event for line in read(self.journal))


class Harness:
    """Everything of one run but its faults.

    Args:
        folder: of all logs.
        launcher: starts processes.
        redis: the open server.
        setup: the fleet's settings.
        mark: what all processes of the run carry in their environment.
    """

    def __init__(self, folder: Path, launcher: Launcher, redis: Faulty, setup: Setup, mark: str) -> None:
        self.folder, self.redis, self.setup, self.mark = folder, redis, setup, mark
        self._launcher = launcher
        self.journal = Journal(folder / "events.jsonl")
        self.fleet = Fleet(launcher, setup, folder, redis.server.port, self.journal, redis.passwords)
        self.collector = Collector(redis, self.journal, setup.queues)
        self.producers: list[ProducerProcess] = []
        self.stuck: list[str] = []
        self._collecting: asyncio.Task[None] | None = None
        url = redis.server.url
        login = Login(lambda: redis.passwords.current(url), renewable=True)
        self.brokers = [Broker(Connection(url, login=login), Keys(queue)) for queue in setup.queues]
        self.broker = self.brokers[0]

    async def open(self) -> None:
        await self.fleet.open()
        await self.broker.connection.ping()  # only a login that was accepted once is waited for
        self._collecting = asyncio.create_task(self.collector.run())

    async def close(self) -> None:
        if self._collecting is not None:
            self.collector.stop()
            await self._collecting
        await self.fleet.close()
        for producer in self.producers:
            await producer.proxy.close()
        for broker in self.brokers:
            await broker.close()
        self.journal.close()

    def shift_redis_clock(self, by_ms: int) -> bool:
        """Set Redis's wall clock so far ahead of the machine's, and log it; False where this machine cannot do that."""
        self.journal.write("redis_clock", ahead_ms=by_ms)
        return self.redis.shift_clock(by_ms)

    async def produce(self, steps: Sequence[Step], mutation: str = "") -> ProducerProcess:
        """Start a producer on its steps."""
        name = f"producer-{len(self.producers)}"
        paths = {what: self.folder / f"{name}.{what}" for what in ("steps", "journal", "log")}
        paths["steps"].write_text(steps_as_json(tuple(steps)))
        producer = ProducerProcess(name, paths["journal"], Proxy(self.redis.server.port))
        await producer.proxy.open()
        file = self.redis.passwords.file(producer.proxy.url, name)
        spec = {
            "role": "producer",
            "name": name,
            "url": producer.proxy.url,
            "queue": self.setup.queue_of(len(self.producers)),
            "env": self.setup.variables() | {"STREAMFLEET_REDIS_URL_FILE": str(file)},
            "mutation": mutation,
            **{what: str(path) for what, path in paths.items()},
        }
        producer.pid = await self._launcher.start(spec, producer.ended.set_result)
        self.producers.append(producer)
        return producer

    async def settled(self, within_s: float) -> bool:
        """Wait until every producer has sent everything and nothing is outstanding; False when it takes too long."""

        async def over() -> bool:
            await asyncio.sleep(SETTLED_POLL_S)  # reading journals is no small work
            return all(producer.says("done") for producer in self.producers) and await self._empty()

        try:
            return await eventually(over, within_s)
        except AssertionError:
            return False

    async def leave(self) -> None:
        """Drain the workers, then let the producers go."""
        self.stuck += await self.fleet.drain()
        await asyncio.sleep(0.3)  # for the collector's last look

    async def dismiss_producers(self) -> None:
        """To be called once their reply streams have been read: leaving deletes them."""
        for producer in self.producers:
            if not producer.ended.done():
                await self._launcher.signal(producer.pid, signal.SIGTERM)
        waiting = {producer.ended for producer in self.producers if not producer.ended.done()}
        if waiting:
            await asyncio.wait(waiting, timeout=15)
        for producer in self.producers:
            if not producer.ended.done():
                self.stuck.append(producer.name)
                await self._launcher.signal(producer.pid, signal.SIGKILL)
                await producer.ended

    async def _empty(self) -> bool:
        try:
            return not any([(await broker.audit()).outstanding for broker in self.brokers])
        except StreamfleetError:
            return False


@contextlib.asynccontextmanager
async def warm_launcher(mark: str, engine: str, folder: Path) -> AsyncIterator[Launcher]:
    """A launcher for many runs: out of a zygote, or plain where the engine starts processes of its own."""
    if engine == "vllm":
        plain = PlainLauncher(folder, {MARK: mark})
        try:
            yield plain
        finally:
            await plain.close()
    else:
        async with ZygoteLauncher({MARK: mark}) as zygote:
            yield zygote


@contextlib.asynccontextmanager
async def harness_on(
    binary: Path | None, setup: Setup, launcher: Launcher | None = None, mark: str = ""
) -> AsyncIterator[Harness]:
    """A harness with a Redis and a folder of its own, everything started but workers and producers."""
    folder = Path(tempfile.mkdtemp(prefix="streamfleet-fault-"))
    mark = mark or uuid.uuid4().hex
    async with contextlib.AsyncExitStack() as stack:
        if launcher is None:
            launcher = await stack.enter_async_context(warm_launcher(mark, setup.engine, folder))
        redis = Faulty(binary, folder)
        await redis.open()
        stack.push_async_callback(redis.close)
        harness = Harness(folder, launcher, redis, setup, mark)
        await harness.open()
        stack.push_async_callback(harness.close)
        try:
            yield harness
        except BaseException:
            print(f"the harness itself failed; logs: {folder}", flush=True)
            raise


def left_over(mark: str, but: Sequence[int] = ()) -> list[str]:
    """Processes that carry the mark, as `pid command`: whatever a run left behind."""
    found: list[str] = []
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) in but:
            continue
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                words: Any = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{process.name} {words.strip()}")
    return found
