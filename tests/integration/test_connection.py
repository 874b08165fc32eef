"""The connection to a real Redis that is away, full of trouble, or loses an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from streamfleet.common import scripts
from streamfleet.common.broker.types import CompleteCode, Completion, EnqueueCode, Reclaimed, Submission
from streamfleet.common.connection import Connection
from streamfleet.common.errors import BrokerUnavailable, ClientClosed, SettingsError
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Lane, Status
from tests.broker import Broker
from tests.ha.nodes import SentinelServer
from tests.integration.flaky_link import FlakyLink
from tests.integration.tcp_link import TcpLink
from tests.support.redis_server import RedisServer, free_port
from tests.waiting import eventually

REQUEST = Submission("r-1", Lane.HIGH, {"id": b"r-1", "body": b"{}"}, "digest")


@pytest.fixture
async def link(redis_server: RedisServer, redis_url: str) -> AsyncIterator[FlakyLink]:
    async with FlakyLink(redis_server.port).open() as opened:
        yield opened


@pytest.fixture
async def broker(link: FlakyLink) -> AsyncIterator[Broker]:
    """A queue at the end of a link that breaks where a test wants it."""
    connection = Connection(link.url)
    opened = Broker(connection, Keys("q"))
    await opened.ensure_groups()
    for verb in scripts.VERBS:  # so that the first answer to a script is not that it is unknown
        await connection.command("SCRIPT", "LOAD", scripts.source(verb))
    yield opened
    await connection.close()


# -- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        "db=3&protocol=2&encoding=utf-8&encoding_errors=strict",
        "username=default&client_name=me&lib_name=mine&lib_version=1.2",
        "max_connections=1&socket_read_size=1&socket_connect_timeout=2.5&socket_keepalive=no",
        "health_check_interval=1",
    ],
)
async def test_options_that_are_taken_work(redis_url: str, options: str) -> None:
    connection = Connection(f"{redis_url}?{options}", patience_s=0)
    try:
        assert await connection.command("ECHO", "é") == "é".encode()
        assert set(await asyncio.gather(*(connection.command("INCR", "n") for _ in range(5)))) == {*range(1, 6)}
        assert await connection.block(0.01, "BLPOP", "nothing", 0.01) is None
        assert (b" name=me " in await connection.command("CLIENT", "INFO")) == ("client_name" in options)
        assert (b" db=3 " in await connection.command("CLIENT", "INFO")) == ("db=3" in options)
    finally:
        await connection.close()


@pytest.mark.parametrize("database", ["/99", "?db=99"])
async def test_a_database_that_is_not_there_is_told(redis_url: str, database: str) -> None:
    connection = Connection(f"{redis_url.removesuffix('/0')}{database}", patience_s=0)
    with pytest.raises(SettingsError, match=r"^REDIS_URL .*no database \(db\) of this number"):
        await connection.ping()
    await connection.close()


# -- a server that is away -----------------------------------------------------------------------------------------


async def test_an_absent_server_is_said_in_one_line_with_its_address() -> None:
    port = free_port()
    connection = Connection(f"redis://user:secret@127.0.0.1:{port}/3", patience_s=0)
    for operation in (connection.ping(), connection.command("GET", "x"), connection.block(0.01, "BLPOP", "x", 0.01)):
        with pytest.raises(BrokerUnavailable, match=f"no answer from Redis at redis://127.0.0.1:{port}/3") as caught:
            await operation
        assert "secret" not in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    await connection.close()


async def test_patience_ends() -> None:
    connection = Connection(f"redis://127.0.0.1:{free_port()}", patience_s=0.05)
    with pytest.raises(BrokerUnavailable):
        await connection.command("PING")
    await connection.close()


async def test_an_operation_waits_for_a_server_that_comes_back(own_redis: RedisServer) -> None:
    connection = Connection(own_redis.url, patience_s=None)
    await connection.command("SET", "x", "1")
    own_redis.kill()
    answer = asyncio.ensure_future(connection.command("GET", "x"))
    done, _ = await asyncio.wait({answer}, timeout=0.2)
    assert not done
    await asyncio.to_thread(own_redis.restart)
    assert await asyncio.wait_for(answer, 10) == b"1"
    await connection.close()


async def test_a_blocking_wait_ends_when_its_connection_is_closed(redis_url: str, raw_redis: Redis) -> None:
    connection = Connection(redis_url)
    waiting = asyncio.ensure_future(connection.block(60, "BLPOP", "nothing", 60))

    async def blocked() -> bool:
        return bool((await raw_redis.info("clients"))["blocked_clients"])

    await eventually(blocked, what="the wait has reached the server")
    await connection.close()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(waiting, 5)


async def test_a_blocking_wait_ends_when_the_server_goes(own_redis: RedisServer) -> None:
    connection = Connection(own_redis.url)
    waiting = asyncio.ensure_future(connection.block(30, "BLPOP", "x", 30))
    await eventually(lambda: _blocked(connection), what="the wait has reached the server")
    own_redis.kill()
    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(waiting, 10)
    await connection.close()


async def test_a_wrong_password_is_a_setting_and_no_reason_to_wait(own_redis: RedisServer) -> None:
    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("requirepass", "right")
    for url in (own_redis.url, own_redis.url.replace("//", "//:wrong@")):
        connection = Connection(url, patience_s=None)
        with pytest.raises(SettingsError, match="refuses the user or password") as caught:
            await asyncio.wait_for(connection.command("GET", "x"), 5)
        assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
        await connection.close()


async def test_a_replica_is_waited_for_until_it_is_promoted(own_redis: RedisServer) -> None:
    connection = Connection(own_redis.url, patience_s=None)
    await connection.command("REPLICAOF", "127.0.0.1", free_port())
    impatient = Connection(own_redis.url, patience_s=0)
    with pytest.raises(BrokerUnavailable, match="is a replica"):
        await impatient.command("SET", "x", "1")
    answer = asyncio.ensure_future(connection.command("SET", "x", "1"))
    await impatient.command("REPLICAOF", "NO", "ONE")
    assert await asyncio.wait_for(answer, 10)
    await connection.close()
    await impatient.close()


async def test_a_server_busy_with_a_long_script_is_waited_for(any_redis_server: RedisServer) -> None:
    """Valkey says it in other words."""
    with RedisServer(any_redis_server.binary) as server:
        await _waits_while_busy(server.url)


async def _waits_while_busy(url: str) -> None:
    connection = Connection(url, patience_s=None)
    await connection.command("CONFIG", "SET", "lua-time-limit", 1)
    client = Redis.from_url(url)
    endless = asyncio.ensure_future(client.eval("while true do end", 0))
    impatient = Connection(url, patience_s=0)
    with pytest.raises(BrokerUnavailable, match="refuses for now: BUSY"):
        await eventually(lambda: _nothing(impatient))
    answer = asyncio.ensure_future(connection.command("GET", "x"))
    await impatient.command("SCRIPT", "KILL")
    assert await asyncio.wait_for(answer, 10) is None
    with pytest.raises(redis.ResponseError):
        await endless
    for opened in (connection, impatient):
        await opened.close()
    await client.aclose()


async def test_an_error_does_not_quote_what_was_sent(redis_url: str) -> None:
    """It may be the body of a request, and errors are logged."""
    connection = Connection(redis_url)
    for operation in (
        connection.pipeline([("GET", "a key", "a body")]),
        connection.pipeline([("NOSUCHCOMMAND", "a body")]),
        connection.command("NOSUCHCOMMAND", "a body"),
    ):
        with pytest.raises((redis.ResponseError, SettingsError)) as caught:
            await operation
        assert "a body" not in str(caught.value)
    await connection.close()


async def test_a_sentinel_in_place_of_a_redis_is_a_setting(redis_server: RedisServer) -> None:
    with SentinelServer(redis_server.binary, "main", redis_server.port, {}) as sentinel:
        connection = Connection(f"redis://127.0.0.1:{sentinel.port}", patience_s=None)
        with pytest.raises(SettingsError, match=r"a Sentinel \(then write redis\+sentinel://host:26379/service\)"):
            await connection.script("audit", ["x"], [])
        await connection.close()


# -- answers that are lost -----------------------------------------------------------------------------------------


async def test_a_request_whose_acceptance_was_lost_is_enqueued_once(link: FlakyLink, broker: Broker) -> None:
    link.break_after("enqueue")
    (accepted,) = await broker.enqueue([REQUEST])
    assert link.broken == ["enqueue"]
    assert accepted.code is EnqueueCode.EXISTING
    assert (await broker.audit()).accepted == 1
    assert await broker.record("r-1") == accepted.entry


async def test_an_outcome_whose_answer_was_lost_is_published_once(link: FlakyLink, broker: Broker) -> None:
    await broker.enqueue([REQUEST])
    (claim,) = (await broker.pull("w1", 1)).claims
    link.break_after("complete")
    codes = await broker.complete("w1", [Completion(claim.lease, Status.SUCCEEDED, {}, "me")])
    assert (codes, link.broken) == ([CompleteCode.PUBLISHED_BEFORE], ["complete"])
    assert await broker.connection.command("XLEN", broker.keys.reply("me")) == 1
    assert (await broker.audit()).counts["succeeded"] == 1


async def test_a_cancel_whose_answer_was_lost_is_still_true(link: FlakyLink, broker: Broker) -> None:
    await broker.connection.command("XADD", broker.keys.lane("high"), "*", "id", "r-1", "body", "{}")
    link.break_after("cancel")
    assert await broker.cancel("r-1")
    assert await broker.connection.command("XLEN", broker.keys.cancels) == 1


async def test_a_reclaim_whose_answer_was_lost_is_not_sent_again(link: FlakyLink, broker: Broker) -> None:
    link.break_after("reclaim")
    with pytest.raises(BrokerUnavailable):
        await broker.reclaim(1_000, 3)
    assert link.broken == ["reclaim"]
    assert await broker.reclaim(1_000, 3) == Reclaimed(0, 0, 0)


async def test_a_pull_whose_answer_was_lost_is_not_sent_again(link: FlakyLink, broker: Broker) -> None:
    await broker.enqueue([REQUEST, Submission("r-2", Lane.HIGH, {"id": b"r-2", "body": b"{}"}, "digest")])
    link.break_after("pull")
    with pytest.raises(BrokerUnavailable):
        await broker.pull("w1", 1)
    assert await broker.running_by_worker(Lane.HIGH) == {"w1": 1}
    assert await broker.disown("w1", []) == 1
    assert len((await broker.pull("w2", 5)).claims) == 2


# -- blocking reads ------------------------------------------------------------------------------------------------


async def test_a_wait_that_is_given_up_does_not_mix_up_later_answers(broker: Broker) -> None:
    for _ in range(3):
        waiting = asyncio.ensure_future(broker.wait(60_000, "w1"))
        await eventually(lambda: _blocked(broker.connection), what="the wait has reached the server")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await broker.connection.command("SET", "x", "1")
        assert await broker.connection.command("GET", "x") == b"1"
        assert await broker.watch(2) == []


async def test_a_wait_may_be_ended_from_elsewhere(broker: Broker) -> None:
    for wait in (broker.wait(60_000, "w1"), broker.watch(60_000)):
        waiting = asyncio.ensure_future(wait)
        await eventually(lambda: _blocked(broker.connection), what="the wait has reached the server")
        await broker.unblock()
        assert not await asyncio.wait_for(waiting, 5)
    await broker.unblock()


async def _blocked(connection: Connection) -> bool:
    return b"blocked_clients:0" not in await connection.command("INFO", "clients")


async def _nothing(connection: Connection) -> bool:
    await connection.command("GET", "x")
    return False


async def test_more_calls_at_once_than_a_pool_has_connections_wait_their_turn(broker: Broker) -> None:
    found = await asyncio.gather(*(broker.connection.command("ECHO", f"{number}") for number in range(500)))
    assert found == [b"%d" % number for number in range(500)]
    clients = await broker.connection.command("INFO", "clients")
    assert int(clients.partition(b"connected_clients:")[2].split()[0]) < 50


async def test_words_of_any_kind_that_redis_py_takes_are_sent(broker: Broker) -> None:
    """Packing in C knows fewer."""
    assert await broker.connection.command("ECHO", memoryview(b"x")) == b"x"
    with pytest.raises(redis.exceptions.DataError):
        await broker.connection.command("ECHO", object())


class NarrowLink(TcpLink):
    """A link that carries so many bytes of answers within a time-out: then no more before the next command."""

    most_bytes = 1_000_000

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._server_port)
        room, asked = 0, asyncio.Event()

        async def ask() -> None:
            nonlocal room
            while data := await reader.read(65_536):
                room = self.most_bytes
                requests.write(data)
                asked.set()

        asking = asyncio.create_task(ask())
        try:
            while data := await answers.read(65_536):
                while room <= 0:
                    asked.clear()
                    await asked.wait()
                room -= len(data)
                writer.write(data)
                await writer.drain()
        finally:
            asking.cancel()
            for end in (writer, requests):
                end.close()


async def test_many_large_results_come_over_a_link_that_carries_some_of_them_at_a_time(
    redis_server: RedisServer, raw_redis: Redis
) -> None:
    """Each group of them has a time-out of its own."""
    ids = [f"r-{number}" for number in range(500)]
    for each in ids:
        values: Any = {"status": "succeeded", "response": json.dumps({"id": each, "text": "x" * 20_000})}
        await raw_redis.hset(f"{{q}}:result:{each}", mapping=values)
    async with NarrowLink(redis_server.port).open() as narrow:
        connection = Connection(f"redis://127.0.0.1:{narrow.port}/0", patience_s=3.0, answer_timeout_s=2.0)
        try:
            found = await Broker(connection, Keys("q")).results([*ids, "r-none"])
        finally:
            await connection.close()
    assert [result and (result.response or {})["id"] for result in found] == [*ids, None]
