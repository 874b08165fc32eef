"""Enqueueing that waits for replicas: what it returns and raises, on a real master with real replicas."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from streamfleet.common.broker import producer
from streamfleet.common.errors import NotReplicated
from streamfleet.common.settings import QueueSettings, load
from streamfleet.producer import Ask, Client, SyncClient, SyncHandle
from tests.broker import Broker
from tests.ha.nodes import AT_ONCE, cut, info, make_replica, mend, server_binary, synced, tell
from tests.integration.cli_processes import streamfleet
from tests.integration.worker_process import chat
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

pytestmark = pytest.mark.kill
LONG_MS, SHORT_MS = 20_000, 200


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A master and its replica."""
    binary = server_binary()
    with RedisServer(binary, options=AT_ONCE) as master, RedisServer(binary, options=AT_ONCE) as replica:
        make_replica(replica, master)
        yield master, replica


@pytest.fixture
def master(pair: tuple[RedisServer, RedisServer]) -> RedisServer:
    """Emptied, with its replica in step."""
    tell(pair[0].port, "FLUSHALL")
    return pair[0]


@pytest.fixture
def replica(pair: tuple[RedisServer, RedisServer], master: RedisServer) -> RedisServer:
    return pair[1]


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    """Clients wait long for replicas, so that a busy machine fails no test."""
    with waiting(LONG_MS):
        yield


