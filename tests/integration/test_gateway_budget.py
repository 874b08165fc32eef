"""Token budget of API keys: each request is charged once, by what it used, whoever leaves, asks again or dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfleet.common.broker.types import Claim, CompleteCode, Completion
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Status
from streamfleet.common.settings import QueueSettings, load
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.app import build
from streamfleet.gateway.edge import Edge
from streamfleet.gateway.gateway import Gateway
from streamfleet.worker.engine import asgi
from streamfleet.worker.engine.openai import OpenAIEngine, Upstream
from tests.broker import Broker
from tests.integration.gateway_process import GatewayProcess, add_key, gateway_on
from tests.integration.http_engine import ANSWER, HttpEngine, Reply
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import chat
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

PATH = "/v1/chat/completions"
LIMIT = 8_100
MOST = 8_000
SPEED = 15.0
"""1,500 tokens a second, of which 135 fill up again."""
LONG = chat(model="simulated", max_tokens=MOST)


@pytest.fixture(scope="module")
def gateway(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_on(
        server.url, tmp_path_factory.mktemp("gateway"), gateway_models="simulated=default,test-model=default"
    ) as process:
        yield process


class Account:
    """One API key's tokens.

    Args:
        rows: Redis.
        key: the secret.
        key_id: its id.
    """

    def __init__(self, rows: redis.asyncio.Redis, key: str, key_id: str) -> None:
        self.rows, self.key, self.id = rows, key, key_id
        self._began_s = time.monotonic()

    async def charged(self, used: int) -> None:
        """Check that so many tokens were charged, and nothing is reserved any more."""

        async def nothing_reserved() -> bool:
            return not await self.rows.exists("{gateway}/reservations")

        await eventually(nothing_reserved, 20, "all reservations are settled")
        left = float(await self.rows.hget(f"{{gateway}}/left:{self.id}", "tokens") or LIMIT)
        filled = LIMIT * (time.monotonic() - self._began_s) / 60
        assert LIMIT - used - 1 <= left <= LIMIT - used + filled

    async def spent(self) -> int:
        """Tokens that the only request of this key, a named one, was charged. Gateways look for its end at once."""

        async def settled() -> Any:
            names: Any = await self.rows.zrange("{gateway}/reservations", 0, -1)
            for name in names:
                await self.rows.zadd("{gateway}/reservations", {name: 0}, xx=True)
            (name,) = [name async for name in self.rows.scan_iter(f"{{gateway}}/reserved:default/{self.id}-*")]
            return await self.rows.hget(name, "used")

        return int(await eventually(settled, 20, "it is settled"))

    async def requests(self) -> list[str]:
        """Ids of all requests of this key."""
        return [key.partition("request:")[2] async for key in self.rows.scan_iter(f"{{default}}:request:{self.id}-*")]

    async def used(self, request_id: str) -> int:
        """Tokens that a request used, by its result."""
        usage = await self.rows.hget(f"{{default}}:result:{request_id}", "usage")
        assert usage, await self.rows.hgetall(f"{{default}}:result:{request_id}")
        return int(json.loads(usage)["total_tokens"])

    async def left_engine(self, request_id: str) -> None:
        """Wait until a cancelled request has left its engine."""

        async def gone() -> bool:
            return bool(await self.rows.hexists(f"{{default}}:result:{request_id}", "entry"))

        await eventually(gone, 20, "it has left its engine")


@pytest.fixture
async def account(server: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Account]:
    key, record = await add_key(server.url, request.node.name, limits=(None, LIMIT))
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as rows:
        yield Account(rows, key, record.id)


@pytest.fixture
async def worker(server: RedisServer) -> AsyncIterator[None]:
    async with worker_inside(server.url, small_engine(speed=SPEED)):
        yield


async def leave_early(http: httpx.AsyncClient, body: dict[str, Any], chunks: int, **headers: str) -> str:
    """Read so many chunks of a stream, and leave. Returns the request's id."""
    async with http.stream("POST", PATH, json={**body, "stream": True}, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            chunks -= line.startswith("data:")
            if not chunks:
                break
    return str(answer.headers["x-streamfleet-id"])


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("most", [MOST, None])
async def test_a_stream_closed_early_is_charged_for_what_was_generated(
    gateway: GatewayProcess, account: Account, most: int | None
) -> None:
    """Six streams, each closed after 800 tokens, cost nothing where 500 tokens a minute were allowed."""
    async with gateway.http(account.key) as http:
        request_id = await leave_early(http, {**LONG, "max_tokens": most}, 20)
    await account.left_engine(request_id)
    used = await account.used(request_id)
    assert 20 <= used < MOST, "it was cancelled midway"
    await account.charged(used)


@pytest.mark.usefixtures("worker")
async def test_an_answer_that_nobody_waits_for_is_charged_for_what_was_generated(
    gateway: GatewayProcess, account: Account
) -> None:
    async with gateway.http(account.key) as http:
        waiting = asyncio.create_task(http.post(PATH, json=LONG))

        async def runs() -> bool:
            pending = await account.rows.xpending_range("{default}:lane:normal", "workers", "-", "+", 9)
            return any(row["consumer"] == "w1" for row in pending)

        await eventually(runs, 20, "it runs")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    async def cancelled() -> list[str]:
        return [name async for name in account.rows.scan_iter(f"{{default}}:result:{account.id}-*")]

    await eventually(cancelled, 20, "it is cancelled")
    request_id = (await cancelled())[0].partition("result:")[2]
    await account.left_engine(request_id)
    used = await account.used(request_id)
    assert used < MOST
    await account.charged(used)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("ended", [False, True], ids=["runs", "ended and settled"])
async def test_what_an_sdk_sends_again_is_charged_once(gateway: GatewayProcess, account: Account, ended: bool) -> None:
    body, tries = {**LONG, "max_tokens": 2_000}, "X-Stainless-Retry-Count"

    async def left() -> list[str]:
        return [key async for key in account.rows.scan_iter(f"{{gateway}}/tries:{account.id}/*")]

    async with gateway.http(account.key) as http:
        first = asyncio.create_task(http.post(PATH, json=body, headers={tries: "0"}))
        (known,) = await eventually(account.requests, 5)
        first.cancel()
        await eventually(left, 5, "its caller has left")
        if ended:
            await account.left_engine(known)
            await account.rows.zadd("{gateway}/reservations", {f"default/{known}": 0})
            await account.charged(await account.used(known))
        answer = await http.post(PATH, json=body, headers={tries: "1"})
    assert answer.headers["x-streamfleet-id"] == known
    assert answer.json()["usage"]["total_tokens"] == await account.used(known)
    await account.charged(await account.used(known))
    assert await account.requests() == [known]


@pytest.mark.usefixtures("worker")
async def test_a_named_request_is_charged_once_however_often_it_is_sent(
    gateway: GatewayProcess, account: Account
) -> None:
    body = {**LONG, "max_tokens": 3_000}
    headers = {"Idempotency-Key": "mine", "X-Streamfleet-On-Disconnect": "continue"}
    async with gateway.http(account.key) as http:
        request_id = await leave_early(http, body, 50, **headers)
        answer = await http.post(PATH, json=body, headers=headers)
        assert answer.headers["x-streamfleet-id"] == request_id
        used = answer.json()["usage"]["total_tokens"]
        await account.charged(used)
        await http.post(PATH, json=body, headers=headers)
        await account.charged(used)


@pytest.mark.usefixtures("worker")
async def test_what_goes_on_when_its_caller_leaves_is_charged_by_any_gateway(
    server: RedisServer, gateway: GatewayProcess, account: Account, tmp_path_factory: pytest.TempPathFactory
) -> None:
    headers = {"X-Streamfleet-On-Disconnect": "continue"}
    with gateway_on(server.url, tmp_path_factory.mktemp("dies"), gateway_models="simulated=default") as dies:
        async with dies.http(account.key) as http:
            request_id = await leave_early(http, {**LONG, "max_tokens": 3_000}, 10, **headers)
        dies.process.kill()
    await account.left_engine(request_id)
    await account.rows.zadd("{gateway}/reservations", {f"default/{request_id}": 0})  # half a minute later
    used = await account.used(request_id)
    assert used > 3_000
    await account.charged(used)
    assert gateway.alive


@pytest.mark.usefixtures("worker")
async def test_prompts_that_nobody_waits_for_are_charged(gateway: GatewayProcess, account: Account) -> None:
    ask: dict[str, Any] = {"prompts": ["a", "b", "c"], "max_tokens": 2_500, "ignore_eos": True, "model": "simulated"}
    async with gateway.http(account.key) as http:
        with contextlib.suppress(httpx.ReadTimeout):
            await http.post("/v1/batch/sync", json=ask, timeout=httpx.Timeout(20, read=0.5))

    async def cancelled() -> list[str]:
        return [name async for name in account.rows.scan_iter(f"{{default}}:result:{account.id}-sync-*")]

    async def all_cancelled() -> bool:
        return len(await cancelled()) == len(ask["prompts"])

    await eventually(all_cancelled, 20, "all are cancelled")
    used = 0
    for name in await cancelled():
        request_id = name.partition("result:")[2]
        await account.left_engine(request_id)
        used += await account.used(request_id)
    assert used < 7_500
    await account.charged(used)


COUNTED_BY_NOBODY = {name: value for name, value in ANSWER.items() if name != "usage"}
HANGS = Reply(after_s=60)
FAILS = Reply(501, {"error": {"message": "CUDA error", "type": "server_error"}})
PROMPT = 25
"""Most tokens of the prompts here, by their bodies' bytes."""


@pytest.mark.parametrize(
    ("reply", "status", "limit", "swept"),
    [
        (Reply(body=COUNTED_BY_NOBODY), 200, {}, False),
        (Reply(body=COUNTED_BY_NOBODY), 200, {"max_tokens": 700}, True),
        (HANGS, 504, {"max_tokens": 700}, False),
        (HANGS, 504, {}, True),
        (FAILS, 501, {}, False),
        (FAILS, 501, {"max_tokens": 700}, True),
    ],
    ids=["ok", "ok, swept", "hangs", "hangs, swept", "fails", "fails, swept"],
)
async def test_a_run_that_nobody_counts_is_neither_free_nor_takes_all(
    server: RedisServer,
    gateway: GatewayProcess,
    account: Account,
    reply: Reply,
    status: int,
    limit: dict[str, Any],
    swept: bool,
) -> None:
    """By the gateway that answers it, and by the one that looks for what others left."""
    body = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}], **limit}
    headers = {
        "X-Streamfleet-Ttl": "1500ms" if status == 504 else "30s",
        "X-Streamfleet-On-Disconnect": "continue",
        "Idempotency-Key": "one",
    }
    least = 0 if status == 501 else limit.get("max_tokens") or 256
    async with (
        HttpEngine(lambda _id, _n: replace(reply, after_s=reply.after_s or float(swept))).serving() as engine,
        worker_inside(server.url, OpenAIEngine(Upstream(engine.url))),
        gateway.http(account.key) as http,
    ):
        if swept:
            with contextlib.suppress(httpx.ReadTimeout):
                await http.post(PATH, json=body, headers=headers, timeout=httpx.Timeout(20, read=0.5))
        else:
            assert (await http.post(PATH, json=body, headers=headers)).status_code == status
        assert least <= await account.spent() <= least + PROMPT


