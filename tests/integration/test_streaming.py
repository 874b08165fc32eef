"""Tokens from a worker process to readers: early, late, many, cut off, and through the death of the worker."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from streamfleet.common import metrics
from streamfleet.common.errors import InvalidRequest, RequestFailed, StreamfleetError
from streamfleet.producer import Chunk, Client, Handle, Missed, Restarted, StreamBroken, SyncClient
from streamfleet.producer.events import Event
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST
from tests.integration.worker_in_process import worker_inside
from tests.integration.worker_process import Fleet, WorkerProcess, chat, fleet_on
from tests.waiting import eventually

pytestmark = pytest.mark.kill


def text_of(tokens: int) -> str:
    """Returns the simulated engine's answer to `chat`."""
    return " ".join(["[simulated]", *itertools.islice(itertools.cycle(["Say", "hi"]), tokens - 1)])


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.url) as client:
        yield client


@pytest.fixture
async def inside(fleet: Fleet) -> AsyncIterator[None]:
    """A worker in this process: it is there at once, where no test has to kill it. It shares one with all readers."""
    async with worker_inside(fleet.url, SimulatedEngine(GENERIC_FAST), batch_size=128, lease_ms=10_000):
        yield


async def read(handle: Handle, after: str | None = None) -> list[Event]:
    """Everything that a reader is told until the end."""
    async with aclosing(handle.stream(after, restarts="tell")) as events:
        return [event async for event in events]


def joined(events: list[Event]) -> str:
    assert all(isinstance(event, Chunk) for event in events), events
    return "".join(event.text for event in events if isinstance(event, Chunk))


async def some(handle: Handle, chunks: int, after: str | None = None) -> list[Chunk]:
    """The first chunks, and then the reader leaves."""
    found: list[Chunk] = []
    async with aclosing(handle.stream(after)) as events:
        async for chunk in events:
            found.append(chunk)
            if len(found) == chunks:
                break
    return found


# -- reading -----------------------------------------------------------------------------------------------


async def test_tokens_come_before_the_result_and_say_the_same(any_redis_url: str, tmp_path: Path) -> None:
    engine = SimulatedEngine(GENERIC_FAST)
    async with (
        fleet_on(any_redis_url, tmp_path) as fleet,
        worker_inside(any_redis_url, engine),
        Client(any_redis_url) as client,
    ):
        handle = await client.enqueue(chat(0.6), stream=True)
        first = await some(handle, 5)
        assert await fleet.broker.result(handle.id) is None
        whole = joined(await read(handle))
        result = await handle.result(10)
        assert whole == result.text == text_of(60)
        assert "".join(chunk.text for chunk in first) == whole[: len("".join(chunk.text for chunk in first))]
        assert joined(await read(handle)) == whole, "a late reader"
        assert 5 <= int(result.fields["streamed"]) <= 60 + 2, "texts that go together are one chunk"
        ttl_ms = await fleet.redis.pttl(f"{{default}}:tokens:{handle.id}")
        assert 0 < ttl_ms <= 86_400_000


@pytest.mark.usefixtures("inside")
async def test_redis_sees_some_twenty_writes_a_second_of_a_request(fleet: Fleet, client: Client) -> None:
    dropped = metrics.STREAM_CHUNKS_DROPPED._value.get()
    handle = await client.enqueue(chat(1.0), stream=True)
    result = await handle.result(10)
    run_s = ((result.timings.total_ms or 0) - (result.timings.queued_ms or 0)) / 1000
    groups = await fleet.redis.xlen(f"{{default}}:tokens:{handle.id}") - 1
    assert 10 <= groups <= 3 + run_s * 20
    assert metrics.STREAM_CHUNKS_DROPPED._value.get() == dropped


