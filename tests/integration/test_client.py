"""The client against real Redis; the test itself plays the worker, by the real protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest
import redis.asyncio

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.broker.types import Accepted, Claim, Completion, Submission
from streamfleet.common.errors import (
    BrokerOutOfMemory,
    BrokerUnavailable,
    ClientClosed,
    Conflict,
    InvalidRequest,
    NotPermitted,
    QueueFull,
    RequestFailed,
    ResultTimeout,
    SettingsError,
)
from streamfleet.common.protocol import Lane, Status
from streamfleet.common.settings import QueueSettings, load
from streamfleet.producer import Ask, Client, SyncClient, SyncHandle
from streamfleet.producer.slots import Slots
from tests.broker import Broker
from tests.support.redis_server import RedisServer
from tests.waiting import eventually, until_somebody_blocks

ERROR = '{"error": {"message": "is too long", "type": "invalid_request_error", "param": "messages", "code": "long"}}'


@pytest.fixture
def notifications_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for safety: what was notified must come by its notification."""
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 1e6)
    monkeypatch.setattr("streamfleet.producer.slots.LONGEST_SAFETY_S", 1e6)


def chat(text: str = "hi") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
async def fleet(redis_url: str) -> AsyncIterator[Client]:
    async with Client(redis_url) as client:
        yield client


async def entries(client: redis.asyncio.Redis, lane: str) -> list[tuple[str, dict[str, str]]]:
    """Returns the entries of a lane: stream ids and fields."""
    found: Any = await client.xrange(f"{{default}}:lane:{lane}")
    return list(found)


async def take(fleet: Client, count: int = 1) -> list[Claim]:
    """Pull as a worker does, until `count` are there."""
    claims: list[Claim] = []

    async def enough() -> bool:
        claims.extend((await Broker.of(fleet.broker).pull("w1", count - len(claims))).claims)
        return len(claims) >= count

    await eventually(enough)
    return claims


async def answer(fleet: Client, *claims: Claim, status: Status = Status.SUCCEEDED, quietly: bool = False) -> None:
    """Complete as a worker does; `quietly` leaves the notification out, as one that was trimmed."""
    values = (
        {"response": '{"choices": [{"message": {"content": "yes"}}]}'}
        if status is Status.SUCCEEDED
        else {"error": ERROR}
    )
    values |= {"worker": "w1", "attempt": "1", "lane": "normal", "entry": claims[0].lease.entry}
    done = [
        Completion(
            claim.lease,
            status,
            values,
            reply="" if quietly else claim.fields.get(b"reply", b"").decode(),
            error="" if status is Status.SUCCEEDED else ERROR,
        )
        for claim in claims
    ]
    await Broker.of(fleet.broker).complete("w1", done)


async def until_read(server: RedisServer) -> None:
    """Wait until a client listens, so that it notices when its server goes."""
    async with redis.asyncio.Redis.from_url(server.url) as rows:
        await until_somebody_blocks(rows)


def after_each_call(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[object]]) -> None:
    """Let something happen between two script calls of one bulk."""
    enqueue = ProducerBroker.enqueue

    async def enqueue_then(broker: ProducerBroker, submissions: Sequence[Submission]) -> list[Accepted]:
        answers = await enqueue(broker, submissions)
        await happens()
        return answers

    monkeypatch.setattr(ProducerBroker, "enqueue", enqueue_then)


# -- putting in ---------------------------------------------------------------------------------------------------


async def test_what_stands_in_the_lane(fleet: Client, raw_redis: redis.asyncio.Redis) -> None:
    handle = await fleet.enqueue(chat(), lane="high", id="r-42", deadline=1_790_000_000_000, tenant="acme")
    ((stream_id, fields),) = await entries(raw_redis, "high")
    assert handle.entry == f"high:{stream_id}"
    assert fields.pop("reply") == fleet.mailbox.name
    assert fields == {
        "id": "r-42",
        "body": '{"messages":[{"role":"user","content":"hi"}]}',
        "deadline": "1790000000000",
        "tenant": "acme",
    }


