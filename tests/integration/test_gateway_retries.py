"""Callers that leave before their answer, and whose SDK tries again: each request runs once, and each is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest
import redis.asyncio

from streamfleet.common.settings import QueueSettings, load
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway import edge, inference, left_tries
from streamfleet.gateway.app import build
from streamfleet.gateway.edge import Edge
from streamfleet.gateway.gateway import Gateway
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.engine.simulated import SimulatedEngine
from tests.integration.gateway_process import GatewayProcess, Stage, add_key, gateway_on, status_of
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import chat
from tests.unit.gateway_server import served
from tests.waiting import eventually

PATH = "/v1/chat/completions"
MESSAGES: list[Any] = [{"role": "user", "content": "Say hi"}]
COUNT = "X-Stainless-Retry-Count"


@pytest.fixture(scope="module")
def second(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Another gateway of the same fleet, as behind one load balancer."""
    with gateway_on(stage.url, tmp_path_factory.mktemp("second")) as process:
        yield process


async def requests_of(rows: redis.asyncio.Redis, key_id: str) -> list[str]:
    """Ids of all requests that an API key has enqueued."""
    found = [str(key).rpartition(":")[2] async for key in rows.scan_iter(f"{{default}}:request:{key_id}-*")]
    return sorted(found)


async def left(rows: redis.asyncio.Redis) -> int:
    """Number of requests that wait for a next try."""
    return sum([await rows.llen(key) async for key in rows.scan_iter("{gateway}/tries:*")])


