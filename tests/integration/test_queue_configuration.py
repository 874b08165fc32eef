"""The queue's configuration in Redis: written by the first worker, followed by all, changed by `queue set`."""

from __future__ import annotations

import asyncio
import json

import pytest

from streamfleet.common.settings import QueueSettings, load
from streamfleet.producer.client import Client
from tests.integration.cli_processes import Ended, piped
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

pytestmark = pytest.mark.kill
META = "{default}:meta"
LONG = 60_000
"""A lease, in ms, so long that no heartbeat tells of a change within a test."""


async def told(fleet: Fleet, *arguments: str, **settings: str) -> Ended:
    """A command, run beside this event loop."""
    return await asyncio.to_thread(piped, fleet.url, *arguments, settings=settings)


async def test_the_first_worker_writes_what_its_environment_says_in_plain_names_and_units(fleet: Fleet) -> None:
    assert (await told(fleet, "queue", "show")).stdout.startswith("no configuration yet")
    await fleet.worker("w1", lease_ms=2_000, max_deliveries=7, shares="0,0,200,100")
    fields = await fleet.redis.hgetall(META)
    assert fields["lease_ms"] == "2000"
    assert (fields["max_deliveries"], fields["shares"]) == ("7", "0,0,200,100")
    assert (fields["result_ttl_ms"], fields["patience_ms"]) == ("86400000", "300000")
    assert "lane_limit" not in fields, "each client's own, until an operator sets it"
    shown = await told(fleet, "queue", "show", "--json")
    values = {row["name"]: row["value"] for row in json.loads(shown.stdout)}
    assert (values["lease_ms"], values["shares"], values["lane_limit"]) == (2_000, [0, 0, 200, 100], None)


async def test_a_later_worker_follows_the_queue_and_warns_of_its_environment(fleet: Fleet) -> None:
    await fleet.worker("w1", lease_ms=2_000)
    second = await fleet.worker("w2", lease_ms=20_000, max_deliveries=5)
    (event,) = second.events("setting_differs_from_queue")
    assert (event["variable"], event["value"], event["queue"]) == ("STREAMFLEET_LEASE_MS", "20000", "2000")
    assert (await fleet.redis.hgetall(META))["lease_ms"] == "2000"

    async def described() -> bool:
        return (await fleet.broker.workers()).get("w2", {}).get("lease_ms") == 2_000

    await eventually(described, 10, "w2 says which lease it follows")
    checks = {check["name"]: check for check in json.loads((await told(fleet, "doctor", "--json")).stdout)}
    assert checks["configuration"]["level"] == "warn"
    assert "STREAMFLEET_LEASE_MS is 20000 in w2, 2000 in the queue" in checks["configuration"]["seen"]
    shell = await told(fleet, "queue", "show", STREAMFLEET_MAX_DELIVERIES="9")
    assert [line.split() for line in shell.stdout.splitlines() if "max_deliveries" in line] == [
        ["max_deliveries", "5", "9"]
    ]


async def test_all_workers_and_clients_follow_a_change_at_once(fleet: Fleet) -> None:
    workers = [await fleet.worker(name, lease_ms=LONG) for name in ("w1", "w2")]
    async with Client(settings=load(QueueSettings, redis_url=fleet.url)) as client:
        await client.enqueue(chat())
        ended = await told(
            fleet, "queue", "set", "max_deliveries=2", "result_ttl_ms=50000", "STREAMFLEET_LEASE_MS=30000"
        )
        assert (ended.returncode, ended.stdout.splitlines()) == (
            0,
            ["max_deliveries: 5 -> 2", "result_ttl_ms: 86400000 -> 50000", f"lease_ms: {LONG} -> 30000"],
        ), ended.stderr
        for worker in workers:
            (event,) = await worker.logged("queue_configuration", 5)
            assert (event["max_deliveries"], event["lease_ms"]) == ("5 -> 2", f"{LONG} -> 30000")
        handle = await client.enqueue(chat())
        assert (await handle.result(10)).ok
        assert 0 < await fleet.redis.pttl(f"{{default}}:result:{handle.id}") <= 50_000

        async def sees() -> bool:
            await client.enqueue(chat())
            return client.broker.limits.result_ttl_ms == 50_000

        await eventually(sees, 5, "the client follows")
    again = await told(fleet, "queue", "set", "max_deliveries=2")
    assert again.stdout == "max_deliveries: 2 already\n"