@contextlib.contextmanager
def waiting(ms: int) -> Iterator[None]:
    """Clients wait so long for replicas."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer, "REPLICAS_MS", ms)
        yield


def settings(url: str, replicas: int = 1) -> QueueSettings:
    return load(QueueSettings, redis_url=url, enqueue_replicas=replicas)


@contextlib.asynccontextmanager
async def cut_off(master: RedisServer, replica: RedisServer) -> AsyncIterator[None]:
    """Without a link between the two."""
    cut(master, [replica])
    try:
        yield
    finally:
        mend([replica])
        await eventually(lambda: synced(replica.port), 10, "the replica is in step again")


@contextlib.contextmanager
def stopped(replica: RedisServer) -> Iterator[None]:
    """Linked, but acknowledging nothing."""
    os.kill(replica.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(replica.pid, signal.SIGCONT)


def waits(master: RedisServer) -> int:
    """Number of WAIT commands that the server has had."""
    return int(info(master.port, "commandstats").get("cmdstat_wait", {}).get("calls", 0))


async def test_a_request_that_the_replica_has(master: RedisServer, replica: RedisServer) -> None:
    async with Client(settings=settings(master.url)) as fleet:
        await fleet.enqueue(chat())  # the first makes the script known
        before = waits(master)
        await fleet.enqueue_many([{"body": chat(), "id": f"r-{number}"} for number in range(300)])
    assert waits(master) - before == 2  # one for each script call
    assert tell(replica.port, "XLEN", "{default}:lane:normal") == 301


async def test_nobody_waits_unless_told_to(master: RedisServer) -> None:
    before = waits(master)
    async with Client(master.url) as fleet:
        await fleet.enqueue(chat())
    assert waits(master) == before


async def test_too_few_replicas_are_an_error_that_says_what_to_do(master: RedisServer, replica: RedisServer) -> None:
    async with Client(settings=settings(master.url)) as fleet:
        async with cut_off(master, replica):
            with waiting(SHORT_MS), pytest.raises(NotReplicated) as caught:
                await fleet.enqueue(chat(), id="r-1")
            assert "0 of 1 replicas (STREAMFLEET_ENQUEUE_REPLICAS) had them within 200 ms" in str(caught.value)
            assert "Enqueue the same again with the same ids" in str(caught.value)
            assert caught.value.retryable
            assert [handle.id for handle in caught.value.unconfirmed] == ["r-1"]
        again = await fleet.enqueue(chat(), id="r-1")
        assert again.existing
        assert (await Broker.of(fleet.broker).audit()).accepted == 1


async def test_a_bulk_call_tells_what_is_replicated_from_what_is_not(master: RedisServer, replica: RedisServer) -> None:
    async with Client(settings=settings(master.url)) as fleet, Client(settings=settings(master.url)) as other:
        asks = [{"body": chat(), "id": f"r-{number}"} for number in range(450)]
        first = await fleet.enqueue_many(asks[:200])
        async with cut_off(master, replica):
            with waiting(SHORT_MS), pytest.raises(NotReplicated) as caught:
                await other.enqueue_many(asks[200:])
        assert await caught.value.unconfirmed[0].cancel()
        assert caught.value.accepted == []
        assert [handle.id for handle in caught.value.unconfirmed] == [f"r-{number}" for number in range(200, 400)]
        assert len(await fleet.enqueue_many(asks)) == 450
        assert (await Broker.of(fleet.broker).audit()).accepted == 450
        assert len(first) == 200


async def test_a_known_request_is_waited_for_as_well(master: RedisServer, replica: RedisServer) -> None:
    """A new connection has written nothing yet: WAIT alone would be content with any replica that is linked."""
    with stopped(replica):
        for _ in range(2):
            async with Client(settings=settings(master.url)) as fleet:
                with waiting(SHORT_MS), pytest.raises(NotReplicated):
                    await fleet.enqueue(chat(), id="r-1")
        ttl_ms = tell(master.port, "PTTL", "{default}:request:r-1")
    assert ttl_ms > 0, "the record still expires"
    async with Client(settings=settings(master.url)) as fleet:
        assert (await fleet.enqueue(chat(), id="r-1")).existing


async def test_refused_requests_wait_for_nobody(master: RedisServer, replica: RedisServer) -> None:
    async with Client(settings=settings(master.url)) as fleet:
        await fleet.enqueue(chat(), id="r-1")
        async with cut_off(master, replica):
            with waiting(SHORT_MS):
                ((handle, code),) = await fleet.submit([fleet.prepare(Ask(body=chat(1), id="r-1"))])
    assert (handle, code.name) == (None, "CONFLICT")


async def test_the_server_may_have_forgotten_the_script(master: RedisServer, replica: RedisServer) -> None:
    async with Client(settings=settings(master.url)) as fleet:
        tell(master.port, "SCRIPT", "FLUSH")
        assert not (await fleet.enqueue(chat(), id="r-1")).existing


async def test_the_write_and_its_wait_share_a_connection(master: RedisServer, replica: RedisServer) -> None:
    """They are sent together: nothing that another task does can come in between."""
    async with Client(settings=settings(master.url)) as fleet:
        await fleet.enqueue(chat())
        reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
        writer.write(b"MONITOR\r\n")
        await reader.readline()
        others = [fleet.broker.connection.command("GET", "x") for _ in range(50)]
        await asyncio.gather(*(fleet.enqueue(chat()) for _ in range(20)), *others)
        await fleet.broker.connection.command("GET", "the end")
        last, pairs = ("", ""), 0
        async for line in reader:
            match = re.match(r'\S+ \[0 (\S+)\] "(\w+)"(.*)', line.decode(errors="replace"))
            if match is None or match[1] == "lua":
                continue
            if match[2] == "WAIT":
                assert last == (match[1], "EVALSHA")
                pairs += 1
            last = match[1], match[2]
            if "the end" in match[3]:
                break
        writer.close()
        await writer.wait_closed()
    assert pairs == 20


async def test_the_synchronous_client_has_handles_of_its_own(master: RedisServer, replica: RedisServer) -> None:
    async with cut_off(master, replica):
        with waiting(SHORT_MS):
            await asyncio.to_thread(_refused_synchronously, settings(master.url))


def test_the_command_line_says_so(master: RedisServer) -> None:
    wanted = {"STREAMFLEET_ENQUEUE_REPLICAS": "2"}
    done = streamfleet(master.url, "enqueue", "--prompt", "hi", "--id", "r-1", **wanted)
    assert done.returncode == 1
    assert "1 of 2 replicas" in done.stderr


def _refused_synchronously(queue: QueueSettings) -> None:
    with SyncClient(settings=queue) as fleet:
        with pytest.raises(NotReplicated) as caught:
            fleet.enqueue(chat(), id="r-1")
        (handle,) = caught.value.unconfirmed
        assert isinstance(handle, SyncHandle)
        assert handle.cancel()
