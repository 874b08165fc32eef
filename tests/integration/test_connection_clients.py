"""The connections of a client to a real Redis: kept, opened anew, and never left with half an answer to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from streamfleet.common.connection.clients import MOST_CONNECTIONS, BlockingClient, Client, check_options
from streamfleet.common.connection.urls import read_url
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

FOR_EVER = ("BLPOP", "nothing", 0)
WITHIN_S = 5


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    opened = Client(redis_url)
    yield opened
    await opened.close()


@pytest.fixture
async def blocking(redis_url: str) -> AsyncIterator[BlockingClient]:
    opened = BlockingClient(redis_url)
    yield opened
    await opened.close()


@pytest.fixture(params=[Client, BlockingClient])
async def either(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Client]:
    opened: Client = request.param(redis_url)
    yield opened
    await opened.close()


async def others(raw_redis: Redis) -> set[int]:
    """Numbers of all connections but the asking one."""
    own = await raw_redis.client_id()
    return {int(each["id"]) for each in await raw_redis.client_list()} - {own}


async def blocked(raw_redis: Redis) -> int:
    return int((await raw_redis.info("clients"))["blocked_clients"])


async def kill(raw_redis: Redis, number: int) -> None:
    """Close it on the server's side; when this has returned, the client's side has the news."""
    await raw_redis.client_kill_filter(_id=str(number))

    async def gone() -> bool:
        return number not in await others(raw_redis)

    await eventually(gone, what="the server has closed the connection")


# -- opened anew ---------------------------------------------------------------------------------------------------


async def test_a_connection_is_kept_for_the_next_command(either: Client) -> None:
    assert await either.send("CLIENT", "ID") == await either.send("CLIENT", "ID")


async def test_a_connection_that_the_server_closed_meanwhile_is_opened_again(client: Client, raw_redis: Redis) -> None:
    before = await client.send("CLIENT", "ID")
    await kill(raw_redis, before)
    assert await client.send("CLIENT", "ID") != before


async def test_a_blocking_connection_that_was_closed_meanwhile_is_an_error_first(
    blocking: BlockingClient, raw_redis: Redis
) -> None:
    """Otherwise the waiting caller does not learn that there was a time when nothing could reach it."""
    before = await blocking.send("CLIENT", "ID")
    await kill(raw_redis, before)
    with pytest.raises(RedisConnectionError):
        await blocking.send("CLIENT", "ID")
    assert blocking.number is None
    assert await blocking.send("CLIENT", "ID") == blocking.number != before


async def test_a_unix_socket_is_connected_to(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with RedisServer(newest(find_servers()), options={"unixsocket": str(path)}):
        check_options(read_url(f"unix://{path}"))
        client = Client(f"unix://{path}")
        assert await client.send("ECHO", "x") == b"x"
        await client.close()


# -- one command's answer is not another's -------------------------------------------------------------------------


async def test_the_answers_that_a_cancelled_command_left_are_given_to_nobody(either: Client, raw_redis: Redis) -> None:
    waiting = asyncio.ensure_future(either.send_all([("ECHO", "read"), FOR_EVER, ("ECHO", "late")]))
    await eventually(lambda: blocked(raw_redis), what="the command has reached the server")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    answer, _ = await asyncio.gather(either.send("ECHO", "mine"), raw_redis.rpush("nothing", "late"))
    assert answer == b"mine"


async def test_an_error_among_several_answers_is_raised_when_all_are_read(either: Client) -> None:
    number = await either.send("CLIENT", "ID")
    with pytest.raises(ResponseError, match="not an integer"):
        await either.send_all([("SET", "x", "text"), ("INCR", "x"), ("NOSUCHCOMMAND",), ("SET", "x", "last")])
    assert await either.send_all([("GET", "x"), ("CLIENT", "ID")]) == [b"last", number]


# -- not too many --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "most"), [("", MOST_CONNECTIONS), ("?max_connections=3", 3)])
async def test_of_many_commands_at_once_some_wait_their_turn(
    redis_url: str, raw_redis: Redis, options: str, most: int
) -> None:
    before = await others(raw_redis)
    client, count = Client(redis_url + options), 2 * MOST_CONNECTIONS
    waiting = [asyncio.ensure_future(client.send("BLPOP", "list", 0)) for _ in range(count)]

    async def all_blocked() -> bool:
        return await blocked(raw_redis) >= most

    await eventually(all_blocked, what="the commands have reached the server")
    await raw_redis.rpush("list", *range(count))
    found = await asyncio.wait_for(asyncio.gather(*waiting), WITHIN_S)
    assert sorted(int(value) for _, value in found) == list(range(count))
    assert len(await others(raw_redis) - before) == most
    await client.close()


async def test_what_blocks_does_so_one_after_the_other(blocking: BlockingClient, raw_redis: Redis) -> None:
    assert blocking.number is None
    waiting = [asyncio.ensure_future(blocking.send("BLPOP", "list", 0)) for _ in range(3)]
    await eventually(lambda: blocked(raw_redis), what="the first command has reached the server")
    assert await others(raw_redis) == {blocking.number}
    await raw_redis.rpush("list", 1, 2, 3)
    assert [value for _, value in await asyncio.gather(*waiting)] == [b"1", b"2", b"3"]


# -- closing -------------------------------------------------------------------------------------------------------


async def test_closing_ends_a_command_under_way(either: Client, raw_redis: Redis) -> None:
    await either.send("PING")
    before = await others(raw_redis)
    waiting = asyncio.ensure_future(either.send(*FOR_EVER))
    await eventually(lambda: blocked(raw_redis), what="the command has reached the server")
    await either.close()
    with pytest.raises(RedisConnectionError):
        await asyncio.wait_for(waiting, WITHIN_S)
    assert await either.send("CLIENT", "ID") not in before


async def test_closing_ends_a_command_whose_connection_is_just_being_opened(either: Client, raw_redis: Redis) -> None:
    before = await others(raw_redis)
    waiting = asyncio.ensure_future(either.send(*FOR_EVER))
    await asyncio.sleep(0)
    await either.close()
    with pytest.raises(RedisConnectionError):
        await asyncio.wait_for(waiting, WITHIN_S)

    async def none_left() -> bool:
        return await others(raw_redis) <= before

    await eventually(none_left, what="the connection was closed")


async def test_closing_closes_what_is_idle(either: Client, raw_redis: Redis) -> None:
    number = await either.send("CLIENT", "ID")
    await either.close()

    async def gone() -> bool:
        return number not in await others(raw_redis)

    await eventually(gone, what="the connection was closed")