@pytest.mark.usefixtures("inside")
async def test_many_readers_and_many_streams_over_one_blocking_connection(fleet: Fleet, client: Client) -> None:
    before = len(await fleet.redis.client_list())
    asks = [{"body": chat(0.5), "stream": True} for _ in range(100)]
    handles = await client.enqueue_many(asks)
    reading = [asyncio.create_task(read(handle)) for handle in (*handles, *handles[:20])]
    blocked = await eventually(lambda: _blocked(fleet, "xread"), what="they are read")
    assert blocked <= 2, "one for the tokens, one for the results"
    whole = {joined(events) for events in await asyncio.gather(*reading)}
    assert whole == {text_of(50)}
    assert len(await fleet.redis.client_list()) - before < 60


async def _blocked(fleet: Fleet, command: str) -> int:
    clients = await fleet.redis.client_list()
    return sum(row["cmd"] == command and "b" in row["flags"] for row in clients)


@pytest.mark.usefixtures("inside")
async def test_a_reader_that_is_cut_off_at_random_goes_on_to_the_same_text(fleet: Fleet, client: Client) -> None:
    handle = await client.enqueue(chat(1.0), stream=True)
    chance = random.Random(7)
    found: list[Chunk] = []
    for _ in range(20):
        found += await some(handle, chance.randint(1, 5), found[-1].id if found else None)
    found += [event for event in await read(handle, found[-1].id) if isinstance(event, Chunk)]
    assert "".join(chunk.text for chunk in found) == (await handle.result(10)).text == text_of(100)
    assert len({chunk.id for chunk in found}) == len(found)


@pytest.mark.usefixtures("inside")
async def test_another_process_goes_on_by_the_ids_alone(fleet: Fleet, client: Client) -> None:
    handle = await client.enqueue(chat(0.5), stream=True)
    first = await some(handle, 7)
    async with Client(fleet.url, notify=False) as other:
        rest = await read(other.handle(handle.id), first[-1].id)
        by_id = [chunk async for chunk in other.stream(handle.id)]
    assert "".join(chunk.text for chunk in first) + joined(rest) == text_of(50) == joined(list(by_id))


@pytest.mark.usefixtures("inside")
async def test_connections_that_are_lost_are_made_again(fleet: Fleet, client: Client) -> None:
    handle = await client.enqueue(chat(1.0), stream=True)
    reading = asyncio.create_task(read(handle))
    for _ in range(3):
        await eventually(lambda: _blocked(fleet, "xread"), what="it is read")
        await fleet.redis.execute_command("CLIENT", "KILL", "TYPE", "normal")
    assert joined(await reading) == text_of(100)


@pytest.mark.usefixtures("inside")
async def test_a_slow_reader_holds_little_and_misses_nothing(fleet: Fleet, client: Client) -> None:
    handle = await client.enqueue(chat(1.5), stream=True)
    found: list[Event] = []
    async with aclosing(handle.stream(restarts="tell")) as events:
        found.append(await anext(events))
        await handle.result(10)
        (feed,) = client._open.feeds._feeds[handle.id]
        assert len(feed._entries) < 64 + 256, "the rest waits in Redis"
        found += [event async for event in events]
    assert joined(found) == text_of(150)


# -- restarts ----------------------------------------------------------------------------------------------


async def test_after_the_death_of_its_worker_a_stream_begins_anew(fleet: Fleet, client: Client) -> None:
    first = await fleet.worker("w1")
    handle = await client.enqueue(chat(2), stream=True)
    before = await some(handle, 10)
    reading = [asyncio.create_task(read(handle)), asyncio.create_task(read(handle, before[-1].id))]
    raising = asyncio.create_task(some(handle, 1_000))
    await eventually(lambda: _groups(fleet, handle, 4), what="it streams")
    first.send(signal.SIGKILL)
    await fleet.worker("w2")
    whole, rest = await asyncio.gather(*reading)
    at = whole.index(Restarted(2))
    assert at > 0
    assert text_of(200).startswith(joined(whole[:at]))
    assert joined(whole[at + 1 :]) == text_of(200), "the whole new text, not glued on"
    assert joined(rest[rest.index(Restarted(2)) + 1 :]) == text_of(200)
    with pytest.raises(StreamBroken, match="runs anew"):
        await raising
    late = await read(handle)
    assert joined(late) == text_of(200), "who comes late need not hear of it"
    assert {event.attempt for event in late if isinstance(event, Chunk)} == {2}


