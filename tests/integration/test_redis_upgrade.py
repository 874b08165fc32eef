"""Redis 6.2 gives way to the newest one, on the same data, under a fleet at work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamfleet.cli.demo.server import inspect
from tests.integration.worker_process import WorkerProcess, chat, fleet_on
from tests.servers import OLD_RELEASE, newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

pytestmark = pytest.mark.kill


@pytest.fixture
def old_redis() -> Iterator[RedisServer]:
    """A server of the oldest release, with an append-only file."""
    with RedisServer(find_servers()[OLD_RELEASE], appendonly=True) as server:
        yield server


def start_in_place_of(server: RedisServer, binary: Path) -> None:
    """Start another release on the port and the data of a server that was stopped."""
    found = inspect(binary)
    assert found is not None
    server._found = found
    server.restart()


async def test_a_newer_redis_on_the_same_data(old_redis: RedisServer, tmp_path: Path) -> None:
    server = newest(find_servers())
    assert server is not None
    async with fleet_on(old_redis.url, tmp_path) as fleet:
        worker = await fleet.worker("w1", batch_size=8, lease_ms=3_000)
        running = await fleet.add_many(8, chat(2.0), reply="me")
        await fleet.runs({"w1": 8})
        waiting = await fleet.add_many(40, chat(0.05), reply="me")
        before = await fleet.redis.info("server")
        old_redis.stop()
        await eventually(lambda: silent_s(worker) > 3.6, 20, "no lease has been renewed for longer than it lasts")
        start_in_place_of(old_redis, server)
        results = await fleet.results(running + waiting)
        after = await fleet.redis.info("server")
        assert before["redis_version"].startswith("6.2.")
        assert int(after["redis_version"].split(".")[0]) >= 7
        assert {(result.status, result.attempt) for result in results} == {("succeeded", 1)}
        assert sorted(await fleet.notified("me")) == sorted(running + waiting)
        assert worker.alive
        await fleet.settled()


def silent_s(worker: WorkerProcess) -> float:
    """For how long it has not been able to renew its leases."""
    return max((float(event["silent_s"]) for event in worker.events("renewal_failed")), default=0.0)
