"""Scripts are called by their hash, and sent where a server lacks them; what shares a server shares no memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest
import redis

from bench.scripts import MOST_LOAD_MS
from bench.scripts.side import longest_load
from streamfleet.common import scripts
from streamfleet.common.broker.types import CompleteCode, Completion, EnqueueCode, Home, RenewCode, Submission
from streamfleet.common.clock import SystemClock
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Lane, Status
from streamfleet.worker.housekeeping import Housekeeper
from tests.broker import Broker
from tests.ha.nodes import make_replica
from tests.scripts.harness import LIMITS, NOW, Queue
from tests.support.redis_server import RedisServer

AT_ONCE = 20
READ = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "list": ("LRANGE", 0, -1),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    "stream": ("XLEN",),
}


@pytest.fixture
def admin(own_redis: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=own_redis.port, decode_responses=True) as client:
        yield client


@asynccontextmanager
async def opened(server: RedisServer) -> AsyncIterator[Broker]:
    broker = Broker(Connection(server.url, patience_s=10), Keys("q"))
    await broker.ensure_groups()
    try:
        yield broker
    finally:
        await broker.close()


def called(admin: redis.Redis) -> dict[str, int]:
    """Calls by command since the last look, failed ones included; of scripts and what loads or deletes them."""
    stats: Any = admin.info("commandstats")
    admin.config_resetstat()
    names = ("eval", "fcall", "script", "function")
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
    return {name: number for name, number in calls.items() if name.startswith(names)}


def requests(*numbers: int) -> list[Submission]:
    return [Submission(f"r-{at}", Lane.HIGH, {"id": b"r-%d" % at, "body": b"{}"}, "digest") for at in numbers]


async def live(broker: Broker, lose: Callable[[], object] = lambda: None) -> None:
    """Take requests from enqueueing to their results, with many calls of a verb at once, and `lose` before each."""
    await asyncio.to_thread(lose)
    answers = await asyncio.gather(*(broker.enqueue(requests(at)) for at in range(AT_ONCE)))
    assert [answer.code for (answer,) in answers] == [EnqueueCode.ACCEPTED] * AT_ONCE
    await asyncio.to_thread(lose)
    pulls = await asyncio.gather(*(broker.pull(f"w{at}", 1) for at in range(AT_ONCE)))
    leases = [claim.lease for pulled in pulls for claim in pulled.claims]
    assert {lease.request_id for lease in leases} == {f"r-{at}" for at in range(AT_ONCE)}
    owner = {claim.lease: f"w{at}" for at, pulled in enumerate(pulls) for claim in pulled.claims}
    await asyncio.to_thread(lose)
    renewed = await asyncio.gather(*(broker.renew(owner[lease], [lease]) for lease in leases))
    assert renewed == [[RenewCode.RENEWED]] * AT_ONCE
    await asyncio.to_thread(lose)
    done = [(owner[lease], [Completion(lease, Status.SUCCEEDED, {"response": "{}"}, "me")]) for lease in leases]
    codes = await asyncio.gather(*(broker.complete(*each) for each in done))
    assert codes == [[CompleteCode.PUBLISHED]] * AT_ONCE, "not as if it had been called before"
    await asyncio.to_thread(lose)
    audit = await broker.audit()
    assert (audit.problems(), audit.accepted, audit.counts["succeeded"]) == ([], AT_ONCE, AT_ONCE)
    assert await broker.connection.command("XLEN", broker.keys.reply("me")) == AT_ONCE


# -- on a server that lacks them -------------------------------------------------------------------------------------


async def test_a_script_is_sent_once_and_by_itself(own_redis: RedisServer, admin: redis.Redis) -> None:
    async with opened(own_redis) as broker:
        called(admin)
        for number in (1, 2):
            await broker.enqueue(requests(number))
            await broker.pull("w1", 1)
    assert called(admin) == {"evalsha": 4, "eval": 2}


async def test_each_call_runs_once_however_often_scripts_are_flushed(
    own_redis: RedisServer, admin: redis.Redis
) -> None:
    async with opened(own_redis) as broker:
        await live(broker, admin.script_flush)


async def test_each_call_runs_once_on_a_server_that_was_restarted(own_redis: RedisServer) -> None:
    async with opened(own_redis) as broker:
        for verb in scripts.VERBS:
            await broker.connection.command("SCRIPT", "LOAD", scripts.source(verb))

        def restart() -> None:
            own_redis.kill()
            own_redis.restart()

        await live(broker, restart)


async def test_each_call_runs_once_on_a_replica_that_took_over(own_redis: RedisServer) -> None:
    with RedisServer(own_redis.binary) as replica:
        make_replica(replica, own_redis)
        async with opened(own_redis) as broker:
            await broker.pull("w1", 1)
        own_redis.kill()
        with redis.Redis(port=replica.port) as successor:
            successor.replicaof("NO", "ONE")
        async with opened(replica) as broker:
            await live(broker)


async def test_no_script_stops_a_new_server_for_long(redis_url: str) -> None:
    connection = Connection(redis_url)
    try:
        assert await longest_load(connection) < 1_000 * MOST_LOAD_MS
    finally:
        await connection.close()


# -- beside others ---------------------------------------------------------------------------------------------------


class OtherRelease(Connection):
    """Calls scripts as a release does whose texts differ."""

    async def _once(self, *args: Any, **named: Any) -> Any:
        source = scripts.source
        with mock.patch.object(scripts, "source", lambda verb: f"{source(verb)}-- of another release\n"):
            return await super()._once(*args, **named)


Place = tuple[type[Connection], int, str]
"""Kind of a queue's connection, its database, its name."""
NEIGHBOURS: dict[str, tuple[Place, Place]] = {
    "two databases": ((Connection, 0, "q"), (Connection, 1, "q")),
    "two queues": ((Connection, 0, "q"), (Connection, 0, "p")),
    "two releases": ((Connection, 0, "q"), (OtherRelease, 0, "p")),
}
beside_others = pytest.mark.parametrize("neighbours", NEIGHBOURS.values(), ids=NEIGHBOURS)


