"""A worker whose Redis dies, is absent, refuses, is full, is emptied, or loses an answer."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.flaky_link import FlakyLink
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, WorkerProcess, chat, fleet_on
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

pytestmark = pytest.mark.kill
NO_RECLAIM: dict[str, Any] = {"lease_ms": 60_000}


async def test_redis_killed_and_restarted_while_requests_run(own_redis: RedisServer, tmp_path: Path) -> None:
    async with fleet_on(own_redis.url, tmp_path) as fleet:
        worker = await fleet.worker("w1", batch_size=8)
        ids = await fleet.add_many(40, chat(0.4), reply="me")
        await fleet.runs({"w1": 8})
        own_redis.kill()
        await worker.logged("redis_away")
        own_redis.restart()
        results = await fleet.results(ids)
        assert all(result.ok for result in results)
        assert sorted(await fleet.notified("me")) == sorted(ids)
        await fleet.settled()
        assert worker.alive
        assert worker.get("/readyz").status == 200


async def test_a_redis_that_is_absent_at_the_start_is_waited_for(own_redis: RedisServer, tmp_path: Path) -> None:
    own_redis.stop()
    async with fleet_on(own_redis.url, tmp_path) as fleet:
        worker = fleet.start("w1")
        hasty = fleet.start("w2")
        await hasty.logged("waiting_for_redis")
        hasty.send(signal.SIGTERM)
        assert await hasty.ended() == 0
        await worker.logged("waiting_for_redis")
        assert worker.get("/livez").status == 200
        ready = worker.get("/readyz")
        assert (ready.status, ready.text) == (503, "starting\n")
        own_redis.restart()
        await worker.ready()
        assert (await fleet.result(await fleet.add())).ok


async def test_a_redis_that_goes_as_a_worker_comes(
    own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins all the same, and lets others renew before it takes over anything of theirs."""
    engine, lease_s = small_engine(), 2.0
    gone_at: list[float] = []
    start = engine.start

    async def start_as_redis_goes() -> None:
        await start()
        os.kill(own_redis.pid, signal.SIGSTOP)
        gone_at.append(time.monotonic())

    monkeypatch.setattr(engine, "start", start_as_redis_goes)
    async with fleet_on(own_redis.url, tmp_path) as fleet:
        held = await fleet.add()
        await eventually(lambda: _takes(fleet, "another"), what="another worker holds it")
        async with worker_inside(own_redis.url, engine, lease_ms=int(lease_s * 1000)):
            await eventually(lambda: time.monotonic() > gone_at[0] + 1.5 * lease_s, what="no lease was renewed")
            os.kill(own_redis.pid, signal.SIGCONT)
            back_at = time.monotonic()
            assert (await fleet.result(held)).attempt == 2
            assert time.monotonic() - back_at > 0.75 * lease_s


async def _takes(fleet: Fleet, worker: str) -> bool:
    return bool((await fleet.broker.pull(worker, 1)).claims)


async def test_connections_killed_while_requests_run(fleet: Fleet) -> None:
    worker = await fleet.worker("w1", batch_size=8)
    ids = await fleet.add_many(40, chat(0.2), reply="me")
    for done in (4, 12, 20, 28):
        await eventually(partial(_finished, fleet, done), what=f"{done} are done")
        await fleet.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    results = await fleet.results(ids)
    assert all(result.ok for result in results)
    assert sorted(await fleet.notified("me")) == sorted(ids)
    assert worker.alive
    await fleet.settled()


async def _finished(fleet: Fleet, count: int) -> bool:
    return await fleet.finished() >= count


async def test_a_redis_that_refuses_writes_for_a_while(own_redis: RedisServer, tmp_path: Path) -> None:
    """As after a failed snapshot, or without enough replicas."""
    async with fleet_on(own_redis.url, tmp_path) as fleet:
        worker = await fleet.worker("w1")
        ids = await fleet.add_many(5, chat(2), reply="me")
        await fleet.runs({"w1": 5})
        await fleet.redis.config_set("min-replicas-to-write", 1)
        await worker.logged("waiting_for_redis")
        await worker.logged("renewal_failed")
        await fleet.redis.config_set("min-replicas-to-write", 0)
        assert all(result.ok for result in await fleet.results(ids))
        assert sorted(await fleet.notified("me")) == sorted(ids)
        assert worker.alive
        await fleet.settled()


async def test_a_full_redis_is_emptied_by_its_workers(own_redis: RedisServer, tmp_path: Path) -> None:
    """New requests are refused; what is there runs, dead workers' requests included, and new workers may start."""
    async with fleet_on(own_redis.url, tmp_path) as fleet:
        first = await fleet.worker("w1", batch_size=2)
        ids = await fleet.add_many(6, chat(0.5), reply="me")
        await fleet.runs({"w1": 2})
        await fleet.redis.config_set("maxmemory", "1mb")
        first.destroy()
        await fleet.worker("w2")
        assert all(result.ok for result in await fleet.results(ids))
        await fleet.redis.config_set("maxmemory", "0")
        assert sorted(await fleet.notified("me")) == sorted(ids)
        await fleet.settled()


async def test_a_redis_that_is_emptied_under_a_worker(fleet: Fleet) -> None:
    """Watching, running and about to complete: it goes on with what comes next."""
    worker = await fleet.worker("w1")
    await eventually(lambda: fleet.redis.zscore("{default}:watch", "w1"), what="w1 watches")
    await fleet.redis.flushall()
    await fleet.add("gone", body=chat(5))
    await fleet.runs({"w1": 1})
    await fleet.redis.flushall()
    assert (await fleet.result(await fleet.add())).ok
    assert worker.alive
    assert await fleet.broker.result("gone") is None


async def test_a_lost_answer_to_a_pull_holds_nothing_back(fleet: Fleet) -> None:
    async with FlakyLink(_port(fleet)).open() as link:
        await fleet.worker("w1", redis_url=link.url, **NO_RECLAIM)
        link.break_after("pull", b"messages")
        ids = await fleet.add_many(3)
        results = await fleet.results(ids)
        assert link.broken == ["pull"]
        assert [result.attempt for result in results] == [1, 1, 1]
        await fleet.settled()


async def test_a_lost_answer_to_a_completion_publishes_once(fleet: Fleet) -> None:
    async with FlakyLink(_port(fleet)).open() as link:
        worker = await fleet.worker("w1", redis_url=link.url, **NO_RECLAIM)
        link.break_after("complete")
        ids = await fleet.add_many(3, reply="me")
        await fleet.results(ids)  # they are there before the answer passes the link
        await eventually(lambda: link.broken == ["complete"], what="the answer is lost")
        await eventually(lambda: _finished_by(worker) == 3, what="the worker knows that it finished three")
        assert sorted(await fleet.notified("me")) == sorted(ids)
        await fleet.settled()


async def test_a_worker_told_to_leave_without_redis_leaves_in_time(own_redis: RedisServer, tmp_path: Path) -> None:
    async with fleet_on(own_redis.url, tmp_path) as fleet:
        worker = await fleet.worker("w1", ["hasty"], drain_ms=100)
        await fleet.add(body=chat(60))
        await fleet.runs({"w1": 1})
        own_redis.kill()
        await worker.logged("renewal_failed")
        worker.send(signal.SIGTERM)
        assert await worker.ended(within_s=5) == 0


def _finished_by(worker: WorkerProcess) -> float:
    return worker.metric('streamfleet_requests_finished_total{lane="normal",status="succeeded"}')


def _port(fleet: Fleet) -> int:
    return int(fleet.url.rsplit(":", 1)[1].split("/")[0])