@pytest.mark.usefixtures("notifications_only")
async def test_a_request_gets_its_result(fleet: Client) -> None:
    handle = await fleet.enqueue(chat())
    assert len(handle.id) == 32
    waiting = asyncio.create_task(handle.result(timeout=10))
    await answer(fleet, *await take(fleet))
    result = await waiting
    assert (result.id, result.status, result.text, result.worker) == (handle.id, Status.SUCCEEDED, "yes", "w1")
    assert result.raise_for_status() is result


@pytest.mark.usefixtures("notifications_only")
async def test_a_result_that_is_asked_for_late(fleet: Client) -> None:
    first, second = await fleet.enqueue_many([{"body": chat()}, {"body": chat()}])
    await answer(fleet, *await take(fleet, 2))
    assert (await first.result(timeout=10)).ok
    assert (await second.result(timeout=10)).ok
    assert await first.result(timeout=0) is await first.result()


async def test_a_failed_request_raises_only_when_asked_to(fleet: Client) -> None:
    handle = await fleet.enqueue(chat())
    await answer(fleet, *await take(fleet), status=Status.FAILED)
    result = await handle.result(timeout=10)
    assert result.status is Status.FAILED
    with pytest.raises(RequestFailed, match="is too long"):
        result.raise_for_status()


async def test_the_same_id_is_the_same_request(fleet: Client, raw_redis: redis.asyncio.Redis) -> None:
    first = await fleet.enqueue(chat(), id="r-1")
    again = await fleet.enqueue(chat(), id="r-1")
    assert not first.existing
    assert again.existing
    assert first.entry == again.entry
    assert await raw_redis.xlen("{default}:lane:normal") == 1
    with pytest.raises(Conflict, match="id: r-1"):
        await fleet.enqueue(chat("something else"), id="r-1")
    await answer(fleet, *await take(fleet))
    assert (await again.result(timeout=10)).ok
    late = await fleet.enqueue(chat(), id="r-1")
    assert late.existing
    assert (await late.result(timeout=10)).ok


async def test_a_full_lane_says_so_and_keeps_what_it_took(redis_url: str) -> None:
    settings = load(QueueSettings, redis_url=redis_url, lane_limit=3)
    async with Client(settings=settings) as fleet:
        asks = [Ask(body=chat(), id=f"r-{number}", lane="high" if number == 1 else "low") for number in range(6)]
        with pytest.raises(QueueFull, match="lane low holds 3") as raised:
            await fleet.enqueue_many(asks)
        assert [handle.id for handle in raised.value.accepted] == ["r-0", "r-1", "r-2", "r-3"]
        assert raised.value.lane == "low"
        # The same again, when there is room, goes on where it stopped.
        await answer(fleet, *await take(fleet, 4))
        handles = await fleet.enqueue_many(asks[:5])
        assert [handle.existing for handle in handles] == [True] * 4 + [False]


async def test_a_conflict_keeps_what_was_taken_before_and_behind_it(fleet: Client) -> None:
    await fleet.enqueue(chat(), id="r-250")
    asks = [Ask(body=chat("new" if number == 250 else "hi"), id=f"r-{number}") for number in range(450)]
    with pytest.raises(Conflict, match="id: r-250 ") as raised:
        await fleet.enqueue_many(asks)
    # Calls of 200: the rest of the second is accepted, the third is not sent.
    assert [handle.id for handle in raised.value.accepted] == [f"r-{n}" for n in range(400) if n != 250]
    assert (await fleet.status("r-400")).state == "unknown"


async def test_a_conflict_is_reported_before_a_full_lane(redis_url: str) -> None:
    async with Client(settings=load(QueueSettings, redis_url=redis_url, lane_limit=1)) as fleet:
        await fleet.enqueue(chat(), id="r-1", lane="low")
        asks = [
            Ask(body=chat(), id="r-0", lane="low"),
            Ask(body=chat("something else"), id="r-1", lane="low"),
            Ask(body=chat(), id="r-2", lane="high"),
        ]
        with pytest.raises(Conflict, match="id: r-1 ") as raised:
            await fleet.enqueue_many(asks)
        assert [handle.id for handle in raised.value.accepted] == ["r-2"]


