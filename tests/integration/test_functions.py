"""Scripts as Redis functions: loaded when they are missing, and EVALSHA where they cannot be had."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from streamfleet.cli.demo.server import RedisServer, find_servers
from streamfleet.common import scripts
from streamfleet.common.broker.types import CompleteCode, Completion, EnqueueCode, Submission
from streamfleet.common.connection import Connection, functions
from streamfleet.common.errors import BrokerOutOfMemory, BrokerUnavailable
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Lane, Status
from streamfleet.common.replies import mapping
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.doctor.queue import functions_check
from tests.broker import Broker
from tests.ha.nodes import make_replica
from tests.integration.cli_processes import streamfleet
from tests.servers import OLD_RELEASE, newest
from tests.waiting import eventually

OLDER = "streamfleet_0123456789abcdef"
LIBRARY = "#!lua name={name}\nredis.register_function('{name}_pull', function() return 1 end)"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of the test's own: functions belong to all of a server, not to a database."""
    with RedisServer(newest(find_servers())) as started:
        yield started


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=True) as client:
        yield client


@pytest.fixture
async def broker(server: RedisServer) -> AsyncIterator[Broker]:
    opened = Broker(Connection(server.url, patience_s=0), Keys("q"))
    await opened.ensure_groups()
    yield opened
    await opened.close()


@pytest.fixture
async def worker(server: RedisServer) -> AsyncIterator[Broker]:
    """A worker's connection beside the client's."""
    opened = Broker(Connection(server.url, patience_s=0), Keys("q"))
    yield opened
    await opened.close()


def request(number: int) -> Submission:
    return Submission(f"r-{number}", Lane.HIGH, {"id": f"r-{number}".encode(), "body": b"{}"}, "digest")


async def enqueued(broker: Broker, number: int) -> bool:
    (answer,) = await broker.enqueue([request(number)])
    return answer.code is EnqueueCode.ACCEPTED


def calls(admin: redis.Redis) -> dict[str, int]:
    """Calls of each kind since the last look, failed ones included."""
    stats = admin.info("commandstats")
    admin.config_resetstat()
    return {
        name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("fcall", "evalsha", "eval", "function|load")
    }


def libraries(admin: redis.Redis) -> set[str]:
    found: Any = admin.function_list()
    return {row[1] for row in found}


async def test_a_worker_loads_the_functions_and_all_find_them(
    broker: Broker, worker: Broker, admin: redis.Redis
) -> None:
    assert await enqueued(broker, 1)
    assert libraries(admin) == set(), "a client loads nothing"
    assert (await worker.pull("w1", 1)).claims
    assert libraries(admin) == {scripts.library().name}
    calls(admin)
    assert not (await worker.pull("w1", 1)).claims
    assert calls(admin) == {"fcall": 1, "evalsha": 0, "eval": 0, "function|load": 0}


async def test_functions_that_were_flushed_are_loaded_again(broker: Broker, worker: Broker, admin: redis.Redis) -> None:
    await broker.connection.load_functions()
    assert await enqueued(broker, 1)
    assert (await worker.pull("w1", 1)).claims
    admin.function_flush()
    assert await enqueued(broker, 2)
    assert (await worker.pull("w1", 1)).claims
    assert libraries(admin) == {scripts.library().name}


@pytest.mark.parametrize("clustered", [False, True])
async def test_a_function_is_told_of_a_queue_once_and_again_where_it_has_forgotten(
    broker: Broker, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch, clustered: bool
) -> None:
    await broker.connection.load_functions()
    clients = await broker.connection._server._current()
    monkeypatch.setattr(clients.functions, "_clustered", clustered)
    declared = list[int]()
    send = clients.commands.send

    async def noted(*words: Any) -> Any:
        declared.append(words[2]) if words[0] == "FCALL" else None
        return await send(*words)

    monkeypatch.setattr(clients.commands, "send", noted)
    assert await enqueued(broker, 1)
    declared.clear()
    (claim,) = (await broker.pull("w1", 1)).claims
    await broker.pull("w1", 1)
    admin.function_flush()
    admin.function_load(scripts.library().text)
    assert await broker.renew("w1", [claim.lease])
    await broker.pull("w1", 1)
    codes = await broker.complete("w1", [Completion(claim.lease, Status.SUCCEEDED, {"response": "{}"})])
    assert codes == [CompleteCode.PUBLISHED]
    every = len(broker.keys.shared())
    short = [every] if clustered else [1, every]
    assert declared == [every, *short[:1], every, *short, every + 2]


async def test_a_call_that_a_function_refuses_is_made_once(broker: Broker, admin: redis.Redis) -> None:
    await broker.connection.load_functions()
    await broker.pull("w1", 1)
    admin.set("{q}:sched", "x")
    calls(admin)
    with pytest.raises(BrokerUnavailable, match="another type"):
        await broker.pull("w1", 1)
    assert calls(admin)["fcall"] == 1


