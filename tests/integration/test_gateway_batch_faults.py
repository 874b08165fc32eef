"""A batch and what may happen to it: gateways die, freeze and leave, results expire, lanes are full, time is over."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
import redis.asyncio

from tests.constants import BATCH_WINDOW
from tests.integration.batch_lines import answered, both, ended, line, names, nothing_outstanding, start, write
from tests.integration.gateway_process import GatewayProcess
from tests.integration.worker_process import WorkerProcess
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

pytestmark = pytest.mark.kill
COUNT = 1_000
LEASE_MS = 1_000


@dataclass
class Ground:
    """A Redis, a worker, and as many gateways as a test wants, all without keys."""

    url: str
    folder: Path
    worker: WorkerProcess
    opened: ExitStack = field(default_factory=ExitStack)

    def gateway(self, name: str, window: int = 100, **settings: object) -> GatewayProcess:
        """One more gateway, which listens."""
        return self.starting(name, window, **settings).ready()

    def starting(self, name: str, window: int = 100, **settings: object) -> GatewayProcess:
        """One more gateway, which will soon."""
        usual = {
            "gateway_keys": "off",
            "gateway_files": f"file://{self.folder}/files",
            "gateway_drain_ms": 500,
        }
        folder = self.folder / name
        folder.mkdir()
        constants = {"gateway.batches.scheduler.LEASE_MS": LEASE_MS, BATCH_WINDOW: window}
        process = GatewayProcess(self.url, folder, constants, **(usual | settings))
        self.opened.callback(process.destroy)
        return process


@pytest.fixture(scope="module")
def server_and_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, WorkerProcess]]:
    folder = tmp_path_factory.mktemp("faults")
    with (
        RedisServer(newest(find_servers())) as server,
        WorkerProcess(server.url, folder, "w1", speed=20) as worker,
    ):
        yield server.url, worker.ready_blocking()


@pytest.fixture
def ground(server_and_worker: tuple[str, WorkerProcess], tmp_path: Path) -> Iterator[Ground]:
    url, worker = server_and_worker
    found = Ground(url, tmp_path, worker)
    with found.opened:
        yield found


@pytest.fixture
async def rows(ground: Ground) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(ground.url, decode_responses=True, socket_timeout=None) as client:
        yield client


def sdk_of(gateway: GatewayProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def many(prefix: str, count: int = COUNT, tokens: int = 40, last_tokens: int = 2_000) -> tuple[list[str], list[str]]:
    """custom_ids and lines; the last tenth of these takes longer, so that there is a middle to be caught in."""
    wanted = [f"{prefix}{number}" for number in range(count)]
    return wanted, [line(each, tokens if number < 0.9 * count else last_tokens) for number, each in enumerate(wanted)]


async def accepted(rows: Any, batch_id: str) -> int:
    """Number of requests that a batch ever had: each has its record."""
    return len([key async for key in rows.scan_iter(f"{{default}}:request:{batch_id}-*", 1_000)])


@pytest.mark.parametrize("how", ["killed", "frozen", "told to leave"])
async def test_another_gateway_goes_on_where_one_stopped(ground: Ground, rows: Any, how: str) -> None:
    count = 2 * COUNT if how == "killed" else COUNT // 3
    wanted, lines = many(how[0], count, last_tokens=1_000 if how == "killed" else 6_000)
    pair = [ground.starting("one"), ground.starting("two")]
    for gateway in pair:
        gateway.ready()
    async with sdk_of(pair[0]) as sdk:
        batch = await start(sdk, write(ground.folder, lines))
        await answered(sdk, batch.id, count - 10)
    first, second = sorted(pair, key=lambda gateway: not gateway.events("batch_taken"))
    assert not second.events("batch_taken"), "one of them has it"
    signals = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP, "told to leave": signal.SIGTERM}
    first.process.send_signal(signals[how])
    async with sdk_of(second) as sdk:
        done = await ended(sdk, batch.id, 60)
        output, errors = await both(sdk, done)
        assert (done.status, errors) == ("completed", [])
        assert names(output) == sorted(wanted)
        assert done.request_counts.completed == count
        assert await accepted(rows, batch.id) == count, "none was asked twice"
        assert [event["epoch"] for event in second.events("batch_taken")] == [2]
        if how == "frozen":
            first.process.send_signal(signal.SIGCONT)
            await eventually(lambda: first.events("batch_lost"), 10, "it hears that it lost the batch")
            assert names((await both(sdk, await ended(sdk, batch.id)))[0]) == sorted(wanted)
    assert await rows.zcard("{gateway}/open_batches") == 0
    assert await rows.exists(f"{{gateway}}/done:{batch.id}") == 0


async def test_results_that_are_gone_are_asked_for_again(ground: Ground, rows: Any) -> None:
    """Nobody lived to gather them, for longer than results are kept."""
    wanted, lines = many("g", 300)
    first = ground.gateway("first", window=300)
    async with sdk_of(first) as sdk:
        batch = await start(sdk, write(ground.folder, lines))

        async def all_out() -> bool:
            return await accepted(rows, batch.id) == len(wanted)

        await eventually(all_out, 20, "all are enqueued")
    first.destroy()

    await nothing_outstanding(rows, 20)
    for kind in ("result", "request"):
        keys = [key async for key in rows.scan_iter(f"{{default}}:{kind}:{batch.id}-*", 1_000)]
        await rows.delete(*keys)
    # They are more than their lane holds, whose room the batch waits for.
    async with sdk_of(ground.gateway("second", lane_limit=20)) as sdk:
        output, errors = await both(sdk, await ended(sdk, batch.id, 60))
    assert (names(output), errors) == (sorted(wanted), [])


async def test_a_batch_whose_time_is_over_says_so_of_each_line(ground: Ground, rows: Any) -> None:
    """Nobody works meanwhile, not even to end what is late."""
    wanted, lines = many("l", 300)
    gateway = ground.gateway("first")
    ground.worker.send(signal.SIGSTOP)
    try:
        async with sdk_of(gateway) as sdk:
            batch = await start(sdk, write(ground.folder, [*lines, "{"]), window="2s")
            done = await ended(sdk, batch.id, 40)
            output, errors = await both(sdk, done)
    finally:
        ground.worker.send(signal.SIGCONT)
    assert done.status == "expired"
    assert (names(output), names(errors)) == ([], sorted(wanted))
    assert {each["error"]["code"] for each in errors} == {"batch_expired", "invalid_json"}
    assert (done.request_counts.total, done.request_counts.failed) == (301, 301)

    await nothing_outstanding(rows, 20)


async def test_a_batch_is_cancelled_by_one_gateway_while_another_has_it(ground: Ground) -> None:
    wanted, lines = many("c", 600, last_tokens=20_000)
    first = ground.starting("first")
    second = ground.gateway("second", gateway_batches_at_once=0)
    first.ready()
    async with sdk_of(second) as sdk:
        batch = await start(sdk, write(ground.folder, lines))
        await answered(sdk, batch.id, 590)
        await sdk.batches.cancel(batch.id)
        done = await ended(sdk, batch.id)
        output, errors = await both(sdk, done)
    assert done.status == "cancelled"
    assert names(output + errors) == sorted(wanted)
    assert first.events("batch_taken")
    assert not second.events("batch_taken")


async def test_what_a_dead_gateway_enqueued_is_cancelled_with_its_batch(ground: Ground, rows: Any) -> None:
    """Another one cannot know which lines these are, but for the mark that was set before they were enqueued."""
    wanted, lines = many("d", 300, tokens=4_000)
    pair = [ground.starting("one"), ground.starting("two")]
    for gateway in pair:
        gateway.ready()
    async with sdk_of(pair[0]) as sdk:
        batch = await start(sdk, write(ground.folder, lines))
        await eventually(lambda: rows.xlen("{default}:lane:low"), 20, "some are enqueued")
    first, second = sorted(pair, key=lambda gateway: not gateway.events("batch_taken"))
    first.destroy()
    async with sdk_of(second) as sdk:
        assert (await sdk.batches.cancel(batch.id)).status == "cancelling"
        done = await ended(sdk, batch.id)
        output, errors = await both(sdk, done)
    assert done.status == "cancelled"
    assert names(output + errors) == sorted(wanted)

    await nothing_outstanding(rows, 5)