@asynccontextmanager
async def fleets(server: RedisServer, places: Sequence[Place]) -> AsyncIterator[list[Queue]]:
    """A queue at each place."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for kind, database, name in places:
            connection = kind(server.url.replace("/0", f"/{database}"), patience_s=0)
            stack.push_async_callback(connection.close)
            found.append(Queue(connection, LIMITS, name))
            await found[-1].broker.ensure_groups()
        yield found


async def step(queue: Queue, number: int) -> None:
    """Some requests of tenants and sessions are taken and ended by two workers, who keep house too."""
    for part in (1, 2):
        labels = {"session": f"s{number * part % 7}", "tenant": "ab"[number % 2]}
        await queue.add("normal", f"{NOW + number}-{part}", id=f"r{number}-{part}", **labels)
    for worker in ("w1", "w2"):
        for claim in (await queue.pull(worker, 1, home=Home(worker, 0))).claims:
            await queue.broker.renew(worker, [claim.lease])
            await queue.complete(worker, claim.lease)
    await Housekeeper(queue.broker, "w1", queue.broker.limits, SystemClock()).tick()


async def held(queue: Queue) -> dict[str, Any]:
    """The values of a queue's keys, by name; of streams only their length."""
    names = [name.decode() for name in await queue.command("KEYS", f"{queue.keys.base}*")]
    kinds = {name: (await queue.command("TYPE", name)).decode() for name in names}
    found = {name: await queue.command(READ[kind][0], name, *READ[kind][1:]) for name, kind in kinds.items()}
    return {name.removeprefix(queue.keys.base): found[name] for name in sorted(names)}


@beside_others
async def test_nothing_that_one_remembers_reaches_the_other(
    own_redis: RedisServer, admin: redis.Redis, neighbours: Sequence[Place]
) -> None:
    async with fleets(own_redis, neighbours[:1]) as (alone,):
        for number in range(12):
            await step(alone, number)
        expected = await held(alone)
    admin.flushall()
    async with fleets(own_redis, neighbours) as both:
        for number in range(12):
            for queue in both:
                await step(queue, number)
        assert [await held(queue) for queue in both] == [expected, expected]


@beside_others
async def test_nothing_that_one_deletes_is_missed_by_the_other(
    own_redis: RedisServer, admin: redis.Redis, neighbours: Sequence[Place]
) -> None:
    async with fleets(own_redis, neighbours) as both:
        for number in range(4):
            for queue in both:
                await step(queue, number)
            if number == 0:
                called(admin)
    assert called(admin).keys() == {"evalsha"}, "no script is sent again"