async def _groups(fleet: Fleet, handle: Handle, number: int) -> bool:
    return bool(await fleet.redis.xlen(f"{{default}}:tokens:{handle.id}") >= number)


async def test_a_frozen_worker_that_thaws_adds_nothing_that_readers_see(fleet: Fleet, client: Client) -> None:
    frozen = await fleet.worker("w1")
    handle = await client.enqueue(chat(2.0), stream=True)
    reading = asyncio.create_task(read(handle))
    await eventually(lambda: _groups(fleet, handle, 4), what="it streams")
    frozen.send(signal.SIGSTOP)
    await fleet.worker("w2")
    await eventually(lambda: _attempts(fleet, handle, b"2"), what="another worker streams it")
    frozen.send(signal.SIGCONT)
    events = await reading
    at = events.index(Restarted(2))
    assert events.count(Restarted(2)) == 1
    assert joined(events[at + 1 :]) == text_of(200)
    assert {event.attempt for event in events[at + 1 :] if isinstance(event, Chunk)} == {2}


async def _attempts(fleet: Fleet, handle: Handle, attempt: bytes) -> bool:
    newest = await fleet.broker.newest_tokens(handle.id, 1)
    return bool(newest) and newest[0][1].get(b"attempt") == attempt


async def test_a_worker_that_hands_back_stops_publishing(fleet: Fleet, client: Client) -> None:
    first = await fleet.worker("w1", drain_ms=0)
    handle = await client.enqueue(chat(2), stream=True)
    reading = asyncio.create_task(read(handle))
    await eventually(lambda: _groups(fleet, handle, 4), what="it streams")
    first.send(signal.SIGTERM)
    await fleet.worker("w2")
    events = await reading
    assert not any(isinstance(event, Restarted) for event in events), "the next run goes on with what was kept"
    assert joined(events) == text_of(200)


# -- endings -----------------------------------------------------------------------------------------------


async def failure(handle: Handle) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        await asyncio.wait_for(read(handle), 10)
    return caught.value


@pytest.mark.usefixtures("inside")
async def test_other_endings_are_raised_with_their_errors(fleet: Fleet, client: Client) -> None:
    handles = {
        "refused": await client.enqueue({"messages": "hi"}, id="refused", stream=True),
        "late": await client.enqueue(chat(9), id="late", ttl_ms=600, stream=True),
        "stop": await client.enqueue(chat(9), id="stop", stream=True),
    }
    reading = {name: asyncio.create_task(failure(handle)) for name, handle in handles.items()}
    await eventually(lambda: _groups(fleet, handles["stop"], 3), what="it streams")
    assert await handles["stop"].cancel()
    found = {name: await error for name, error in reading.items()}
    assert {name: (error.status, error.error["code"]) for name, error in found.items()} == {
        "refused": ("failed", "invalid_type"),
        "late": ("expired", "deadline_exceeded"),
        "stop": ("cancelled", "cancelled"),
    }
    assert (await failure(handles["late"])).status == "expired", "late readers too"
    await fleet.settled()
    for name in handles:
        ends = [fields for _, fields in await fleet.redis.xrange(f"{{default}}:tokens:{name}") if "end" in fields]
        assert len(ends) == 1


async def test_one_that_never_began_is_told_that_it_was_cancelled(client: Client) -> None:
    handle = await client.enqueue(chat(), stream=True)
    reading = asyncio.create_task(failure(handle))
    await asyncio.sleep(0)
    assert await handle.cancel()
    assert (await reading).status == "cancelled"