async def cut(http: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> None:
    """Send a request, and leave before its answer."""
    asking = asyncio.create_task(http.post(PATH, json=body, headers={COUNT: "0", **headers}))
    await asyncio.sleep(0.3)
    assert not asking.done(), "the answer takes longer"
    asking.cancel()
    await asyncio.wait((asking,))


# -- retries -----------------------------------------------------------------------------------------------


async def test_of_equal_calls_each_left_one_is_taken_over_once(
    stage: Stage, second: GatewayProcess, rows: redis.asyncio.Redis
) -> None:
    """50 equal calls, half of them cut and sent again to another gateway: 50 runs, 50 answers."""
    secret, record = await add_key(stage.url, "fifty")
    async with stage.gateway.http(secret, 60) as http, second.http(secret, 60) as other:

        async def ask(number: int, tries: str) -> str:
            gateway = (http, other)[(number + int(tries)) % 4 // 2]
            answer = await gateway.post(PATH, json=chat(3, model="simulated"), headers={COUNT: tries})
            assert answer.status_code == 200, answer.text
            return answer.headers["x-streamfleet-id"]

        async def all_run() -> bool:
            return len(await requests_of(rows, record.id)) == 50

        async def all_left() -> bool:
            return await left(rows) == 25

        first = [asyncio.create_task(ask(number, "0")) for number in range(50)]
        await eventually(all_run, 10)
        for each in first[1::2]:
            assert each.cancel(), "the answer takes longer"
        await asyncio.wait(first[1::2])
        await eventually(all_left, 5)
        answered = await asyncio.gather(*first[::2], *(ask(number, "1") for number in range(1, 50, 2)))
    ran = await requests_of(rows, record.id)
    assert len(set(answered)) == 50, "each answer is that of a request of its own"
    assert sorted(answered) == ran
    assert {await status_of(stage.url, each) for each in ran} == {"succeeded"}
    assert await left(rows) == 0


async def test_openais_client_gets_the_answer_of_its_first_try_at_its_third(
    stage: Stage, rows: redis.asyncio.Redis
) -> None:
    """With its own time-out and retries: an answer that takes longer than a time-out comes, and was computed once."""
    secret, record = await add_key(stage.url, "sdk")
    async with openai.AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key=secret, timeout=1.0) as sdk:
        answer = await sdk.chat.completions.create(
            model="simulated", messages=MESSAGES, max_tokens=250, extra_body={"ignore_eos": True}
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 250
    (ran,) = await requests_of(rows, record.id)
    assert await status_of(stage.url, ran) == "succeeded"


async def test_what_is_no_try_of_the_same_request_takes_nothing_over(stage: Stage, rows: redis.asyncio.Redis) -> None:
    """Another key, body, endpoint or lane, or a first try."""
    secret, record = await add_key(stage.url, "left")
    other, _ = await add_key(stage.url, "other")
    body = chat(1, model="simulated", prompt="Say hi")
    async with stage.gateway.http(secret) as http, stage.gateway.http(other) as others:
        await cut(http, body)
        (first,) = await eventually(lambda: requests_of(rows, record.id), 5)
        await eventually(lambda: left(rows), 5)
        answers = await asyncio.gather(
            others.post(PATH, json=body, headers={COUNT: "1"}),
            http.post(PATH, json=body | {"temperature": 0}, headers={COUNT: "1"}),
            http.post("/v1/completions", json=body, headers={COUNT: "1"}),
            http.post(PATH, json=body, headers={COUNT: "1", "X-Streamfleet-Lane": "high"}),
            http.post(PATH, json=body, headers={COUNT: "0"}),
            http.post(PATH, json=body, headers={COUNT: "1", "Idempotency-Key": "mine"}),
        )
        assert {each.status_code for each in answers} == {200}
        assert first not in {each.headers["x-streamfleet-id"] for each in answers}
        taken = await http.post(PATH, json=body, headers={COUNT: "2"})
        assert taken.headers["x-streamfleet-id"] == first
        again = await http.post(PATH, json=body | {"max_tokens": 1}, headers={COUNT: "1"})
        assert again.headers["x-streamfleet-id"] != first


@pytest.mark.parametrize(
    "headers",
    [{}, {COUNT: "2"}, {COUNT: "many"}, {COUNT: "0", "X-Streamfleet-On-Disconnect": "cancel"}],
    ids=["no SDK", "its last try", "no number", "asks for it"],
)
async def test_who_does_not_try_again_cancels_at_once(
    stage: Stage, rows: redis.asyncio.Redis, request: pytest.FixtureRequest, headers: dict[str, str]
) -> None:
    secret, record = await add_key(stage.url, request.node.name)
    async with stage.gateway.http(secret) as http:
        asking = asyncio.create_task(http.post(PATH, json=chat(20, model="simulated"), headers=headers))
        (ran,) = await eventually(lambda: requests_of(rows, record.id), 5)
        asking.cancel()
        assert await eventually(lambda: status_of(stage.url, ran), 4) == "cancelled"


async def test_a_stream_that_has_begun_is_cancelled_at_once(stage: Stage) -> None:
    """SDKs do not try again once they have the headers of an answer."""
    secret, _ = await add_key(stage.url, "begun")
    body = chat(20, model="simulated", stream=True)
    async with stage.gateway.http(secret) as http:
        async with http.stream("POST", PATH, json=body, headers={COUNT: "0"}) as answer:
            ran = answer.headers["x-streamfleet-id"]
        assert await eventually(lambda: status_of(stage.url, ran), 4) == "cancelled"


# -- a gateway in the test's process -----------------------------------------------------------------------


class Steps:
    """A clock whose sleepers wake when the test says so."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []
        self._go = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asked_s.append(seconds)
        if seconds == left_tries.LEFT_S:
            await self._go.wait()

    def pass_all(self) -> None:
        self._go.set()


class Asked:
    """One HTTP request to a gateway in this process, that may be left; `sent` is all that came back, `cut` its end."""

    def __init__(self, gateway: Gateway, body: dict[str, Any], **headers: str) -> None:
        self.sent: list[dict[str, Any]] = []
        self.cut = False
        self._left = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        given = {"content-type": "application/json", "host": "gateway", **headers}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "root_path": "",
            "server": ("gateway", 80),
            "client": ("test", 1),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "state": {"abort": self._abort},
        }
        self.task = asyncio.create_task(Edge(build(gateway), 30.0)(scope, self._receive, self._send))

    def leave(self) -> None:
        self._left.set()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"]) if self.sent else 0

    @property
    def body(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.sent)

    @property
    def complete(self) -> bool:
        return any("body" in each and not each.get("more_body") for each in self.sent)

    @property
    def request_id(self) -> str:
        return str(dict(self.sent[0]["headers"])[b"x-streamfleet-id"].decode())

    def _abort(self) -> None:
        self.cut = True
        self._left.set()

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


@contextlib.asynccontextmanager
async def gateway_in(url: str, **settings: object) -> AsyncIterator[Gateway]:
    """A gateway without keys."""
    named = {"gateway_keys": "off", "gateway_models": "simulated=default", **settings}
    gateway = Gateway(load(QueueSettings, redis_url=url), load(GatewaySettings, **named))
    try:
        yield gateway
    finally:
        await gateway.close()


async def ids(rows: redis.asyncio.Redis) -> list[str]:
    """Ids of all requests."""
    return [str(key).rpartition(":")[2] async for key in rows.scan_iter("{default}:request:*")]


async def test_a_left_try_is_cancelled_after_ten_seconds(redis_url: str, raw_redis: redis.asyncio.Redis) -> None:
    """By no earlier sleep than that of 10 s, and not if it was taken over meanwhile."""
    clock: Any = Steps()
    async with gateway_in(redis_url) as gateway:
        gateway.left_tries._clock = clock
        asked = [Asked(gateway, chat(1, model="simulated"), **{COUNT: "0"}) for _ in range(2)]
        await eventually(lambda: has_ids(raw_redis, 2), 5)
        for each in asked:
            each.leave()
        await eventually(lambda: has_left(raw_redis, 2), 5)
        assert clock.asked_s == [10.0, 10.0]
        again = Asked(gateway, chat(1, model="simulated"), **{COUNT: "1"})
        await eventually(lambda: has_left(raw_redis, 1), 5)
        assert [await status_of(redis_url, each) for each in await ids(raw_redis)] == ["", ""]
        clock.pass_all()

        async def one_is_cancelled() -> bool:
            found = [await status_of(redis_url, each) for each in await ids(raw_redis)]
            return sorted(found) == ["", "cancelled"]

        await eventually(one_is_cancelled, 5)
        assert not again.task.done()
        async with worker_inside(redis_url, small_engine(speed=100)):
            await asyncio.wait_for(again.task, 20)
        assert again.status == 200
        assert len(await ids(raw_redis)) == 2


async def test_a_gateway_that_stops_cancels_what_was_left(redis_url: str, raw_redis: redis.asyncio.Redis) -> None:
    async with gateway_in(redis_url) as gateway:
        asked = Asked(gateway, chat(1, model="simulated"), **{COUNT: "0"})
        await eventually(lambda: has_ids(raw_redis, 1), 5)
        asked.leave()
        await eventually(lambda: has_left(raw_redis, 1), 5)
    (ran,) = await ids(raw_redis)
    assert await status_of(redis_url, ran) == "cancelled"
    assert await left(raw_redis) == 0


async def test_a_stream_that_was_left_before_its_headers_is_taken_over(
    redis_url: str, raw_redis: redis.asyncio.Redis
) -> None:
    body = chat(0.1, model="simulated", stream=True)
    async with gateway_in(redis_url) as gateway:
        asked = Asked(gateway, body, **{COUNT: "0"})
        await eventually(lambda: has_ids(raw_redis, 1), 5)
        asked.leave()
        await eventually(lambda: has_left(raw_redis, 1), 5)
        again = Asked(gateway, body, **{COUNT: "1"})
        async with worker_inside(redis_url, small_engine(speed=100)):
            await asyncio.wait_for(again.task, 20)
        assert [again.request_id] == await ids(raw_redis)
    assert again.body.endswith(b"data: [DONE]\n\n")


async def test_a_tenant_leaves_so_many_at_most(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests beyond are cancelled at once, and a tenant's leave others theirs."""
    monkeypatch.setattr(left_tries, "MOST_LEFT", 2)
    cancelled: list[str] = []
    async with gateway_in(redis_url) as gateway:
        tries = gateway.left_tries

        def leave(tenant: str, name: str) -> None:
            async def cancel() -> None:
                cancelled.append(name)

            gateway.run_in_background(tries.keep(tenant, tenant, name, cancel), "keep it for a next try")

        for name in ("a1", "a2", "a3", "b1"):
            leave(name[0], name)
        await eventually(lambda: cancelled == ["a3"], 5)
        assert await tries.take("b") == "b1"
    assert sorted(cancelled) == ["a1", "a2", "a3"], "the rest of them when the process stopped"
    assert not tries._kept


async def has_ids(rows: redis.asyncio.Redis, many: int) -> bool:
    return len(await ids(rows)) == many


async def has_left(rows: redis.asyncio.Redis, many: int) -> bool:
    return await left(rows) == many


# -- white space before JSON -------------------------------------------------------------------------------


class Held(SimulatedEngine):
    """Runs what comes once `go` is set; answers an error if `fails`."""

    def __init__(self) -> None:
        super().__init__(small_engine()._profile, speed=100)
        self.go, self.fails, self.entered = asyncio.Event(), False, 0

    async def run(self, request: EngineRequest) -> EngineReply:
        self.entered += 1
        await self.go.wait()
        if self.fails:
            return EngineReply(400, b'{"error": {"message": "it failed in the end", "type": "BadRequestError"}}')
        return await super().run(request)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Looks every 50 ms in place of 10 s; True for each after which there was white space."""
    seen: list[bool] = []
    look = inference.EarlySpace._look

    async def counted(self: Any, send: Any) -> None:
        await look(self, send)
        seen.append(self._begun)

    monkeypatch.setattr(inference, "LOOK_S", 0.05)
    monkeypatch.setattr(inference.EarlySpace, "_look", counted)
    return seen


async def test_white_space_begins_after_50_s_if_a_worker_runs_the_request(redis_url: str, looks: list[bool]) -> None:
    assert inference.LOOKS * 10.0 == 50
    async with gateway_in(redis_url, gateway_early_space="on") as gateway:
        engine = Held()
        async with worker_inside(redis_url, engine):
            asked = Asked(gateway, chat(0.1, model="simulated", service_tier="auto"))
            await eventually(lambda: engine.entered and asked.body, 10)
            await eventually(lambda: len(asked.body) >= 3, 10, "one at each further look")
            assert looks[:6] == [False, False, False, False, True, True]
            engine.go.set()
            await asyncio.wait_for(asked.task, 20)
    assert (asked.status, asked.complete, asked.cut) == (200, True, False)
    answer = json.loads(asked.body)
    assert answer["choices"][0]["message"]["content"]
    assert answer["service_tier"] == "default"
    assert b"content-length" not in dict(asked.sent[0]["headers"])


async def test_openais_client_reads_white_space_before_json(
    redis_url: str, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a real connection; large answers too, which are sent in pieces."""
    monkeypatch.setattr(edge, "SMALL_ANSWER_BYTES", 1_000)
    engine = Held()
    async with (
        gateway_in(redis_url, gateway_early_space="on") as gateway,
        worker_inside(redis_url, engine),
        served(build(gateway)) as (host, port),
        openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0) as sdk,
    ):
        asked = [
            asyncio.create_task(
                sdk.chat.completions.create(
                    model="simulated", messages=MESSAGES, max_tokens=most, extra_body={"ignore_eos": True}
                )
            )
            for most in (10, 2_000)
        ]
        await eventually(lambda: looks.count(True) >= 4, 10)
        engine.go.set()
        small, large = await asyncio.wait_for(asyncio.gather(*asked), 30)
    assert small.choices[0].message.content
    assert large.usage is not None
    assert large.usage.completion_tokens == 2_000
    assert len(large.model_dump_json()) > 3_000


@pytest.mark.parametrize("on", ["off", "on"])
async def test_what_waits_keeps_its_status(redis_url: str, looks: list[bool], on: str) -> None:
    """No worker has it yet: it may still be refused, and expire. Nor is there white space where it is off."""
    async with gateway_in(redis_url, gateway_early_space=on) as gateway:
        asked = Asked(gateway, chat(0.1, model="simulated"))
        if on == "on":
            await eventually(lambda: len(looks) > 8, 10)
        assert not asked.sent
        engine = Held()
        engine.fails = True
        async with worker_inside(redis_url, engine):
            engine.go.set()
            await asyncio.wait_for(asked.task, 20)
    assert (asked.status, asked.complete) == (400, True)
    assert asked.body.startswith(b'{"error"')


async def test_what_fails_after_white_space_is_no_answer(redis_url: str, looks: list[bool]) -> None:
    """The connection is cut: nobody takes an error for an answer. The same name then gets the error by its status."""
    body, name = chat(0.1, model="simulated"), {"Idempotency-Key": "mine"}
    async with gateway_in(redis_url, gateway_early_space="on") as gateway:
        engine = Held()
        engine.fails = True
        async with worker_inside(redis_url, engine):
            asked = Asked(gateway, body, **name)
            await eventually(lambda: asked.body, 10)
            engine.go.set()
            await asyncio.wait_for(asked.task, 20)
            again = Asked(gateway, body, **name)
            await asyncio.wait_for(again.task, 20)
    assert (asked.status, asked.body.strip(), asked.complete, asked.cut) == (200, b"", False, True)
    assert again.status == 400


async def test_who_leaves_during_white_space_leaves_a_try(
    redis_url: str, raw_redis: redis.asyncio.Redis, looks: list[bool]
) -> None:
    body = chat(0.1, model="simulated")
    async with gateway_in(redis_url, gateway_early_space="on") as gateway:
        engine = Held()
        async with worker_inside(redis_url, engine):
            asked = Asked(gateway, body, **{COUNT: "0"})
            await eventually(lambda: asked.body, 10)
            asked.leave()
            await asyncio.wait_for(asked.task, 10)
            await eventually(lambda: has_left(raw_redis, 1), 5)
            engine.go.set()
            again = Asked(gateway, body, **{COUNT: "1"})
            await asyncio.wait_for(again.task, 20)
    assert again.status == 200
    assert again.request_id == asked.request_id