# -- any interleaving --------------------------------------------------------------------------------------

MUCH = 1_000_000
NOW = 1_790_000_000_000
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("die"), st.integers(0, 1)),
        st.tuples(st.just("pull")),
        st.tuples(st.just("end"), st.integers(0, 5), st.integers(1, 999)),
        st.tuples(st.just("sweep"), st.integers(0, 1)),
        st.tuples(st.just("expire"), st.integers(0, 1)),
    ),
    min_size=3,
    max_size=25,
)


class Play:
    """Two gateways, two named requests, a worker that does as it is told; the gateways' clock stands still.

    Attributes:
        used: tokens of all runs, as the worker reported them.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._rows = redis.asyncio.Redis.from_url(url, decode_responses=True)
        self._queue = Broker(Connection(url), Keys("default"))
        self._gateways = [self._open(), self._open()]
        self._sent: list[tuple[int, asyncio.Task[asgi.Response]]] = []
        self._held: list[Claim] = []
        self._key = self._key_id = ""
        self.used = 0

    async def begin(self) -> None:
        """Nothing has happened yet."""
        await self._rows.flushall()
        self._key, record = await add_key(self._url, "any", limits=(None, MUCH))
        self._key_id, self.used = record.id, 0
        await self._queue.ensure_groups()

    async def charged(self) -> float:
        """Tokens that the key was charged for."""
        return MUCH - float(await self._rows.hget(f"{{gateway}}/left:{self._key_id}", "tokens") or MUCH)

    async def close(self) -> None:
        for gateway, _ in self._gateways:
            await gateway.close()
        await self._queue.close()
        await self._rows.aclose()

    async def send(self, name: int, at: int, stays: bool) -> None:
        headers = {
            "Host": "gateway",
            "Authorization": f"Bearer {self._key}",
            "Idempotency-Key": f"{name}",
            "X-Streamfleet-On-Disconnect": "continue" if stays else "cancel",
        }
        task = asyncio.create_task(asgi.post(self._gateways[at][1], PATH, headers, json.dumps(LONG).encode()))
        self._sent.append((at, task))
        await asyncio.wait((task,), timeout=0.02)  # as far as it comes: any moment is a good one for what follows

    async def leave(self, number: int) -> None:
        if self._sent:
            await _end(self._sent.pop(number % len(self._sent))[1])

    async def die(self, at: int) -> None:
        """All of a gateway's requests are gone at once, and what it would have done for them."""
        gateway: Any = self._gateways[at][0]
        original, gateway.run_in_background = gateway.run_in_background, lambda work, _: work.close()
        for owner, task in self._sent:
            if owner == at:
                await _end(task)
        gateway.run_in_background = original
        self._sent = [(owner, task) for owner, task in self._sent if owner != at]

    async def pull(self) -> None:
        self._held += (await self._queue.pull("w", 1)).claims

    async def end(self, number: int, tokens: int) -> None:
        """A run ends: answered, or stopped because it was cancelled."""
        if not self._held:
            return
        claim = self._held.pop(number % len(self._held))
        usage = json.dumps({"total_tokens": tokens})
        fields: dict[str, bytes | str | int] = {
            "response": b"{}", "http_status": 200, "usage": usage, "waited_ms": "1.0",
        }  # fmt: skip
        (code,) = await self._queue.complete("w", [Completion(claim.lease, Status.SUCCEEDED, fields, claim.reply)])
        assert code in (CompleteCode.PUBLISHED, CompleteCode.ENDED_BEFORE)
        self.used += tokens
        if self._sent:
            await asyncio.wait([task for _, task in self._sent], timeout=0.02)

    async def sweep(self, at: int) -> None:
        """Half a minute later, a gateway looks at all reservations."""
        for name in await self._reservations():
            await self._rows.zadd("{gateway}/reservations", {name: 0})
        await self._gateways[at][0].budget.sweep()

    async def expire(self, name: int) -> None:
        """A result's time is over, and its record's: long after it was settled, and after everybody has left."""
        for _, task in self._sent:
            await _end(task)
        self._sent.clear()
        await self._finish_background_tasks()
        for gateway, _ in self._gateways:  # they remember a result for as long as somebody holds its request's handle
            mailbox: Any = (await gateway.queues.client("default")).mailbox
            mailbox._slots._known.clear()
        await self.sweep(0)
        async for key in self._rows.scan_iter("{default}:reply:*"):  # they live as long
            await self._rows.delete(key)
        async for key in self._rows.scan_iter("{default}:result:*"):
            request_id = str(key).partition("result:")[2]
            settled = not await self._rows.zscore("{gateway}/reservations", f"default/{request_id}")
            if settled and await self._rows.hexists(key, "entry") and sum(request_id.encode()) % 2 == name:
                await self._rows.delete(key, f"{{default}}:request:{request_id}")

    async def over(self) -> None:
        """Everybody has left, and everything ends."""
        for _, task in self._sent:
            await _end(task)
        self._sent.clear()
        await self._finish_background_tasks()
        await self.pull()
        while self._held:
            await self.end(0, 7)
            await self.pull()
        await eventually(self._settled, 10, "everything is settled")

    async def _settled(self) -> bool:
        for name in await self._reservations():
            await self._rows.hset(f"{{gateway}}/reserved:{name}", "sent_ms", "1")  # long ago
        await self.sweep(0)
        return await self._reservations() == []

    async def _finish_background_tasks(self) -> None:
        for gateway, _ in self._gateways:
            if gateway._background_tasks:
                await asyncio.wait(gateway._background_tasks)

    async def _reservations(self) -> list[str]:
        return [str(name) for name in await self._rows.zrange("{gateway}/reservations", 0, -1)]

    def _open(self) -> tuple[Gateway, asgi.Application]:
        gateway = Gateway(
            load(QueueSettings, redis_url=self._url), load(GatewaySettings, gateway_models="simulated=default")
        )
        broker: Any = gateway._broker
        broker._now_ms = lambda: NOW
        app: Any = Edge(build(gateway), 30.0)
        return gateway, app


async def _end(task: asyncio.Task[asgi.Response]) -> None:
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.timeout(240)
def test_each_request_is_charged_once_over_any_interleaving() -> None:
    """A Redis of its own: a gateway beside it, whose clock goes on, settles by a bucket that has filled up since."""
    with RedisServer(newest(find_servers())) as server, asyncio.Runner() as runner:

        async def opened() -> Play:
            return Play(server.url)

        stage = runner.run(opened())

        async def play(steps: list[tuple[Any, ...]]) -> None:
            await stage.begin()
            for what, *arguments in steps:
                await getattr(stage, what)(*arguments)
            await stage.over()
            assert await stage.charged() == stage.used

        @given(steps=STEPS)
        @settings(max_examples=40)
        def over_any(steps: list[tuple[Any, ...]]) -> None:
            runner.run(play(steps))

        try:
            over_any()
        finally:
            runner.run(stage.close())
