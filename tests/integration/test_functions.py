"""Scripts as Redis functions: loaded when they are missing, and EVALSHA where they cannot be had."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from streamfleet.cli.demo.server import RedisServer, find_servers
from streamfleet.common import scripts
from streamfleet.common.broker.types import EnqueueCode, Submission
from streamfleet.common.connection import Connection, functions
from streamfleet.common.errors import BrokerOutOfMemory
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Lane
from tests.broker import Broker
from tests.integration.cli_processes import streamfleet
from tests.servers import OLD_RELEASE, newest

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


async def test_the_first_call_loads_the_functions_and_later_ones_find_them(broker: Broker, admin: redis.Redis) -> None:
    assert await enqueued(broker, 1)
    assert libraries(admin) == {scripts.library_name()}
    calls(admin)
    assert await enqueued(broker, 2)
    assert calls(admin) == {"fcall": 1, "evalsha": 0, "eval": 0, "function|load": 0}


async def test_functions_that_were_flushed_are_loaded_again(broker: Broker, admin: redis.Redis) -> None:
    assert await enqueued(broker, 1)
    admin.function_flush()
    assert await enqueued(broker, 2)
    assert libraries(admin) == {scripts.library_name()}


@pytest.mark.parametrize("may_call", [True, False])
async def test_a_user_who_may_not_load_or_call_functions_uses_evalsha(
    server: RedisServer, admin: redis.Redis, may_call: bool
) -> None:
    rules = ["+@all", "-function|load"] + ([] if may_call else ["-fcall"])
    admin.acl_setuser("client", enabled=True, passwords=["+x"], keys=["*"], commands=rules)
    connection = Connection(server.url.replace("redis://", "redis://client:x@"), patience_s=0)
    broker = Broker(connection, Keys("q"))
    try:
        assert await enqueued(broker, 1)
        calls(admin)
        assert await enqueued(broker, 2)
        # Not tried again for a while, because each refused call is a line in the server's ACL LOG.
        assert calls(admin) == {"fcall": 0, "evalsha": 1, "eval": 0, "function|load": 0}
    finally:
        await broker.close()


async def test_who_used_evalsha_finds_functions_that_were_loaded_since(
    server: RedisServer, admin: redis.Redis, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "AGAIN_S", 0.0)
    admin.acl_setuser("client", enabled=True, passwords=["+x"], keys=["*"], commands=["+@all", "-function|load"])
    other = Broker(Connection(server.url.replace("redis://", "redis://client:x@"), patience_s=0), Keys("q"))
    try:
        assert await enqueued(other, 1)
        assert await broker.connection.load_functions() == scripts.library_name()
        calls(admin)
        assert await enqueued(other, 2)
        assert calls(admin)["fcall"] == 1
    finally:
        await other.close()


async def test_a_full_server_is_drained_by_functions_too(broker: Broker, admin: redis.Redis) -> None:
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


async def test_redis_6_has_no_functions_and_needs_none() -> None:
    with RedisServer(find_servers()[OLD_RELEASE]) as server:
        broker = Broker(Connection(server.url, patience_s=0), Keys("q"))
        try:
            await broker.ensure_groups()
            assert await enqueued(broker, 1)
            assert len((await broker.pull("w1", 1)).claims) == 1
        finally:
            await broker.close()


async def test_functions_of_a_release_go_with_its_last_worker(broker: Broker, admin: redis.Redis) -> None:
    await broker.connection.load_functions()
    for name in (OLDER, f"{OLDER}2", "of_another_application"):
        admin.function_load(LIBRARY.format(name=name))
    await broker.heartbeat("w1", {"library": OLDER})
    assert await broker.forget_libraries() == [f"{OLDER}2"]
    assert libraries(admin) == {scripts.library_name(), OLDER, "of_another_application"}


def test_queue_load_says_what_it_did(server: RedisServer, admin: redis.Redis) -> None:
    admin.function_load(LIBRARY.format(name=OLDER))
    for _ in range(2):
        said = streamfleet(server.url, "queue", "load").stdout
        assert f"{scripts.library_name()}: loaded" in said
    assert libraries(admin) == {scripts.library_name()}


async def test_nothing_is_left_of_one_call_in_the_next(broker: Broker) -> None:
    """Functions keep their variables between calls: counts, times and the configuration are each call's own."""
    for number in (1, 2):
        assert await enqueued(broker, number)
        (claim,) = (await broker.pull("w1", 1)).claims
        assert await broker.release("w1", [claim.lease]) == 1
        assert (await broker.connection.command("HGET", broker.keys.counts, "staged")) == str(number).encode()
    other = Broker(broker.connection, Keys("another"))
    await other.ensure_groups()
    assert await enqueued(other, 9)
    assert [claim.lease.request_id for claim in (await other.pull("w1", 5)).claims] == ["r-9"]
    assert len((await broker.pull("w1", 5)).claims) == 2
