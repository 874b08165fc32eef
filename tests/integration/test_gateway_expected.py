"""Place and expected time in the headers of an answer: for callers that ask, and no look at Redis for the others.

No worker runs, so nothing is answered, and the pace of the queue is what the test says.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.protocol import LANES
from streamfleet.producer import Client
from tests.broker import Broker
from tests.integration.gateway_here import gateway_here
from tests.integration.gateway_process import GatewayProcess, gateway_on
from tests.integration.worker_process import chat
from tests.support.redis_server import RedisServer

PATH, BODY = "/v1/chat/completions", chat(model="m")
ASKS = {"X-Streamfleet-Expected": "tell"}
TOLD = ("x-streamfleet-place", "x-streamfleet-expected-ms")
WAITING = 5


@dataclass
class Waiting:
    """A gateway and its queue, in which requests wait with deadlines in 30 s; ten a second are taken."""

    url: str
    gateway: GatewayProcess
    broker: Broker

    async def set_pace(self, left: int = 100) -> None:
        """Say how many requests were taken in the last ten seconds."""
        at = await self.broker.now_ms()
        lanes = [{"came": 0, "gone": 0, "who": {}, "spans": {}} for _ in LANES]
        pace = {"at": at, "took": 10_000, "left": left, "span": 10_000, "run": 10, "lanes": lanes}
        await self.broker.connection.command("SET", self.broker.keys.pace, json.dumps(pace))


@pytest.fixture(scope="module")
def gateway(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with gateway_on(server.url, folder, gateway_models="m=default", gateway_keys="off") as process:
        yield process


@pytest.fixture
async def waiting(server: RedisServer, gateway: GatewayProcess) -> AsyncIterator[Waiting]:
    async with Client(server.url) as client:
        broker = Broker.of(client.broker)
        await broker.connection.command("FLUSHALL")
        await broker.ensure_groups()
        for lane in ("normal", "low"):
            await client.enqueue_many([{"body": BODY, "lane": lane, "ttl_ms": 30_000}] * WAITING)
        await broker.pull("w1", 0)
        found = Waiting(server.url, gateway, broker)
        await found.set_pace()
        yield found


def told(answer: httpx.Response) -> list[int | None]:
    return [int(answer.headers[name]) if name in answer.headers else None for name in TOLD]


async def test_a_stream_tells_before_its_first_token_and_whoever_asks_again_too(waiting: Waiting) -> None:
    body, asks = BODY | {"stream": True}, ASKS | {"Idempotency-Key": "mine"}
    async with waiting.gateway.http(timeout_s=10) as http:
        async with http.stream("POST", PATH, json=body, headers=asks) as answer:
            place, expected_ms = told(answer)
            assert (answer.status_code, place) == (200, WAITING)
            assert 1000 <= 2 * (expected_ms or 0) <= 2000, "six at ten a second, less what lane low is guaranteed"
        name = answer.headers["x-streamfleet-id"]
        await waiting.broker.pull("w1", 0)
        await waiting.set_pace(left=50)
        async with http.stream("POST", PATH, json=body, headers=asks) as again:
            assert (again.headers["x-streamfleet-id"], told(again)[0]) == (name, WAITING)
        async with http.stream("GET", f"/v1/streams/{name}", headers=ASKS) as followed:
            assert told(followed) == told(again)


async def test_an_answer_that_is_no_stream_tells_too(waiting: Waiting) -> None:
    async with waiting.gateway.http() as http:
        answer = await http.post(PATH, json=BODY, headers=ASKS | {"X-Streamfleet-Ttl": "1ms"})
    assert (answer.status_code, told(answer)[0]) == (504, 0), "its deadline is the earliest"


async def test_another_value_is_refused(waiting: Waiting) -> None:
    async with waiting.gateway.http() as http:
        answer = await http.post(PATH, json=BODY, headers={"X-Streamfleet-Expected": "yes"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Streamfleet-Expected")


async def test_what_is_refused_tells_when_it_would_have_been_taken(waiting: Waiting) -> None:
    await waiting.set_pace(left=1)
    flex = {"service_tier": "flex"}
    async with waiting.gateway.http() as http:
        refused = await http.post(PATH, json=BODY | flex, headers={"X-Streamfleet-Ttl": "40s"})
    assert (refused.status_code, told(refused)[0]) == (429, None)
    assert (told(refused)[1] or 0) > 40_000


@pytest.mark.parametrize(
    ("headers", "body", "looks"), [({}, {}, 0), (ASKS, {}, 1), ({}, {"service_tier": "flex"}, 1)], ids=str
)
async def test_redis_is_asked_once_and_only_for_those_who_want_to_know(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], body: dict[str, Any], looks: int
) -> None:
    await waiting.set_pace(left=100_000)
    asked = []
    expected = ProducerBroker.expected

    async def counted(self: ProducerBroker, rows: Any) -> Any:
        asked.append(rows)
        return await expected(self, rows)

    monkeypatch.setattr(ProducerBroker, "expected", counted)
    async with gateway_here(waiting.url, keys="off", models="m=default") as http:
        answer = await http.post(PATH, json=BODY | body, headers=headers | {"X-Streamfleet-Ttl": "100ms"})
    assert answer.status_code == 504, "it was enqueued"
    assert len(asked) == looks
    assert [value is not None for value in told(answer)] == [bool(looks)] * 2
