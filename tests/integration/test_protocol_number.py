"""The number of the queue's protocol: written by the first worker, known or refused by everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from streamfleet.common.errors import BrokerUnavailable, UnknownProtocol
from streamfleet.common.queue_configuration import PROTOCOL, PROTOCOLS
from streamfleet.common.settings import QueueSettings, WorkerSettings, load
from streamfleet.producer.client import Client
from streamfleet.producer.sync import SyncClient
from streamfleet.worker.worker import Worker
from tests.integration.gateway_here import gateway_here
from tests.integration.test_queue_configuration import told
from tests.integration.worker_in_process import small_engine
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

pytestmark = pytest.mark.kill
META = "{default}:meta"
OURS, FOREIGN = str(PROTOCOLS[-1]), "7"
REFUSED = f"queue default has protocol '{FOREIGN}', and this version of streamfleet knows {OURS}: use a version"
PATH = "/v1/chat/completions"


async def number(fleet: Fleet) -> str | None:
    found: str | None = await fleet.redis.hget(META, PROTOCOL)
    return found


async def test_the_first_worker_writes_it_and_writes_it_again_where_redis_lost_it(fleet: Fleet) -> None:
    early = await fleet.add()
    assert await number(fleet) is None, "a plain XADD has nothing to do with it"
    await asyncio.gather(*(fleet.start(name).ready() for name in ("w1", "w2")))
    assert await number(fleet) == OURS
    assert (await fleet.result(early)).ok
    await fleet.redis.flushall()

    async def written() -> bool:
        return await number(fleet) == OURS

    await eventually(written, 10, "a heartbeat finds that it is missing")
    assert (await fleet.result(await fleet.add())).ok


async def test_of_two_first_workers_the_later_one_learns_the_number_of_the_other(fleet: Fleet) -> None:
    assert await fleet.broker.configuration() == {}
    await fleet.redis.hset(META, PROTOCOL, FOREIGN)
    with pytest.raises(UnknownProtocol, match=REFUSED):
        await fleet.broker.agree()
    assert await number(fleet) == FOREIGN


@pytest.mark.parametrize("foreign", [FOREIGN, "01", ""])
async def test_a_worker_does_not_start_on_a_protocol_that_it_does_not_know(fleet: Fleet, foreign: str) -> None:
    await fleet.redis.hset(META, PROTOCOL, foreign)
    worker = fleet.start("w1")
    assert await worker.ended(30) == 2
    said = [line for line in worker.printed().splitlines() if "has protocol" in line]
    assert len(said) == 1, worker.printed()
    assert f"queue default has protocol '{foreign}'" in said[0]
    assert await fleet.redis.keys() == [META], "it has written nothing"
    assert await fleet.redis.hgetall(META) == {PROTOCOL: foreign}


async def test_a_worker_does_not_start_before_it_has_read_the_number(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker("w1", load(QueueSettings, redis_url=redis_url), small_engine(), load(WorkerSettings))

    async def away() -> dict[str, str]:
        raise BrokerUnavailable("Redis is away")

    monkeypatch.setattr(worker._broker, "configuration", away)
    with pytest.raises(BrokerUnavailable, match="Redis is away"):
        await worker.run()


async def test_a_running_worker_stops_when_the_number_is_another(fleet: Fleet) -> None:
    """It hands back what it runs, the attempt counted, and takes nothing more."""
    worker = await fleet.worker("w1")
    running = await fleet.add(body=chat(1.0))
    await fleet.runs({"w1": 1})
    await fleet.redis.hset(META, PROTOCOL, FOREIGN)
    assert await worker.ended(20) == 2
    (event,) = worker.events("redis_refuses")
    assert event["loop"] == "protocol"
    assert event["reason"].startswith(REFUSED)
    waiting = await fleet.add()
    assert await fleet.broker.workers() == {}
    await fleet.redis.hset(META, PROTOCOL, OURS)
    await fleet.worker("w2")
    assert [result.attempt for result in await fleet.results([running, waiting])] == [2, 1]
    await fleet.settled()


async def test_clients_go_on_without_a_number_and_refuse_another(fleet: Fleet) -> None:
    async with Client(fleet.url) as client:
        handle = await client.enqueue(chat())
        await fleet.worker("w1")
        assert (await handle.result(10)).ok
        await fleet.redis.hset(META, PROTOCOL, FOREIGN)
        await refuses(lambda: client.enqueue(chat()))
        with pytest.raises(UnknownProtocol, match=REFUSED):
            await client.enqueue_many([{"body": chat()}])
        with pytest.raises(UnknownProtocol, match=REFUSED):
            async with Client(fleet.url):
                pass
        await fleet.redis.hset(META, PROTOCOL, OURS)

        async def serves() -> bool:
            try:
                return bool(await client.enqueue(chat()))
            except UnknownProtocol:
                return False

        await eventually(serves, 5, "it looks again within a second")


async def refuses(enqueue: Callable[[], Any]) -> None:
    """Wait until a client has looked again."""

    async def refused() -> bool:
        try:
            await enqueue()
        except UnknownProtocol:
            return True
        return False

    await eventually(refused, 5, "it looks again within a second")


async def test_the_blocking_client_and_commands_refuse_another_number(fleet: Fleet) -> None:
    def ask() -> None:
        with SyncClient(fleet.url):
            pass

    await asyncio.to_thread(ask)
    await fleet.redis.hset(META, PROTOCOL, FOREIGN)
    with pytest.raises(UnknownProtocol, match=REFUSED):
        await asyncio.to_thread(ask)
    for words in (("enqueue", "--prompt", "hi"), ("backlog",), ("queue", "set", "max_deliveries=3")):
        ended = await told(fleet, *words)
        assert (ended.returncode, ended.stdout) == (2, ""), ended
        (line,) = ended.stderr.splitlines()
        assert REFUSED in line
    assert await fleet.redis.keys() == [META]


async def test_doctor_tells_the_number(fleet: Fleet) -> None:
    await fleet.worker("w1")
    ended = await told(fleet, "doctor")
    assert f"1 workers follow it; protocol {OURS}" in ended.stdout
    await fleet.redis.hset(META, PROTOCOL, FOREIGN)
    ended = await told(fleet, "doctor")
    assert ended.returncode == 1
    assert REFUSED in " ".join(ended.stdout.split())


async def test_a_gateway_is_unready_and_answers_503_on_another_number(fleet: Fleet) -> None:
    await fleet.worker("w1")
    async with gateway_here(fleet.url, keys="off") as http:
        asked = chat(model="simulated")
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.post(PATH, json=asked)).status_code == 200
        await fleet.redis.hset(META, PROTOCOL, FOREIGN)

        async def unready() -> bool:
            return (await http.get("/readyz")).status_code == 503

        await eventually(unready, 5, "it looks again within a second")
        assert (await http.get("/readyz")).text.startswith(REFUSED)
        answer = await http.post(PATH, json=asked)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"]["code"] == "queue_unavailable"
        assert "does not know its queue's protocol" in answer.json()["error"]["message"]
    async with gateway_here(fleet.url, keys="off") as http:
        assert (await http.get("/readyz")).text.startswith(REFUSED), "also one that starts now"
        assert (await http.post(PATH, json=asked)).status_code == 503
        await fleet.redis.hset(META, PROTOCOL, OURS)
        assert (await http.get("/readyz")).text == "ok\n"


async def test_a_gateway_of_several_queues_is_unready_on_another_number_in_any_of_them(fleet: Fleet) -> None:
    async with gateway_here(fleet.url, keys="off", models="one=first,two=second,three=third") as http:
        assert (await http.get("/readyz")).text == "ok\n"
    for queue in ("first", "second", "third"):
        await fleet.redis.hset(f"{{{queue}}}:meta", PROTOCOL, FOREIGN)
        async with gateway_here(fleet.url, keys="off", models="one=first,two=second,three=third") as http:
            ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert ready.text.startswith(f"queue {queue} has protocol '{FOREIGN}'")
        await fleet.redis.delete(f"{{{queue}}}:meta")
