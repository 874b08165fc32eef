"""Many requests through a window: bounded, lazily taken, each answered, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from streamfleet.common.broker.types import Completion, EnqueueCode
from streamfleet.common.errors import ClientClosed, Conflict, InvalidRequest, RequestLost
from streamfleet.common.protocol import Status
from streamfleet.common.results import Result
from streamfleet.common.settings import QueueSettings, load
from streamfleet.producer import Ask, Chunk, Client, SyncClient
from streamfleet.producer.events import Event
from streamfleet.producer.streaming import Streams
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST
from tests.broker import Broker
from tests.integration.forgetting import lose
from tests.integration.worker_in_process import worker_inside
from tests.integration.worker_process import WorkerProcess, chat
from tests.waiting import eventually

LANE = "{default}:lane:normal"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with Client(redis_url) as opened:
        yield opened


@pytest.fixture
async def worker(redis_url: str) -> AsyncIterator[None]:
    async with worker_inside(redis_url, SimulatedEngine(GENERIC_FAST), batch_size=128, lease_ms=10_000):
        yield


class Source:
    """Requests without an end.

    Attributes:
        taken: how many were taken.
    """

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[Ask]:
        for number in itertools.count():
            self.taken += 1
            yield Ask(body=chat(), id=f"r-{number}")


async def finish(client: Client, count: int) -> list[str]:
    """Run so many requests, as a worker does; their ids."""
    await client.broker.ensure_groups()
    claims = (await Broker.of(client.broker).pull("w1", count)).claims
    values: dict[str, Any] = {"response": "{}", "http_status": 200}
    await Broker.of(client.broker).complete(
        "w1", [Completion(claim.lease, Status.SUCCEEDED, values, claim.fields[b"reply"].decode()) for claim in claims]
    )
    return [claim.lease.request_id for claim in claims]


# -- results ---------------------------------------------------------------------------------------------------------


async def test_no_more_are_outstanding_or_taken_than_there_is_room_for(client: Client, raw_redis: Redis) -> None:
    source = Source()
    async with aclosing(client.run_many(source, concurrency=5)) as results:
        coming = asyncio.ensure_future(anext(results))
        await eventually(lambda: raw_redis.xlen(LANE))
        assert (await raw_redis.xlen(LANE), source.taken) == (5, 5)
        for _ in range(3):
            done = await finish(client, 2)
            came = {(await coming).id, (await anext(results)).id}
            assert came == set(done)
            coming = asyncio.ensure_future(anext(results))
            await eventually(lambda: raw_redis.xlen(LANE), what="the lane is filled up again")
            await eventually(lambda: source.taken % 2 == 1)
        assert (await raw_redis.xlen(LANE), source.taken) == (5, 11)
        coming.cancel()
        await asyncio.wait({coming})
    assert await raw_redis.xlen(LANE) == 5, "what was enqueued goes on"


async def test_a_bound_larger_than_a_call_is_filled_by_several(client: Client, raw_redis: Redis) -> None:
    coming = asyncio.ensure_future(anext(client.run_many(Source(), concurrency=450)))

    async def filled() -> bool:
        return await raw_redis.xlen(LANE) == 450

    await eventually(filled)
    coming.cancel()
    await asyncio.wait({coming})


@pytest.mark.usefixtures("worker")
async def test_all_are_answered(client: Client) -> None:
    asks = [{"body": chat(), "id": f"r-{number}"} for number in range(300)]
    found = [result.id async for result in client.run_many(iter(asks), concurrency=64)]
    assert sorted(found) == sorted(str(ask["id"]) for ask in asks)


@pytest.mark.usefixtures("worker")
async def test_results_do_not_wait_for_an_asynchronous_source(client: Client) -> None:
    answered = asyncio.Event()

    async def asks() -> AsyncIterator[Ask]:
        yield Ask(body=chat(), id="r-1")
        await answered.wait()
        yield Ask(body=chat(), id="r-2")

    found = []
    async with asyncio.timeout(20):
        async for result in client.run_many(asks()):
            found.append(result.id)
            answered.set()
    assert found == ["r-1", "r-2"]


async def test_an_asynchronous_source_is_not_read_far_ahead(client: Client, raw_redis: Redis) -> None:
    taken = 0

    async def asks() -> AsyncIterator[Ask]:
        nonlocal taken
        for ask in Source():
            taken += 1
            yield ask

    async with aclosing(client.run_many(asks(), concurrency=5)) as results:
        coming = asyncio.ensure_future(anext(results))

        async def filled() -> bool:
            return await raw_redis.xlen(LANE) == 5

        await eventually(filled)
        await client.status("r-0")
        assert taken <= 10
        coming.cancel()
        await asyncio.wait({coming})


@pytest.mark.usefixtures("worker")
async def test_a_wrong_request_is_named_when_those_before_it_have_ended(client: Client) -> None:
    taken = []

    def asks() -> Iterator[dict[str, Any]]:
        for ask in ({"body": chat()}, {"body": chat()}, {"body": chat(), "lane": "fast"}, {"body": chat()}):
            taken.append(ask)
            yield ask

    found: list[Result] = []

    async def run() -> None:
        async for result in client.run_many(asks()):
            found.append(result)  # noqa: PERF401 - kept although an error follows

    with pytest.raises(InvalidRequest, match=r"^lane: 'fast' is not one of .* \(request 3\)$"):
        await run()
    assert (len(found), len(taken)) == (2, 3)


@pytest.mark.usefixtures("worker")
async def test_what_the_source_raises_comes_last(client: Client) -> None:
    def asks() -> Iterator[Ask]:
        yield Ask(body=chat(), id="r-1")
        raise KeyError("mine")

    async def later() -> AsyncIterator[Ask]:
        for ask in asks():
            yield ask

    for source in (asks(), later()):
        results = client.run_many(source)
        assert (await anext(results)).id == "r-1"
        with pytest.raises(KeyError, match="mine"):
            await anext(results)


@pytest.mark.usefixtures("worker")
async def test_an_id_that_belongs_to_another_is_a_conflict(client: Client) -> None:
    await client.enqueue(chat(0.1), id="r-2")
    results = client.run_many(itertools.islice(Source(), 3))
    assert {(await anext(results)).id, (await anext(results)).id} == {"r-0", "r-1"}
    with pytest.raises(Conflict, match="id: r-2"):
        await anext(results)


async def test_a_full_lane_is_waited_for(redis_url: str) -> None:
    settings = load(QueueSettings, redis_url=redis_url, lane_limit=3)
    async with Client(settings=settings) as client, worker_inside(redis_url, SimulatedEngine(GENERIC_FAST)):
        found = [result.id async for result in client.run_many(itertools.islice(Source(), 20))]
    assert sorted(found) == sorted(f"r-{number}" for number in range(20))


async def test_a_lane_without_room_in_bytes_is_waited_for(redis_url: str) -> None:
    settings = load(QueueSettings, redis_url=redis_url, lane_bytes=1_048_576, max_body_bytes=262_144)
    asks = [{"id": f"r-{number}", "body": {**chat(), "user": "x" * 200_000}} for number in range(12)]
    full = 0
    async with Client(settings=settings) as client:
        submit = client.submit

        async def counted(chunk: Any) -> Any:
            nonlocal full
            outcomes = await submit(chunk)
            full += sum(code is EnqueueCode.FULL for _, code in outcomes)
            return outcomes

        async def run_all() -> list[str]:
            return [result.id async for result in client.run_many(asks)]

        client.submit = counted  # type: ignore[method-assign]
        coming = asyncio.ensure_future(run_all())
        await eventually(lambda: full, 10, "the lane has no room")
        async with worker_inside(redis_url, SimulatedEngine(GENERIC_FAST)):
            assert sorted(await coming) == sorted(f"r-{number}" for number in range(12))


async def test_a_lane_that_others_fill_is_tried_again_but_not_all_the_time(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfleet.producer.window.TICK_S", 1.0)
    async with Client(settings=load(QueueSettings, redis_url=redis_url, lane_limit=3)) as client:
        await client.enqueue_many([{"body": chat()}] * 3)
        calls, submit = [], client.submit

        async def counted(chunk: Any) -> Any:
            calls.append(chunk)
            return await submit(chunk)

        client.submit = counted  # type: ignore[method-assign]
        coming = asyncio.ensure_future(anext(client.run_many(itertools.islice(Source(), 1))))
        await eventually(lambda: calls)
        for _ in range(10):
            await client.status("r-0")
        assert len(calls) < 5
        assert len(await finish(client, 3)) == 3
        await eventually(lambda: finish(client, 1), 10)
        assert (await asyncio.wait_for(coming, 10)).id == "r-0"


async def test_what_redis_lost_is_told_when_the_others_have_come(client: Client, raw_redis: Redis) -> None:
    results = client.run_many(itertools.islice(Source(), 3))
    coming = asyncio.ensure_future(anext(results))
    await eventually(lambda: raw_redis.xlen(LANE))
    await lose(raw_redis, ["r-1"])
    await eventually(raw_redis.ping)
    await finish(client, 2)
    assert {(await coming).id, (await anext(results)).id} == {"r-0", "r-2"}
    with pytest.raises(RequestLost) as raised:
        await anext(results)
    assert raised.value.ids == ("r-1",)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True])
async def test_the_bound_is_checked_at_once(client: Client, concurrency: Any) -> None:
    with pytest.raises(InvalidRequest, match="concurrency: must be a whole number above 0"):
        client.run_many([], concurrency)
    with pytest.raises(InvalidRequest, match="concurrency"):
        client.stream_many([], concurrency)


async def test_none_at_all(client: Client) -> None:
    async def none() -> AsyncIterator[Ask]:
        for ask in itertools.islice(Source(), 0):
            yield ask

    assert [each async for each in client.run_many([])] == []
    assert [each async for each in client.stream_many(none())] == []


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
async def test_streams_are_merged_and_a_failure_ends_none_of_the_others(client: Client) -> None:
    bodies: list[dict[str, Any]] = [chat(0.2) for _ in range(8)]
    bodies[3] = {"messages": "hi"}
    texts, results = dict[str, str](), dict[str, Result]()
    ids = [f"r-{number}" for number in range(8)]
    async for request_id, event in client.stream_many(
        ({"body": body, "id": name} for body, name in zip(bodies, ids, strict=True)), concurrency=3
    ):
        assert request_id not in results, "the result is the last"
        if isinstance(event, Result):
            results[request_id] = event
        else:
            assert isinstance(event, Chunk)
            texts[request_id] = texts.get(request_id, "") + event.text
        assert len(texts.keys() - results.keys()) <= 3
    assert sorted(results) == ids
    assert results["r-3"].status is Status.FAILED
    assert texts == {name: results[name].text for name in ids if name != "r-3"}


@pytest.mark.usefixtures("worker")
async def test_a_reader_that_takes_its_time_holds_back_the_tokens(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfleet.producer.streaming.MOST_UNREAD", 4)
    monkeypatch.setattr("streamfleet.producer.feeds.MOST_WAITING", 4)
    handles = [await client.enqueue(chat(0.5), stream=True) for _ in range(4)]
    streams = Streams(lambda handle: client.reading(handle, None))
    streams.add(handles)
    for handle in handles:
        await handle.result(20)
    assert len(streams._unread) < 100, "of 200 chunks, all of which are in Redis"
    texts = {handle.id: "" for handle in handles}
    while len(streams):
        for request_id, event in cast("Any", await streams.take()):
            texts[request_id] += "" if isinstance(event, Result) else event.text
    assert texts == {handle.id: (await handle.result()).text for handle in handles}


async def test_a_reader_that_leaves_leaves_no_task(client: Client, raw_redis: Redis) -> None:
    tasks = asyncio.all_tasks()
    async with aclosing(client.stream_many(Source(), concurrency=4)) as pairs:
        coming = asyncio.ensure_future(anext(pairs))
        await eventually(lambda: raw_redis.xlen(LANE))
        coming.cancel()
        await asyncio.wait({coming})
    await client.close()
    await eventually(lambda: asyncio.all_tasks() <= tasks, what="all tasks have ended")


async def test_closing_ends_both(redis_url: str, raw_redis: Redis) -> None:
    client = await Client(redis_url).__aenter__()
    calls: list[Any] = [
        asyncio.ensure_future(anext(client.run_many(Source(), 3))),
        asyncio.ensure_future(anext(client.stream_many(({"body": chat()} for _ in range(9)), 3))),
    ]

    async def filled() -> bool:
        return await raw_redis.xlen(LANE) == 6

    await eventually(filled)
    await client.close()
    for call in calls:
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(call, 10)
    for again in (client.run_many, client.stream_many):
        with pytest.raises(ClientClosed):
            again([])


# -- without await ---------------------------------------------------------------------------------------------------


def test_without_await_the_calling_thread_takes_from_the_source(redis_url: str, worker_process: WorkerProcess) -> None:
    threads = set()

    def asks(client: SyncClient, stem: str) -> Iterator[dict[str, Any]]:
        for number in range(12):
            threads.add(threading.current_thread())
            assert client.status("stranger").state == "unknown", "the client may be used meanwhile"
            yield {"body": chat(0.1), "id": f"{stem}-{number}"}

    with SyncClient(redis_url) as client:
        found = {result.id: result.ok for result in client.run_many(asks(client, "r"), concurrency=4)}
        assert found == {f"r-{number}": True for number in range(12)}
        texts: dict[str, str] = {}
        pairs: list[tuple[str, Event | Result]] = list(client.stream_many(asks(client, "s"), concurrency=4))
        for name, event in pairs:
            if isinstance(event, Chunk):
                texts[name] = texts.get(name, "") + event.text
        assert texts == {name: event.text for name, event in pairs if isinstance(event, Result)}
        assert len(texts) == 12
        left = client.run_many(asks(client, "t"), concurrency=4)
        next(left)
    assert threads == {threading.current_thread()}
    with pytest.raises(ClientClosed):
        list(left)


@pytest.fixture
def worker_process(redis_url: str, tmp_path: Any) -> Iterator[WorkerProcess]:
    with WorkerProcess(redis_url, tmp_path, "w1") as started:
        yield started.ready_blocking()
