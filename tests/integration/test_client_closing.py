"""Closing a client: calls in flight end at once, later ones are refused, and nothing is left or opened again."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs
from tenacity import wait_fixed

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.broker.types import Completion
from streamfleet.common.connection import Connection
from streamfleet.common.errors import ClientClosed
from streamfleet.common.protocol import Status
from streamfleet.common.results import Result
from streamfleet.producer import Client, SyncClient, SyncHandle
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST
from tests.broker import Broker
from tests.integration.tcp_link import TcpLink
from tests.integration.worker_in_process import worker_inside
from tests.integration.worker_process import chat
from tests.support.redis_server import RedisServer
from tests.waiting import eventually, until_somebody_blocks

T = TypeVar("T")
WITHIN_S = 10.0
"""Less than an answer may take, and than a patience of None."""
ROUNDS = 15
BODY = {"prompt": "hi"}


class SilentLink(TcpLink):
    """Forwards both ways, until Redis's answers are to be lost.

    Attributes:
        silent: answers are lost from now on.
        lost: how many pieces of answers were.
    """

    silent = False
    lost = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._server_port)
        up = asyncio.create_task(_forward(reader, requests))
        down = asyncio.create_task(self._answers(answers, writer))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way, end in ((up, writer), (down, requests)):
                way.cancel()
                end.close()

    async def _answers(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await answers.read(65_536):
            if self.silent:
                self.lost += 1
            else:
                writer.write(data)
                await writer.drain()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[SilentLink]:
    async with SilentLink(int(redis_url.rpartition(":")[2].partition("/")[0])).open() as opened:
        yield opened


@pytest.fixture
async def nothing_left(raw_redis: Redis) -> Callable[[], Any]:
    """Waits until no connection and no thread is left that were not there at the beginning."""

    async def connections() -> set[str]:
        return {each["id"] for each in await raw_redis.client_list()}

    before = await connections()

    async def nothing() -> bool:
        return await connections() <= before and not threads()

    return lambda: eventually(nothing, WITHIN_S, "all connections are closed and all threads have ended")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "streamfleet-client"]


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Start a call in a thread that holds up nobody, if it hangs."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test is told
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


async def ended(future: Future[Any]) -> Any:
    """Returns the future's value. Raises TimeoutError if it does not end."""
    return await asyncio.wait_for(asyncio.wrap_future(future), WITHIN_S)


async def finish(producer: ProducerBroker, count: int = 1) -> None:
    """Run so many requests, as a worker does."""
    broker = Broker.of(producer)
    await broker.ensure_groups()
    claims: list[Any] = []

    async def enough() -> bool:
        claims.extend((await broker.pull("w1", count - len(claims))).claims)
        return len(claims) >= count

    await eventually(enough)
    values: dict[str, Any] = {"response": "{}", "http_status": 200}
    done = [Completion(claim.lease, Status.SUCCEEDED, values, claim.fields[b"reply"].decode()) for claim in claims]
    await broker.complete("w1", done)


async def half_read(client: SyncClient, url: str, rows: Redis) -> tuple[list[SyncHandle], Iterator[Result]]:
    """Two handles, and a generator of their results, the first of which has come."""
    handles = await ended(in_thread(lambda: client.enqueue_many([{"body": BODY}] * 2)))
    results = client.as_completed(handles)
    coming = in_thread(lambda: next(results))
    await until_somebody_blocks(rows)
    async with Client(url) as worker:
        await finish(worker.broker)
    assert (await ended(coming)).ok
    return handles, results