@pytest.mark.usefixtures("inside")
async def test_what_is_not_streamed_ends_with_its_result(fleet: Fleet, client: Client) -> None:
    plain = await client.enqueue(chat())
    vector = await client.enqueue({"input": "hi"}, stream=True)
    assert [await read(handle) for handle in (plain, vector)] == [[], []]
    assert await fleet.redis.exists(f"{{default}}:tokens:{plain.id}") == 0
    assert await fleet.redis.xlen(f"{{default}}:tokens:{vector.id}") == 1


@pytest.mark.usefixtures("inside")
async def test_a_redis_that_lost_the_end_holds_up_nobody(fleet: Fleet, client: Client) -> None:
    handle = await client.enqueue(chat(0.3), stream=True)
    chunks = int((await handle.result(10)).fields["streamed"])
    key = f"{{default}}:tokens:{handle.id}"
    ((end, _),) = await fleet.redis.xrevrange(key, count=1)
    await fleet.redis.xdel(key, end)
    assert joined(await read(handle)) == text_of(30)
    await fleet.redis.delete(key)
    assert await read(handle) == [Missed(chunks, 1)]
    with pytest.raises(StreamBroken, match=f"lacks {chunks} chunks"):
        await some(handle, 1)


@pytest.mark.usefixtures("inside")
async def test_the_count_of_tokens_comes_to_those_who_ask(fleet: Fleet, client: Client) -> None:
    body = {**chat(0.05), "stream": True, "stream_options": {"include_usage": True}}
    asked = await read(await client.enqueue(body, stream=True))
    plain = await read(await client.enqueue(chat(0.05), stream=True))
    assert isinstance(asked[-1], Chunk)
    assert asked[-1].data["usage"]["completion_tokens"] == 5
    assert len(asked) == len(plain) + 1


# -- odd things --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("inside")
async def test_tokens_that_somebody_made_something_else_of_hold_up_no_others(fleet: Fleet, client: Client) -> None:
    odd = await client.enqueue(chat(1.0), id="odd", stream=True)
    well = await client.enqueue(chat(1.0), stream=True)
    reading, told = asyncio.create_task(read(well)), asyncio.create_task(read(odd))
    await eventually(lambda: _groups(fleet, well, 3), what="they stream")
    await fleet.redis.set("{default}:tokens:odd", "mine")
    assert joined(await reading) == text_of(100)
    with pytest.raises(StreamfleetError, match="tokens of request odd cannot be read"):
        await told
    assert (await odd.result(10)).text == text_of(100)


async def test_what_is_asked_wrongly_is_said(client: Client) -> None:
    handle = client.handle("r-1")
    with pytest.raises(InvalidRequest, match="after: must be the id of a chunk"):
        handle.stream("7")
    with pytest.raises(InvalidRequest, match="restarts: must be 'raise' or 'tell'"):
        handle.stream(restarts="ignore")  # type: ignore[call-overload]


async def test_a_client_that_closes_tells_its_readers(client: Client) -> None:
    handle = await client.enqueue(chat(), stream=True)
    reading = asyncio.create_task(read(handle))
    await eventually(lambda: bool(client._open.feeds._feeds), what="it is read")
    await client.close()
    with pytest.raises(StreamfleetError, match="client was closed"):
        await asyncio.wait_for(reading, 5)


# -- without an event loop, and on the command line ----------------------------------------------------------


@pytest.fixture
def worker(redis_url: str, tmp_path: Path) -> Any:
    with WorkerProcess(redis_url, tmp_path, "w1") as worker:
        yield worker.ready_blocking()


def test_the_client_without_await_streams_too(redis_url: str, worker: WorkerProcess) -> None:
    with SyncClient(redis_url) as client:
        handle = client.enqueue(chat(0.3), stream=True)
        chunks = list(handle.stream())
        assert "".join(chunk.text for chunk in chunks) == handle.result(10).text == text_of(30)
        again = list(client.stream(handle.id, after=chunks[4].id))
        assert again == chunks[5:]
        refused = client.enqueue({"messages": "hi"}, stream=True)
        with pytest.raises(RequestFailed, match="failed"):
            list(refused.stream())
