"""Gateways whose Redis dies and comes back, or fails over: who waits, reads or has a batch gets all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.constants import BATCH_WINDOW
from tests.ha.nodes import server_binary
from tests.ha.sentinels import SentinelDeployment
from tests.integration.gateway_process import GatewayProcess
from tests.integration.gateway_users import SECONDS, Users, status_of
from tests.integration.worker_process import WorkerProcess
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

pytestmark = [pytest.mark.kill, pytest.mark.timeout(180)]
MOST_GROWTH_BYTES = 48 * 1_048_576
Taken = tuple[str, Callable[[], None], Callable[[], None] | None, Callable[[], int]]


@dataclass
class Ground:
    """A gateway and a worker on a Redis that a test takes away.

    Attributes:
        gateway: without keys.
        kill: takes Redis away.
        revive: has it back; None where it comes back by itself, soon.
        failovers: how many there were.
    """

    gateway: GatewayProcess
    kill: Callable[[], None]
    revive: Callable[[], None] | None
    failovers: Callable[[], int]


@pytest.fixture(params=["restarted", "failed over"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    with ExitStack() as opened:
        if request.param == "restarted":
            server = opened.enter_context(RedisServer(newest(find_servers()), appendonly=True))
            found: Taken = server.url, server.kill, server.restart, lambda: 0
        else:
            deployment = opened.enter_context(SentinelDeployment(server_binary()))
            found = deployment.url, deployment.nodes[0].kill, None, deployment.failovers
        url, kill, revive, failovers = found
        worker = WorkerProcess(url, tmp_path, "w1", speed=1)
        opened.callback(worker.destroy)
        files = (tmp_path / "files").as_uri()
        gateway = GatewayProcess(url, tmp_path, {BATCH_WINDOW: 50}, gateway_keys="off", gateway_files=files)
        opened.callback(gateway.destroy)
        worker.ready_blocking()
        yield Ground(gateway.ready(), kill, revive, failovers)


async def test_all_go_on_when_redis_is_back(ground: Ground, tmp_path: Path) -> None:
    gateway = ground.gateway
    users = Users(gateway, "u")
    before_bytes = gateway.resident_bytes()
    batch = asyncio.create_task(users.batch(tmp_path))
    await eventually(lambda: gateway.events("batch_taken"), 20, "the batch runs")
    # Last: a failover may lose an answer that came just before it.
    waiting = asyncio.create_task(users.waiting())
    reading = asyncio.create_task(users.reading())
    await eventually(lambda: len(users.events) > 20, 20, "tokens come")
    assert not waiting.done()
    await asyncio.to_thread(ground.kill)
    if ground.revive is not None:
        await refuses(gateway)
        await asyncio.to_thread(ground.revive)
    await eventually(lambda: ready(gateway), 40, "somebody new is sent here again")
    answer = await asyncio.wait_for(waiting, 60)
    text = await asyncio.wait_for(reading, 60)
    wanted, found, done = await asyncio.wait_for(batch, 90)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == round(SECONDS * 100)
    same = answer.json()["choices"][0]["message"]["content"] == text
    assert same is not bool(users.missed), "the same text by another way, or the reader is told that some is lost"
    assert ground.revive is None or same, "only a failover loses what Redis has acknowledged"
    assert (found, done.status, done.request_counts.completed) == (wanted, "completed", len(wanted))
    assert all(refusal.json()["error"]["code"] for refusal in users.refusals)
    assert gateway.resident_bytes() - before_bytes < MOST_GROWTH_BYTES
    assert "request_broke" not in gateway.printed()
    again = await asyncio.wait_for(users.waiting(), 20)
    # A busy machine may have a second failover without an order; it may lose the answer, and the request runs again.
    assert again.json() == answer.json() or ground.failovers() > 1, "asked again, it is the same answer"


async def refuses(gateway: GatewayProcess) -> None:
    """Without Redis."""
    await eventually(lambda: unready(gateway), 20, "nobody new is sent here")
    assert await status_of(gateway, "/livez") == 200
    async with gateway.http() as http:
        refused = await http.get("/v1/files")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_unavailable")
    assert int(refused.headers["retry-after"]) >= 1


async def unready(gateway: GatewayProcess) -> bool:
    return await status_of(gateway, "/readyz") == 503


async def ready(gateway: GatewayProcess) -> bool:
    return await status_of(gateway, "/readyz") == 200