def child(work: Callable[[], object]) -> str:
    """Returns the outcome of this work in a forked process; "hangs" without one."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def run() -> None:
        try:
            said = repr(work())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent is told
            said = f"{type(error).__name__}: {error}"
        theirs.send(said)
        os._exit(0)

    process = context.Process(target=run)
    process.start()
    try:
        return str(ours.recv()) if ours.poll(WITHIN_S) else "hangs"
    finally:
        process.kill()
        process.join()


forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

# -- without await ---------------------------------------------------------------------------------------------------

IN_FLIGHT: dict[str, Callable[[SyncClient], object]] = {
    "enqueue": lambda client: client.enqueue(BODY),
    "enqueue_many": lambda client: client.enqueue_many([{"body": BODY}] * 3),
    "status": lambda client: client.status("seed"),
    "look": lambda client: client.result("seed", 0),
    "cancel": lambda client: client.cancel("seed"),
}
WAITING: dict[str, Callable[[SyncClient], object]] = {
    "result": lambda client: client.result("seed"),
    "as_completed": lambda client: list(client.as_completed([client.enqueue(BODY)])),
    "stream": lambda client: list(client.stream("seed")),
}


async def test_calls_that_wait_for_an_answer_end_when_another_thread_closes(
    link: SilentLink, nothing_left: Callable[[], Any]
) -> None:
    client = SyncClient(link.url)
    await ended(in_thread(lambda: client.enqueue(BODY, id="seed")))
    link.silent = True
    calls = [in_thread(partial(call, client)) for call in [*IN_FLIGHT.values()] * 3]
    await eventually(lambda: link.lost >= len(calls), what="Redis has answered")
    await ended(in_thread(client.close))
    for call in calls:
        with pytest.raises(ClientClosed):
            await ended(call)
    await nothing_left()


@pytest.mark.parametrize("name", WAITING)
async def test_a_call_that_waits_for_a_result_ends_when_another_thread_closes(
    name: str, redis_url: str, raw_redis: Redis, nothing_left: Callable[[], Any]
) -> None:
    client = SyncClient(redis_url)
    await ended(in_thread(lambda: client.enqueue(BODY, id="seed", stream=True)))
    call = in_thread(lambda: WAITING[name](client))
    await until_somebody_blocks(raw_redis)
    await ended(in_thread(client.close))
    with pytest.raises(ClientClosed):
        await ended(call)
    await nothing_left()
    assert await raw_redis.keys("*reply*") == []


async def test_threads_that_enqueue_while_another_closes_all_hear_of_it(
    redis_url: str, nothing_left: Callable[[], Any]
) -> None:
    def enqueue_on(client: SyncClient, counts: list[int]) -> None:
        for count in range(1_000_000):
            client.enqueue(BODY)
            counts.append(count)

    for _ in range(ROUNDS):
        client, counts = SyncClient(redis_url), list[int]()
        calls = [in_thread(lambda client=client, counts=counts: enqueue_on(client, counts)) for _ in range(3)]  # type: ignore[misc]
        await eventually(lambda: len(counts) > 10, WITHIN_S)  # noqa: B023 - called before the next round
        await ended(in_thread(client.close))
        for call in calls:
            with pytest.raises(ClientClosed):
                await ended(call)
    await nothing_left()


async def test_a_call_that_is_still_connecting_ends_when_another_thread_closes(
    link: SilentLink, nothing_left: Callable[[], Any]
) -> None:
    link.silent = True
    client = SyncClient(link.url)
    calls = [in_thread(lambda: client.enqueue(BODY)) for _ in range(2)]
    await eventually(lambda: link.lost)
    await ended(in_thread(client.close))
    for call in calls:
        with pytest.raises(ClientClosed):
            await ended(call)
    await nothing_left()


async def test_only_open_opens_it_again(redis_url: str, nothing_left: Callable[[], Any]) -> None:
    client = SyncClient(redis_url)

    def use() -> None:
        before = client.enqueue(BODY, id="seed")
        client.close()
        client.close()
        calls: list[Callable[[], object]] = [
            *(lambda call=call: call(client) for call in (IN_FLIGHT | WAITING).values()),
            before.result,
            before.status,
            before.cancel,
            lambda: list(before.stream()),
        ]
        for call in calls:
            with pytest.raises(ClientClosed):
                call()
        assert not threads()
        client.open()
        assert client.enqueue(BODY, id="seed").existing
        assert before.status().state == "queued"
        with pytest.raises(ClientClosed, match="ask an open one"):
            before.result()
        client.close()
        with client:
            assert client.status("seed").state == "queued"

    await ended(in_thread(use))
    await nothing_left()


async def test_a_generator_that_outlives_it_says_so_and_opens_nothing(
    redis_url: str, raw_redis: Redis, nothing_left: Callable[[], Any]
) -> None:
    client = SyncClient(redis_url)
    (first, second), results = await half_read(client, redis_url, raw_redis)
    late: list[Iterator[object]] = [client.as_completed([second]), client.stream(first.id), second.stream()]
    await ended(in_thread(client.close))
    for generator in (results, *late):
        with pytest.raises(ClientClosed):
            await ended(in_thread(lambda generator=generator: next(generator)))  # type: ignore[misc]
    await nothing_left()


async def test_a_generator_that_is_dropped_after_closing_opens_nothing(
    redis_url: str, raw_redis: Redis, nothing_left: Callable[[], Any]
) -> None:
    client = SyncClient(redis_url)
    _, results = await half_read(client, redis_url, raw_redis)
    await ended(in_thread(client.close))
    assert (await raw_redis.info("clients"))["blocked_clients"] == 0
    await ended(in_thread(results.close))  # type: ignore[attr-defined]
    await nothing_left()


async def test_a_call_that_nothing_else_ends_is_cancelled(redis_url: str, nothing_left: Callable[[], Any]) -> None:
    client, begun = SyncClient(redis_url), threading.Event()

    async def for_ever() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    call = in_thread(lambda: client._run(for_ever()))
    await eventually(begun.is_set)
    await ended(in_thread(client.close))
    with pytest.raises(ClientClosed, match="by another thread"):
        await ended(call)
    await nothing_left()


async def test_a_call_is_not_handed_to_a_thread_that_has_left(redis_url: str, nothing_left: Callable[[], Any]) -> None:
    class Overtaken(SyncClient):
        def _opened(self, *, again: bool = False) -> Any:
            background = super()._opened(again=again)
            self.close()
            return background

    with pytest.raises(ClientClosed, match="by another thread"):
        await ended(in_thread(lambda: Overtaken(redis_url).enqueue(BODY)))
    await nothing_left()


async def test_a_generator_may_be_dropped_by_the_background_thread_itself(redis_url: str, raw_redis: Redis) -> None:
    client = SyncClient(redis_url)
    _, results = await half_read(client, redis_url, raw_redis)

    async def drop() -> None:
        results.close()  # type: ignore[attr-defined]

    await ended(in_thread(lambda: client._run(drop())))
    await ended(in_thread(client.close))


@forks
async def test_a_forked_process_is_told_to_open_one_of_its_own(redis_url: str, raw_redis: Redis) -> None:
    client = SyncClient(redis_url)
    handle = await ended(in_thread(lambda: client.enqueue(BODY, id="seed")))
    waiting = in_thread(handle.result)
    await until_somebody_blocks(raw_redis)
    results = client.as_completed([handle])
    told = f"ClientClosed: this client was opened by process {os.getpid()}: open one of its own in this process, "
    calls: list[Callable[[], object]] = [
        *(lambda call=call: call(client) for call in (IN_FLIGHT | WAITING).values()),
        client.open,
        handle.result,
        handle.cancel,
        lambda: next(results),
    ]
    for call in calls:
        assert (await asyncio.to_thread(child, call)).startswith(told)
    assert await asyncio.to_thread(child, client.close) == "None"
    own = await asyncio.to_thread(child, lambda: SyncClient(redis_url).status("seed").state)
    assert own == "'queued'"
    assert len(await raw_redis.keys("*reply*")) == 0, "nothing has ended yet"
    async with Client(redis_url) as worker:
        await finish(worker.broker)
    assert (await ended(waiting)).ok, "the parent's client goes on"
    await ended(in_thread(client.close))


async def test_one_that_is_not_open_yet_may_be_forked(redis_url: str) -> None:
    client = SyncClient(redis_url)
    assert await asyncio.to_thread(child, lambda: client.status("seed").state) == "'unknown'"


# -- asynchronous ----------------------------------------------------------------------------------------------------


async def test_closing_ends_calls_in_flight_and_none_connects_again(
    link: SilentLink, nothing_left: Callable[[], Any]
) -> None:
    tasks = asyncio.all_tasks()
    client = await Client(link.url, patience_s=None).__aenter__()
    await client.enqueue(BODY, id="seed")
    link.silent = True
    works = [*(client.enqueue(BODY) for _ in range(40)), client.status("seed"), client.result("seed", 0)]
    calls = [asyncio.create_task(work) for work in works]
    await eventually(lambda: link.lost >= 30)
    await client.close()
    done, going_on = await asyncio.wait(calls, timeout=WITHIN_S)
    assert not going_on
    assert {type(call.exception()) for call in done} == {ClientClosed}
    await nothing_left()
    assert not {task for task in asyncio.all_tasks() - tasks if "_connection" not in str(task)} - {*calls}
    with pytest.raises(ClientClosed):
        await client.enqueue(BODY)
    link.silent = False
    async with client:
        assert (await client.enqueue(BODY, id="seed")).existing


async def test_calls_do_not_wait_for_the_last_command(link: SilentLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfleet.common.connection.connection.LAST_TIMEOUT_S", 3600.0)
    client = await Client(link.url).__aenter__()
    handle = await client.enqueue(BODY)
    with pytest.raises(TimeoutError):
        await handle.result(0.01)  # so that there is a reply stream to delete
    link.silent = True
    call = asyncio.create_task(client.enqueue(BODY))
    await eventually(lambda: link.lost)
    closing = asyncio.create_task(client.close())
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(call, WITHIN_S)
    closing.cancel()
    await asyncio.wait({closing})


async def test_a_bulk_that_is_interrupted_tells_what_was_accepted(link: SilentLink) -> None:
    client = await Client(link.url).__aenter__()
    broker, sent = client.broker, 0
    enqueue = broker.enqueue

    async def one_then_silence(*args: Any) -> Any:
        nonlocal sent
        sent += 1
        link.silent = sent > 1
        return await enqueue(*args)

    broker.enqueue = one_then_silence  # type: ignore[assignment,method-assign]
    call = asyncio.create_task(client.enqueue_many([{"body": BODY}] * 500))
    await eventually(lambda: link.lost)
    await client.close()
    with pytest.raises(ClientClosed) as raised:
        await call
    assert len(raised.value.accepted) == 200


async def test_a_call_that_waits_for_redis_to_come_back_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "streamfleet.common.connection.connection.wait_random_exponential", lambda **_: wait_fixed(3600)
    )
    with RedisServer() as server:
        client = await Client(server.url, patience_s=None).__aenter__()
        server.kill()
        with capture_logs() as logs:
            call = asyncio.create_task(client.enqueue(BODY))
            await eventually(lambda: any(each["event"] == "waiting_for_redis" for each in logs))
        await client.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(call, WITHIN_S)


async def test_a_sleep_between_two_tries_ends_with_the_connection(redis_url: str) -> None:
    connection = Connection(redis_url)
    resting = asyncio.create_task(connection.rest(3600))
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(resting, WITHIN_S)
    with pytest.raises(ClientClosed):
        await connection.command("PING")


async def test_generators_that_outlive_the_client_say_so_and_open_nothing(
    redis_url: str, raw_redis: Redis, nothing_left: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    tasks = asyncio.all_tasks()
    async with Client(redis_url) as client:
        first, second, third = await client.enqueue_many([{"body": BODY}] * 3)
        results = client.as_completed([first, second, third])
        coming = asyncio.ensure_future(anext(results))
        await until_somebody_blocks(raw_redis)
        await finish(client.broker)
        assert (await coming).ok
        late = [client.stream(second.id), second.stream(after="1-0/0"), second.stream(), client.as_completed([second])]
    for generator in (results, *late):
        with pytest.raises(ClientClosed):
            await anext(generator)
    await nothing_left()
    await eventually(lambda: asyncio.all_tasks() <= tasks, what="all tasks have ended")
    del results, late, generator
    gc.collect()
    assert not [each for each in caplog.records if "never retrieved" in each.message]


async def test_many_that_are_waited_for_hear_of_it_without_noise(
    redis_url: str, raw_redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client = await Client(redis_url).__aenter__()
    results = client.as_completed(await client.enqueue_many([{"body": BODY}] * 3))
    coming = asyncio.ensure_future(anext(results))
    await until_somebody_blocks(raw_redis)
    await client.close()
    with pytest.raises(ClientClosed):
        await coming
    del results, coming
    gc.collect()
    assert not [each for each in caplog.records if "never retrieved" in each.message]


@forks
async def test_a_forked_process_may_not_use_the_clients_parts_either(redis_url: str, raw_redis: Redis) -> None:
    async with Client(redis_url) as client:
        handle = await client.enqueue(BODY, id="seed")
        waiting = asyncio.create_task(handle.result())
        await until_somebody_blocks(raw_redis)
        results, chunks = client.as_completed([handle]), client.stream("seed", after="1-0/0")
        other = await client.enqueue(BODY, lane="high")
        begun = client.as_completed([handle, other])
        coming = asyncio.ensure_future(anext(begun))
        await asyncio.sleep(0)
        await finish(client.broker, 1)
        assert (await coming).id == other.id
        calls: list[Callable[[], Any]] = [
            lambda: client.enqueue(BODY),
            lambda: client.status("seed"),
            lambda: client.cancel("seed"),
            handle.result,
            lambda: anext(results),
            lambda: anext(begun),
            lambda: anext(chunks),
            client.__aenter__,
        ]

        async def alone(call: Callable[[], Any]) -> None:
            await call()

        for call in calls:
            said = await asyncio.to_thread(child, lambda call=call: asyncio.run(alone(call)))  # type: ignore[misc]
            assert said.startswith(
                f"ClientClosed: this client was opened by process {os.getpid()}: open one of its own"
            )
        assert await asyncio.to_thread(child, lambda: asyncio.run(client.close())) == "None"
        await finish(client.broker)
        assert (await waiting).ok, "the parent's client goes on"


@forks
async def test_a_stream_that_was_begun_does_not_go_on_in_a_forked_process(redis_url: str) -> None:
    async with worker_inside(redis_url, SimulatedEngine(GENERIC_FAST)), Client(redis_url) as client:
        handle = await client.enqueue(chat(0.5), stream=True)
        chunks = handle.stream()
        await anext(chunks)

        async def another() -> object:
            return [chunk async for chunk in chunks]

        said = await asyncio.to_thread(child, lambda: asyncio.run(another()))
        assert said.startswith("ClientClosed: this client was opened by process")
        assert (await handle.result(WITHIN_S)).ok
        await chunks.aclose()