async def test_functions_come_back_with_a_snapshot(
    server: RedisServer, broker: Broker, worker: Broker, admin: redis.Redis
) -> None:
    await broker.connection.load_functions()
    for number in (1, 2):
        assert await enqueued(broker, number)
    assert (await broker.pull("w1", 1)).claims
    admin.save()
    server.kill()
    server.restart()
    assert (await worker.pull("w1", 1)).claims
    assert await enqueued(worker, 3)
    assert calls(admin) == {"fcall": 2, "evalsha": 0, "eval": 0, "function|load": 0}


async def test_a_replica_that_takes_over_has_the_functions(server: RedisServer, broker: Broker) -> None:
    with RedisServer(server.binary) as replica, redis.Redis(port=replica.port, decode_responses=True) as successor:
        successor.function_load(LIBRARY.format(name="of_its_past"))
        make_replica(replica, server)
        await broker.connection.load_functions()
        assert await enqueued(broker, 1)
        assert (await broker.pull("w1", 1)).claims
        assert await enqueued(broker, 2)
        await eventually(lambda: successor.xlen("{q}:lane:high") == 2, 10, "everything is replicated")
        server.kill()
        successor.replicaof("NO", "ONE")
        taken_over = Broker(Connection(replica.url, patience_s=0), Keys("q"))
        try:
            calls(successor)
            assert [claim.lease.request_id for claim in (await taken_over.pull("w1", 1)).claims] == ["r-2"]
            assert await enqueued(taken_over, 3)
        finally:
            await taken_over.close()
        assert libraries(successor) == {scripts.library().name}
        assert calls(successor) == {"fcall": 2, "evalsha": 0, "eval": 0, "function|load": 0}


@pytest.mark.parametrize("may_call", [True, False])
async def test_a_user_who_may_not_load_or_call_functions_uses_evalsha(
    server: RedisServer, admin: redis.Redis, broker: Broker, may_call: bool
) -> None:
    rules = ["+@all", "-function|load"] + ([] if may_call else ["-fcall"])
    admin.acl_setuser("client", enabled=True, passwords=["+x"], keys=["*"], commands=rules)
    refused = Broker(Connection(server.url.replace("redis://", "redis://client:x@"), patience_s=0), Keys("q"))
    try:
        assert await enqueued(broker, 1)
        assert (await refused.pull("w1", 1)).claims
        calls(admin)
        assert await enqueued(refused, 2)
        # Not tried again for a while, because each refused call is a line in the server's ACL LOG.
        spent = calls(admin)
        assert spent["fcall"] == spent["function|load"] == 0 < spent["evalsha"] + spent["eval"]
    finally:
        await refused.close()