async def test_a_redis_that_fills_up_on_the_way(
    fleet: Client, raw_redis: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_each_call(monkeypatch, lambda: raw_redis.config_set("maxmemory", 1))
    try:
        with pytest.raises(BrokerOutOfMemory) as raised:
            await fleet.enqueue_many({"body": chat()} for _ in range(300))
    finally:
        await raw_redis.config_set("maxmemory", 0)
    taken = [fields["id"] for _, fields in await entries(raw_redis, "normal")]
    assert len(taken) == 200
    assert [handle.id for handle in raised.value.accepted] == taken


async def test_a_redis_that_goes_away_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [Ask(body=chat(), id=f"r-{number}") for number in range(300)]
    with RedisServer(appendonly=True) as server:
        after_each_call(monkeypatch, lambda: asyncio.to_thread(server.kill))
        async with Client(server.url, patience_s=0) as fleet:
            with pytest.raises(BrokerUnavailable) as raised:
                await fleet.enqueue_many(asks)
            assert [handle.id for handle in raised.value.accepted] == [f"r-{number}" for number in range(200)]
        await asyncio.to_thread(server.restart)
        with SyncClient(server.url, patience_s=0) as sync:
            with pytest.raises(BrokerUnavailable) as raised:
                await asyncio.to_thread(sync.enqueue_many, asks)
            assert [(type(handle), handle.existing) for handle in raised.value.accepted] == [(SyncHandle, True)] * 200


async def test_nothing_is_sent_when_one_is_wrong(fleet: Client, raw_redis: redis.asyncio.Redis) -> None:
    with pytest.raises(InvalidRequest, match="request 3") as raised:
        await fleet.enqueue_many([{"body": chat()}, {"body": chat()}, {"body": chat(), "lane": "urgent"}])
    assert raised.value.param == "lane"
    assert await raw_redis.keys() == []


async def test_a_thousand_in_order_over_many_calls(fleet: Client, raw_redis: redis.asyncio.Redis) -> None:
    handles = await fleet.enqueue_many({"body": chat("x" * 3_000), "id": f"r-{number}"} for number in range(1_000))
    assert [handle.id for handle in handles] == [f"r-{number}" for number in range(1_000)]
    assert [fields["id"] for _, fields in await entries(raw_redis, "normal")] == [handle.id for handle in handles]


# -- waiting ------------------------------------------------------------------------------------------------------


async def test_results_come_as_they_are_completed(fleet: Client) -> None:
    handles = await fleet.enqueue_many({"body": chat(), "id": f"r-{number}"} for number in range(3))
    claims = {claim.lease.request_id: claim for claim in await take(fleet, 3)}
    order: list[str] = []
    results = fleet.as_completed(handles, timeout=10)
    for request_id in ("r-2", "r-0", "r-1"):
        await answer(fleet, claims[request_id])
        order.append((await anext(results)).id)
    assert order == ["r-2", "r-0", "r-1"]
    assert await anext(results, None) is None


@pytest.mark.usefixtures("notifications_only")
async def test_five_hundred_waiters_are_one_blocking_read(fleet: Client, raw_redis: redis.asyncio.Redis) -> None:
    handles = await fleet.enqueue_many({"body": chat()} for _ in range(500))
    waiting = [asyncio.create_task(handle.result(timeout=20)) for handle in handles]

    async def blocked() -> int:
        return int((await raw_redis.info("clients"))["blocked_clients"])

    await eventually(blocked, what="the client reads its reply stream")
    assert await blocked() == 1
    for _ in range(5):
        await answer(fleet, *await take(fleet, 100))
    results = await asyncio.gather(*waiting)
    assert {result.id for result in results} == {handle.id for handle in handles}


async def test_timeouts_leave_the_request_alone(fleet: Client) -> None:
    handle = await fleet.enqueue(chat())
    with pytest.raises(ResultTimeout, match=handle.id):
        await handle.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        await fleet.result(handle.id, timeout=0)
    with pytest.raises(ResultTimeout, match="1 requests"):
        await anext(fleet.as_completed([handle], timeout=0.01))
    await answer(fleet, *await take(fleet))
    assert (await handle.result(timeout=10)).ok


async def test_requests_of_others_are_waited_for_by_their_result(fleet: Client, raw_redis: redis.asyncio.Redis) -> None:
    await raw_redis.xadd("{default}:lane:high", {"id": "r-42", "body": '{"prompt": "hi"}'})
    await raw_redis.xadd("{default}:lane:high", {"body": '{"prompt": "hi"}'})
    names = ["r-42", f"high:{(await entries(raw_redis, 'high'))[1][0]}"]
    waiting = [asyncio.create_task(fleet.result(name, timeout=10)) for name in names]
    await answer(fleet, *await take(fleet, 2))
    assert [result.id for result in await asyncio.gather(*waiting)] == names


async def test_a_client_that_wants_no_notifications(redis_url: str, raw_redis: redis.asyncio.Redis) -> None:
    async with Client(redis_url, notify=False) as fleet:
        handle = await fleet.enqueue(chat())
        await answer(fleet, *await take(fleet))
        assert (await handle.result(timeout=10)).ok
        assert await raw_redis.keys("*reply*") == []


async def test_a_lost_notification_is_made_up_for(fleet: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.2)
    handle = await fleet.enqueue(chat())
    waiting = asyncio.create_task(handle.result(timeout=10))
    await answer(fleet, *await take(fleet), quietly=True)
    assert (await waiting).ok


async def test_a_lost_notification_is_made_up_for_over_many_short_waits(
    fleet: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.5)
    handle = await fleet.enqueue(chat())
    await answer(fleet, *await take(fleet), quietly=True)

    async def ended() -> bool:
        with contextlib.suppress(ResultTimeout):
            return (await handle.result(timeout=0.05)).ok
        return False

    await eventually(ended)


async def test_a_result_that_cannot_be_read_hurts_only_its_own_waiter(
    fleet: Client, raw_redis: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.2)
    await raw_redis.set("{default}:result:stranger", "no hash")
    handle = await fleet.enqueue(chat())
    await answer(fleet, *await take(fleet), quietly=True)
    names = ["stranger", handle.id]
    found = await asyncio.gather(*(fleet.result(name, timeout=10) for name in names), return_exceptions=True)
    assert [isinstance(result, Exception) for result in found] == [True, False]


async def test_waiting_outlasts_a_restart_of_redis() -> None:
    with RedisServer(appendonly=True) as server:
        async with Client(server.url, patience_s=20) as fleet:
            handle = await fleet.enqueue(chat())
            waiting = asyncio.create_task(handle.result(timeout=30))
            claims = await take(fleet)
            await asyncio.to_thread(server.restart)
            await answer(fleet, *claims)
            assert (await waiting).ok


@pytest.mark.usefixtures("notifications_only")
async def test_what_ended_unnoticed_is_found_after_a_reconnect() -> None:
    with RedisServer(appendonly=True) as server:
        async with Client(server.url, patience_s=20) as fleet:
            handle = await fleet.enqueue(chat())
            waiting = asyncio.create_task(handle.result(timeout=30))
            await answer(fleet, *await take(fleet), quietly=True)
            await until_read(server)
            await asyncio.to_thread(server.restart)
            assert (await waiting).ok


@pytest.mark.usefixtures("notifications_only")
async def test_what_ended_unnoticed_while_nobody_waited_is_found_after_a_reconnect() -> None:
    with RedisServer(appendonly=True) as server:
        async with Client(server.url, patience_s=20) as fleet:
            first, second = await fleet.enqueue_many([{"body": chat()}, {"body": chat()}])
            with pytest.raises(ResultTimeout):
                await first.result(timeout=0.01)
            waiting = asyncio.create_task(second.result(timeout=30))
            await answer(fleet, *await take(fleet, 2), quietly=True)
            await until_read(server)
            await asyncio.to_thread(server.restart)
            assert (await waiting).ok, "so the client noticed the reconnect"
            assert (await first.result(timeout=10)).ok


@pytest.mark.usefixtures("notifications_only")
async def test_a_refusal_ends_the_waits_of_its_moment_only() -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as admin:
        async with Client(server.url) as fleet:
            first, second = await fleet.enqueue_many([{"body": chat()}, {"body": chat()}])
            claims = {claim.lease.request_id: claim for claim in await take(fleet, 2)}
            admin.execute_command("ACL", "SETUSER", "default", "-xread")
            with pytest.raises(NotPermitted):
                await first.result(timeout=10)
            admin.execute_command("ACL", "SETUSER", "default", "+xread")
            waiting = [asyncio.create_task(handle.result(timeout=10)) for handle in (first, second)]
            await answer(fleet, *claims.values())
            assert [result.id for result in await asyncio.gather(*waiting)] == [first.id, second.id]


async def test_a_refused_look_is_tried_again_by_the_next_wait() -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as admin:
        async with Client(server.url, notify=False) as fleet:
            handle = await fleet.enqueue(chat())
            await answer(fleet, *await take(fleet))
            admin.execute_command("ACL", "SETUSER", "default", "-hgetall")
            with pytest.raises(NotPermitted):
                await handle.result(timeout=10)
            admin.execute_command("ACL", "SETUSER", "default", "+hgetall")
            assert (await handle.result(timeout=10)).ok


async def test_looking_goes_on_after_its_task_died(fleet: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = await fleet.enqueue(chat())
    await answer(fleet, *await take(fleet), quietly=True)
    with monkeypatch.context() as broken:
        broken.setattr(Slots, "take_due", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            await fleet.result("stranger", timeout=10)
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.05)
    assert (await handle.result(timeout=10)).ok


async def test_a_handle_of_a_closed_client_says_so(redis_url: str) -> None:
    async with Client(redis_url) as fleet:
        handle = await fleet.enqueue(chat())
    for _ in range(2):
        with pytest.raises(ClientClosed, match=f"closed: ask an open one for result.'{handle.id}'"):
            await handle.result(timeout=10)


async def test_closing_ends_waits_and_leaves_no_reply_stream(redis_url: str, raw_redis: redis.asyncio.Redis) -> None:
    async with Client(redis_url) as fleet:
        first, second = await fleet.enqueue_many([{"body": chat()}, {"body": chat()}])
        claims = await take(fleet, 2)
        await answer(fleet, claims[0])
        assert (await first.result(timeout=10)).ok
        assert await raw_redis.keys("*reply*") == [f"{{default}}:reply:{fleet.mailbox.name}"]
        waiting = asyncio.create_task(second.result())
        await asyncio.wait({waiting}, timeout=0)
    with pytest.raises(ClientClosed, match="the request goes on"):
        await waiting
    assert await raw_redis.keys("*reply*") == []
    with pytest.raises(ClientClosed):
        await fleet.enqueue(chat())
    with pytest.raises(RuntimeError, match="not open"):
        await Client(redis_url).enqueue(chat())


# -- status and cancelling ----------------------------------------------------------------------------------------


async def test_status_from_start_to_end(fleet: Client) -> None:
    handle = await fleet.enqueue(chat(), lane="low")
    queued = await handle.status()
    assert (queued.state, queued.lane, queued.worker, queued.ended) == ("queued", Lane.LOW, None, False)
    claims = await take(fleet)
    running = await fleet.status(handle.id)
    assert (running.state, running.lane, running.worker, running.attempt) == ("running", Lane.LOW, "w1", 1)
    assert running.entry == handle.entry
    await answer(fleet, *claims)
    ended = await handle.status()
    assert (ended.state, ended.worker, ended.attempt, ended.ended) == ("succeeded", "w1", 1, True)
    assert (await fleet.status("never-heard-of")).state == "unknown"
    assert (await fleet.status("low:1-0")).state == "unknown"


async def test_status_of_an_entry_without_an_id(fleet: Client, raw_redis: redis.asyncio.Redis) -> None:
    await raw_redis.xadd("{default}:lane:high", {"body": "{}"})
    name = f"high:{(await entries(raw_redis, 'high'))[0][0]}"
    assert (await fleet.status(name)).state == "queued"


async def test_cancelling(fleet: Client) -> None:
    handle = await fleet.enqueue(chat())
    waiting = asyncio.create_task(handle.result(timeout=10))
    assert await handle.cancel()
    assert (await waiting).status is Status.CANCELLED
    assert await fleet.cancel(handle.id), "a second time comes to the same"
    done = await fleet.enqueue(chat())
    await answer(fleet, *await take(fleet))
    assert not await fleet.cancel(done.id)


# -- opening ------------------------------------------------------------------------------------------------------


async def test_without_redis_one_line_names_the_address() -> None:
    with pytest.raises(BrokerUnavailable) as raised:
        async with Client("redis://me:s3cret@127.0.0.1:1/0"):
            pytest.fail("nobody is there")
    assert "redis://127.0.0.1:1/0" in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_arguments_win_over_settings_and_those_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://env:1")
    monkeypatch.setenv("STREAMFLEET_QUEUE", "env")
    assert Client().settings.redis_url.get_secret_value() == "redis://env:1"
    settings = load(QueueSettings, redis_url="redis://settings:1", queue="settings", lane_limit=7)
    client = Client(settings=settings, queue="argument")
    assert client.settings.redis_url.get_secret_value() == "redis://settings:1"
    assert (client.settings.queue, client.settings.lane_limit) == ("argument", 7)
    assert Client("redis://argument:1").settings.redis_url.get_secret_value() == "redis://argument:1"
    with pytest.raises(SettingsError, match="STREAMFLEET_QUEUE"):
        Client(queue="a b")


# -- without await ------------------------------------------------------------------------------------------------


async def test_the_synchronous_client_from_several_threads(fleet: Client, redis_url: str) -> None:
    found: list[tuple[str, str]] = []
    with SyncClient(redis_url) as sync:

        def ask(number: int) -> None:
            handle = sync.enqueue(chat(), id=f"r-{number}", lane="high", deadline=timedelta(minutes=1))
            found.append((handle.id, handle.result(timeout=20).text))

        threads = [Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        await answer(fleet, *await take(fleet, 8))
        for thread in threads:
            await asyncio.to_thread(thread.join, 20)
    assert sorted(found) == [(f"r-{number}", "yes") for number in range(8)]


async def test_the_synchronous_client_has_the_same_names(fleet: Client, redis_url: str) -> None:
    settings = load(QueueSettings, redis_url=redis_url, lane_limit=3)

    def use(sync: SyncClient) -> None:
        handles = sync.enqueue_many([{"body": chat(), "id": f"r-{number}"} for number in range(3)])
        with pytest.raises(QueueFull) as raised:
            sync.enqueue_many([Ask(body=chat(), id="r-0"), Ask(body=chat())])
        assert [(handle.id, handle.existing) for handle in raised.value.accepted] == [("r-0", True)]
        assert isinstance(raised.value.accepted[0], SyncHandle)
        assert handles[0].status().state == sync.status("r-0").state == "queued"
        assert handles[0].cancel()
        assert sync.cancel("r-0")
        assert sync.result("r-0").status is Status.CANCELLED
        with pytest.raises(InvalidRequest):
            sync.enqueue({})
        with pytest.raises(TimeoutError):
            handles[1].result(timeout=0.01)

    sync = SyncClient(settings=settings)
    await asyncio.to_thread(use, sync)
    claims = await take(fleet, 2)
    await answer(fleet, *claims)
    handles = [SyncHandle(sync._client.handle(name), sync) for name in ("r-0", "r-1", "r-2")]
    results = await asyncio.to_thread(lambda: list(sync.as_completed(handles, timeout=10)))
    assert sorted(result.id for result in results) == ["r-0", "r-1", "r-2"]
    await asyncio.to_thread(sync.close)


def test_the_synchronous_client_without_redis() -> None:
    sync = SyncClient("redis://127.0.0.1:1/0")
    with pytest.raises(BrokerUnavailable):
        sync.enqueue(chat())
    with pytest.raises(BrokerUnavailable), sync:
        pytest.fail("nobody is there")