async def test_every_part_of_a_running_worker_goes_by_a_change(fleet: Fleet) -> None:
    engine = small_engine()
    async with worker_inside(fleet.url, engine, lease_ms=LONG) as inside:
        worker = inside.worker
        assert (await fleet.result(await fleet.add(body=chat(pad="x" * 3_000)))).ok
        await fleet.broker.agree()
        await fleet.broker.set_configuration(
            {"max_deliveries": "1", "max_body_bytes": "2048", "result_ttl_ms": "50000"}
        )
        await eventually(lambda: worker._broker.limits.max_deliveries == 1, 5, "the worker follows")
        assert (worker._housekeeper._max_deliveries, worker._dispatcher._max_deliveries) == (1, 1)
        large = await fleet.result(await fleet.add(body=chat(pad="x" * 3_000)))
        assert large.error is not None
        assert large.error["code"] == "request_too_large"
        engine.faults.errors = 1
        tried = await fleet.add()
        assert (await fleet.result(tried)).attempt == 1
        assert 0 < await fleet.redis.pttl(f"{{default}}:result:{tried}") <= 50_000
        assert len(await fleet.dead_letters()) == 2


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("lease_ms=5", "STREAMFLEET_LEASE_MS: Input should be greater than or equal to 1000"),
        ("shares=1000,1,0,0", "STREAMFLEET_SHARES: must be numbers of 0 or more that add up to at most 1000"),
        ("lease=5000", "did you mean lease_ms?"),
        ("lease_ms", "write NAME=VALUE"),
    ],
)
async def test_a_wrong_value_is_refused_with_its_name(fleet: Fleet, word: str, says: str) -> None:
    ended = await told(fleet, "queue", "set", "max_deliveries=3", word)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert says in ended.stderr
    assert not await fleet.redis.exists(META)


async def test_what_somebody_breaks_by_hand_changes_nothing_and_is_named(fleet: Fleet) -> None:
    workers = [await fleet.worker("w1")]
    await fleet.redis.hset(META, "lease_ms", "soon")
    workers.append(await fleet.worker("w2"))
    for worker in workers:
        (event,) = await worker.logged("queue_configuration_not_followed")
        assert "STREAMFLEET_LEASE_MS" in event["reason"]
    assert (await fleet.result(await fleet.add())).ok
    checks = {check["name"]: check for check in json.loads((await told(fleet, "doctor", "--json")).stdout)}
    assert checks["configuration"]["level"] == "fail"
    mended = await told(fleet, "queue", "set", "lease_ms=1000", "max_deliveries=3")
    assert mended.returncode == 0, mended.stderr
    for worker in workers:
        await worker.logged("queue_configuration")


async def test_a_redis_that_lost_everything_gets_the_values_in_use_again(fleet: Fleet) -> None:
    worker = await fleet.worker("w1")
    assert (await told(fleet, "queue", "set", "max_deliveries=3")).returncode == 0
    await worker.logged("queue_configuration")
    await fleet.redis.flushall()

    async def written() -> bool:
        return bool((await fleet.redis.hgetall(META)).get("max_deliveries") == "3")

    await eventually(written, 10, "the worker writes the configuration again")
    assert (await fleet.result(await fleet.add())).ok


async def test_requests_that_run_keep_their_lease_while_its_length_changes(fleet: Fleet) -> None:
    """Shortened and lengthened under load: no request is taken from a worker that renews it, and none is lost."""
    workers = [await fleet.worker(name, lease_ms=20_000) for name in ("w1", "w2")]
    ids = await fleet.add_many(12, chat(6.0))

    async def all_run() -> bool:
        return sum((await fleet.running()).values()) == len(ids)

    await eventually(all_run, 10, "all run")
    for number, lease_ms in enumerate((1_000, 30_000, 1_000), 1):
        assert (await told(fleet, "queue", "set", f"lease_ms={lease_ms}")).returncode == 0
        for worker in workers:
            await eventually(lambda w=worker, n=number: len(w.events("queue_configuration")) == n, 5, "they follow")  # type: ignore[misc]
    results = await fleet.results(ids, 60)
    assert {result.attempt for result in results} == {1}
    assert all(result.ok for result in results)
    assert not any(worker.events("reclaimed") for worker in workers)
    await fleet.settled()