async def test_a_user_who_may_not_load_functions_is_refused_once(
    server: RedisServer, admin: redis.Redis, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal is a line in the server's ACL LOG."""
    monkeypatch.setattr(functions, "AGAIN_S", 0.0)
    admin.acl_setuser("client", enabled=True, passwords=["+x"], keys=["*"], commands=["+@all", "-function|load"])
    refused = Broker(Connection(server.url.replace("redis://", "redis://client:x@"), patience_s=0), Keys("q"))
    try:
        for _ in range(3):
            await refused.pull("w1", 1)
    finally:
        await refused.close()
    log: Any = admin.acl_log()
    assert [(entry["object"], entry["count"]) for entry in log] == [("function|load", 1)]


async def test_who_used_evalsha_finds_functions_that_were_loaded_since(
    server: RedisServer, admin: redis.Redis, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "AGAIN_S", 0.0)
    admin.acl_setuser("client", enabled=True, passwords=["+x"], keys=["*"], commands=["+@all", "-function|load"])
    other = Broker(Connection(server.url.replace("redis://", "redis://client:x@"), patience_s=0), Keys("q"))
    try:
        assert await enqueued(other, 1)
        assert await broker.connection.load_functions() == scripts.library().name
        calls(admin)
        assert await enqueued(other, 2)
        assert calls(admin)["fcall"] == 1
    finally:
        await other.close()


async def test_a_full_server_is_drained_by_functions_too(broker: Broker, admin: redis.Redis) -> None:
    await broker.connection.load_functions()
    assert await enqueued(broker, 1)
    admin.config_set("maxmemory", 1)
    with pytest.raises(BrokerOutOfMemory):
        await broker.enqueue([request(2)])
    (again,) = await broker.enqueue([request(1)])
    assert again.code is EnqueueCode.EXISTING
    assert [claim.lease.request_id for claim in (await broker.pull("w1", 1)).claims] == ["r-1"]
    admin.config_set("maxmemory", 0)
    calls(admin)
    assert await enqueued(broker, 3)
    assert calls(admin)["fcall"] == 1, "a full server is no reason to do without functions later"


async def test_releases_have_libraries_of_their_own(broker: Broker, admin: redis.Redis) -> None:
    other = scripts.library(lambda verb: scripts.source(verb) + "-- of another release\n")
    admin.function_load(other.text)
    await broker.connection.load_functions()
    assert len(libraries(admin)) == 2


async def test_redis_6_has_no_functions_and_needs_none() -> None:
    with RedisServer(find_servers()[OLD_RELEASE]) as server:
        broker = Broker(Connection(server.url, patience_s=0), Keys("q"))
        try:
            await broker.ensure_groups()
            assert await enqueued(broker, 1)
            assert len((await broker.pull("w1", 1)).claims) == 1
        finally:
            await broker.close()


async def test_functions_of_a_release_go_with_its_last_worker(
    broker: Broker, worker: Broker, admin: redis.Redis
) -> None:
    await broker.connection.load_functions()
    for name in (OLDER, f"{OLDER}2", "of_another_application"):
        admin.function_load(LIBRARY.format(name=name))
    await broker.heartbeat("w1", {"library": OLDER})
    await worker.forget_own_libraries()
    assert f"{OLDER}2" in libraries(admin), "only a worker that loaded functions may know that it can delete some"
    await broker.forget_own_libraries()
    assert libraries(admin) == {scripts.library().name, OLDER, "of_another_application"}


async def test_what_goes_wrong_meanwhile_does_not_end_the_housekeeping(
    broker: Broker, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else deletes the library, a description is not ours, a user may load functions and not list them."""
    await broker.connection.load_functions()
    admin.function_load(LIBRARY.format(name=OLDER))
    await broker.heartbeat("w1", {"library": ["not", "a", "name"]})
    workers = broker.workers

    async def slowly() -> Any:
        admin.function_flush()
        return await workers()

    monkeypatch.setattr(broker, "workers", slowly)
    await broker.forget_own_libraries()
    admin.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-function|list"])
    await broker.forget_own_libraries()


def test_queue_load_says_what_it_did(server: RedisServer, admin: redis.Redis) -> None:
    admin.function_load(LIBRARY.format(name=OLDER))
    for _ in range(2):
        said = streamfleet(server.url, "queue", "load").stdout
        assert f"{scripts.library().name}: loaded" in said
    assert libraries(admin) == {scripts.library().name}


async def test_doctor_names_functions_that_nobody_loaded(server: RedisServer, admin: redis.Redis) -> None:
    operator = OperatorBroker(Connection(server.url, patience_s=0), Keys("q"))
    try:
        assert (await functions_check(operator)).level == "ok", "no worker was here yet"
        admin.hset("{q}:workers", "w1", json.dumps({"library": scripts.library().name}))
        missing = await functions_check(operator)
        assert (missing.level, scripts.library().name in missing.seen) == ("warn", True)
        assert "streamfleet queue load" in missing.change
        await operator.connection.load_functions()
        assert (await functions_check(operator)).level == "ok"
    finally:
        await operator.close()


async def test_nothing_is_left_of_one_call_in_the_next(broker: Broker, admin: redis.Redis) -> None:
    """Functions keep their variables between calls: counts, times and the configuration are each call's own."""
    await broker.connection.load_functions()
    for number in (1, 2):
        assert await enqueued(broker, number)
        (claim,) = (await broker.pull("w1", 1)).claims
        assert await broker.release("w1", [claim.lease]) == 1
        assert (await broker.connection.command("HGET", broker.keys.counts, "staged")) == str(number).encode()
    times = []
    for number, values in enumerate(({"response": "1", "finish_reason": "stop"}, {"meta": "2", "session": "3"}), 1):
        (claim,) = (await broker.pull("w1", 1)).claims
        await broker.connection.command("DEL", broker.keys.reply("me"))
        await broker.complete("w1", [Completion(claim.lease, Status.SUCCEEDED, values, "me")])
        result = mapping(await broker.connection.command("HGETALL", broker.keys.result(f"r-{number}")))
        assert {name: result.get(name.encode()) for name in values} == {k: v.encode() for k, v in values.items()}
        times.append(await broker.connection.command("PTTL", broker.keys.reply("me")))
    assert min(times) > 0, "the notifications of each call expire"
    for number in (1, 2):
        assert await enqueued(broker, 10 + number)
    other = Broker(broker.connection, Keys("another"))
    await other.ensure_groups()
    assert await enqueued(other, 9)
    assert [claim.lease.request_id for claim in (await other.pull("w1", 5)).claims] == ["r-9"]
    assert len((await broker.pull("w1", 5)).claims) == 2
    assert calls(admin)["evalsha"] == 0, "all of it ran as functions"
