"""Batches that cannot get further, beside batches that can: for a model without workers, and behind slow requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from tests.integration.gateway_process import GatewayProcess, add_key, gateway_on
from tests.integration.worker_process import WorkerProcess
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

SLOTS = 2
MANY = 250
"""More than a gateway looks at, at once."""
IN_TIME_S = 25.0
"""Far less than for how long a batch may wait for a worker."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(newest(find_servers())) as opened:
        yield opened


@pytest.fixture
def worker(server: RedisServer, tmp_path: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(server.url, tmp_path, "w1", speed=20) as process:
        yield process.ready_blocking()


def gateway_in(server: RedisServer, folder: Path, slots: int, **constants: object) -> Any:
    return gateway_on(
        server.url,
        folder,
        constants={
            "gateway.batches.service.BATCHES_OPEN": MANY + 10,
            **{f"gateway.batches.scheduler.{name}": value for name, value in constants.items()},
        },
        gateway_files=(folder / "files").as_uri(),
        gateway_models="simulated=default,gone=nobody=simulated",
        gateway_batches_at_once=slots,
    )


@pytest.fixture
async def rows(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


async def job(http: httpx.AsyncClient, model: str, prompts: int = 3) -> str:
    answer = await http.post("/v1/batch/async", json={"model": model, "prompts": ["hi"] * prompts, "max_tokens": 2})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def completed(http: httpx.AsyncClient, job_id: str, within_s: float = IN_TIME_S) -> None:
    async def look() -> bool:
        return bool((await http.get(f"/v1/batch/{job_id}")).json()["status"] == "completed")

    await eventually(look, within_s, f"{job_id} is completed")


async def all_slots_taken(gateway: GatewayProcess, rows: Any) -> None:
    async def enqueued() -> bool:
        return len(gateway.events("batch_taken")) >= SLOTS and bool(await rows.xlen("{nobody}:lane:low"))

    await eventually(enqueued, 20, "the slots are taken by jobs that nobody works on")


async def test_jobs_for_a_model_without_workers_block_no_other_tenant(
    server: RedisServer, worker: WorkerProcess, rows: Any, tmp_path: Path
) -> None:
    assert worker.alive
    (attacker, _), (other, _) = await add_key(server.url, "attacker"), await add_key(server.url, "other")
    with gateway_in(server, tmp_path, SLOTS) as gateway:
        async with gateway.http(attacker) as theirs, gateway.http(other) as mine:
            for _ in range(MANY // 25):
                await asyncio.gather(*(job(theirs, "gone", 1) for _ in range(25)))
            await all_slots_taken(gateway, rows)
            for _ in range(3):
                await completed(mine, await job(mine, "simulated"))


async def test_a_batch_without_workers_leaves_its_slot_and_goes_on_when_they_come(
    server: RedisServer, worker: WorkerProcess, rows: Any, tmp_path: Path
) -> None:
    """One slot, and one tenant: there are no shares that could help."""
    assert worker.alive
    key, _ = await add_key(server.url, "one")
    with gateway_in(server, tmp_path, 1, PARKED_MS=2_000) as gateway:
        async with gateway.http(key) as http:
            waits = await job(http, "gone")
            await eventually(lambda: rows.xlen("{nobody}:lane:low"), 20, "its requests are in their queue")
            await completed(http, await job(http, "simulated"))
            (parked,) = gateway.events("batch_waits")
            assert parked["batch"] == waits, "the other one kept its slot until it had ended"
            folder = tmp_path / "late"
            folder.mkdir()
            with WorkerProcess(server.url, folder, "w2", speed=20, queue="nobody"):
                await completed(http, waits, 60)
