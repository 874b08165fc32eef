"""Connections to a real Redis that die without a word, as a NAT or a load balancer leaves them, while new ones work."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from streamfleet.common.connection import Connection, server_clients
from streamfleet.common.connection import connection as trying
from streamfleet.common.connection.clients import KEEPALIVE_S, Client
from streamfleet.common.errors import BrokerUnavailable
from tests.fault.proxy import Proxy
from tests.ha.nodes import SentinelServer
from tests.integration.worker_process import Fleet, chat
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

SOON_S = 8.0
"""Well above what finding out takes, 4 s, and well below the time-out of one answer, 15 s."""
NEVER_S = 600.0


@pytest.fixture
async def proxy(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Proxy]:
    opened = Proxy(redis_server.port)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def connection(proxy: Proxy) -> AsyncIterator[Connection]:
    opened = Connection(proxy.url)
    yield opened
    await opened.close()


@pytest.fixture
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "CHECK_AFTER_S", 0.2)


async def several(connection: Connection) -> set[int]:
    """Five commands at the same time, each over a connection of its own; the numbers of these."""
    return set(await asyncio.gather(*(connection.command("CLIENT", "ID") for _ in range(5))))


# -- a worker ------------------------------------------------------------------------------------------------------


@pytest.mark.kill
async def test_a_worker_whose_connections_die_keeps_its_leases(fleet: Fleet, proxy: Proxy) -> None:
    await fleet.worker("w1", redis_url=proxy.url, lease_ms=6_000)
    ids = [await fleet.add(body=chat(9)) for _ in range(3)]
    await fleet.runs({"w1": 3})
    await fleet.worker("w2", lease_ms=6_000)
    proxy.forget()
    results = await fleet.results(ids, within_s=30)
    assert [(result.ok, result.worker, result.attempt) for result in results] == [(True, "w1", 1)] * 3
    assert await fleet.redis.hlen("{default}:tries") == 0


# -- any connection ------------------------------------------------------------------------------------------------


async def test_a_command_over_a_dead_connection_is_sent_again_over_a_new_one(
    connection: Connection, proxy: Proxy
) -> None:
    """And so is all that would have gone over those that died along with it."""
    await several(connection)
    proxy.forget()
    began = time.monotonic()
    await connection.command("PING")
    await several(connection)
    assert time.monotonic() - began < SOON_S


async def test_after_a_time_out_no_idle_connection_is_used(
    connection: Connection, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trying, "CHECK_AFTER_S", NEVER_S)
    await several(connection)
    proxy.forget()
    connection.answer_timeout_s = 2.0
    began = time.monotonic()
    await connection.command("PING")
    await several(connection)
    assert time.monotonic() - began < 2 * connection.answer_timeout_s


@pytest.mark.usefixtures("looks_at_once")
async def test_a_blocking_read_does_not_outlive_the_other_connections(connection: Connection, proxy: Proxy) -> None:
    await several(connection)
    reading = asyncio.create_task(connection.block(NEVER_S, "BLPOP", "nothing", 0))
    await eventually(lambda: len(proxy.links) == 6, what="the read has a connection")
    proxy.forget()
    await connection.command("PING")
    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(reading, SOON_S)


@pytest.mark.usefixtures("looks_at_once")
async def test_a_server_that_is_only_slow_keeps_its_connections(
    connection: Connection, proxy: Proxy, raw_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent twice, and one more connection is all that it is asked for."""
    monkeypatch.setattr(server_clients, "GRACE_S", 0.2)
    before = await several(connection)
    proxy.hold()
    counting = [asyncio.create_task(connection.command("INCR", "count")) for _ in range(5)]
    await eventually(lambda: len(proxy.links) == 6, what="somebody looks whether a new connection is answered")
    proxy.let_go()
    assert sorted(await asyncio.gather(*counting)) == [1, 2, 3, 4, 5]
    assert await raw_redis.get("count") == "5"
    await eventually(lambda: len(proxy.links) == 5, what="that connection is closed")
    assert await several(connection) == before


async def test_an_answer_that_the_server_may_take_its_time_for_is_waited_for(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_clients, "GRACE_S", 0.1)
    clients = server_clients.ServerClients(redis_url)
    waiting = asyncio.create_task(clients.commands.send("WAIT", 1, 2_000, blocks_s=2.0))
    await eventually(
        lambda: clients.commands.overdue(asyncio.get_running_loop().time() + 3), what="it has a connection"
    )
    await clients.drop_silent()
    assert await waiting == 0
    await clients.close()


async def test_a_silent_sentinel_does_not_take_all_the_time_of_each_try(redis_server: RedisServer) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        SentinelServer(redis_server.binary, "main", redis_server.port, {}) as sentinel,
    ):
        url = f"redis+sentinel://127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{sentinel.port}/main/0"
        connection = Connection(url, patience_s=10.0)
        connection.answer_timeout_s = 1.0  # less than one Sentinel has for its answer
        assert await connection.command("PING") == b"PONG"
        await connection.close()


async def test_the_kernel_asks_an_idle_connection_often_enough(redis_url: str) -> None:
    client = Client(redis_url)
    await client.send("PING")
    (connection,) = client._idle
    opened: socket.socket = connection._writer.get_extra_info("socket")
    assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    found = {name: opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in KEEPALIVE_S}
    assert found == KEEPALIVE_S
    await client.close()
