"""Responses in the background: answered at once, polled, cancelled, streamed, announced; each ends once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis.asyncio

from streamfleet.common.connection import Connection
from streamfleet.common.keys import GROUP, NOBODY
from streamfleet.gateway.api_keys import GatewayNames
from streamfleet.gateway.broker.responses import ResponseBroker, ResponseNames, ResponseRecord
from tests.integration.gateway_process import GatewayProcess, Stage, add_key, gateway_on, stage_in
from tests.integration.test_gateway_responses import told
from tests.integration.test_gateway_stored_responses import PATH, Body, body, text_of
from tests.integration.test_gateway_streams import reading
from tests.integration.test_webhooks_gateway import LOCAL, SECRET, give_secret
from tests.integration.webhook_receiver import Receiver
from tests.integration.worker_process import WorkerProcess
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Its engine has some 200 tokens a second; the tenant `everything` has a secret for its webhooks."""
    folder = tmp_path_factory.mktemp("background")
    with stage_in(folder, 2.0, gateway_files=f"file://{folder}/files", **LOCAL) as stage:
        asyncio.run(give_secret(stage.url, "everything"))
        yield stage


async def begin(http: httpx.AsyncClient, text: str = "Say hi", **more: Any) -> Body:
    answer = await http.post(PATH, json=body(text, background=True, **more))
    assert answer.status_code == 200, answer.text
    begun: Body = answer.json()
    assert begun["status"] in ("queued", "in_progress")
    assert begun["background"] is True
    return begun


async def end(http: httpx.AsyncClient, response_id: str, within_s: float = 20.0) -> Body:
    """The response once it has ended."""

    async def ended() -> Body | None:
        found: Body = (await http.get(f"{PATH}/{response_id}")).json()
        return None if found["status"] in ("queued", "in_progress") else found

    return await eventually(ended, within_s, "it has ended") or {}


async def test_it_is_answered_at_once_and_polled(http: httpx.AsyncClient, stage: Stage) -> None:
    begun = await begin(http, instructions="be brief", metadata={"a": "b"})
    assert (begun["instructions"], begun["metadata"], begun["output"]) == ("be brief", {"a": "b"}, [])
    ended = await end(http, begun["id"])
    assert (ended["status"], ended["background"], len(text_of(ended).split())) == ("incomplete", True, 30)
    assert ended["id"] == begun["id"]
    chained = await http.post(PATH, json=body("and", begun["id"], max_output_tokens=200))
    assert "and" in text_of(chained.json()).split()


async def test_one_that_has_run_is_not_queued_again(stage: Stage, tmp_path: Path) -> None:
    """Though it waits for its next attempt, without a worker."""
    folder = tmp_path / "gateway"
    folder.mkdir()
    settings = {"gateway_models": "simulated=again", "gateway_files": f"file://{tmp_path}/files"}
    with WorkerProcess(stage.url, tmp_path, "dies", queue="again", speed=0.5) as worker:
        await worker.ready()
        with gateway_on(stage.url, folder, **settings) as gateway:
            async with (
                gateway.http(stage.key) as http,
                redis.asyncio.Redis.from_url(stage.url, decode_responses=True) as rows,
            ):
                begun = await begin(http, max_output_tokens=4_000)

                async def status() -> str:
                    return str((await http.get(f"{PATH}/{begun['id']}")).json()["status"])

                async def runs() -> bool:
                    return await status() == "in_progress"

                await eventually(runs, 20, "it runs")
                worker.destroy()
                lane = "{again}:lane:low"
                (taken,) = await rows.xpending_range(lane, GROUP, "-", "+", 10)
                await rows.xclaim(lane, GROUP, NOBODY, 0, [taken["message_id"]], justid=True)
                assert await status() == "in_progress"
                await rows.zrem("{gateway}/open_responses", begun["id"].removeprefix("resp_"))  # it never ends


@pytest.mark.parametrize(
    ("tier", "lane"), [(None, "low"), ("auto", "low"), ("default", "normal"), ("priority", "high")]
)
async def test_its_lane_is_low_unless_a_tier_is_named(
    http: httpx.AsyncClient, stage: Stage, tier: str | None, lane: str
) -> None:
    begun = await begin(http, service_tier=tier)
    await end(http, begun["id"])
    async with redis.asyncio.Redis.from_url(stage.url, decode_responses=True) as rows:
        found = await rows.hget(f"{{default}}:result:{begun['id'].removeprefix('resp_')}", "lane")
    assert found == lane


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"store": False, "background": True}, "background"),
        ({"background": "yes"}, "background"),
        ({"callback_url": "http://127.0.0.1/"}, "callback_url"),
        ({"callback_url": "ftp://example.com", "background": True}, "callback_url"),
    ],
)
async def test_what_cannot_be_done_is_refused(http: httpx.AsyncClient, more: Body, param: str) -> None:
    answer = await http.post(PATH, json=body("Say hi", **more))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_try_with_another_callback_is_a_conflict(http: httpx.AsyncClient) -> None:
    asked, named = body("Say hi", background=True), {"Idempotency-Key": "called back"}
    first = await http.post(PATH, json=asked, headers=named)
    refused = await http.post(PATH, json={**asked, "callback_url": "http://127.0.0.1:9/"}, headers=named)
    again = await http.post(PATH, json=asked, headers=named)
    assert [each.status_code for each in (first, refused, again)] == [200, 409, 200]
    await end(http, first.json()["id"])


async def test_it_is_cancelled(stage: Stage, http: httpx.AsyncClient) -> None:
    """Again and again: it stays cancelled. One that has ended stays as it is."""
    async with openai.AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key=stage.key, max_retries=0) as sdk:
        begun = await begin(http, max_output_tokens=8_000)
        assert (await sdk.responses.cancel(begun["id"])).status == "cancelled"
        assert (await sdk.responses.cancel(begun["id"])).status == "cancelled"
        assert (await sdk.responses.retrieve(begun["id"])).status == "cancelled"
        done = await end(http, (await begin(http))["id"])
        assert (await sdk.responses.cancel(done["id"])).status == done["status"]


async def test_one_that_is_deleted_runs_no_longer(http: httpx.AsyncClient, stage: Stage) -> None:
    begun = await begin(http, max_output_tokens=8_000)
    assert (await http.delete(f"{PATH}/{begun['id']}")).status_code == 200
    async with redis.asyncio.Redis.from_url(stage.url, decode_responses=True) as rows:
        key = f"{{default}}:result:{begun['id'].removeprefix('resp_')}"

        async def status() -> Any:
            return await rows.hget(key, "status")

        assert await eventually(status, 20, "it has ended") == "cancelled"
        assert not await rows.zcard("{gateway}/open_responses")


async def test_one_that_is_too_late_has_failed(http: httpx.AsyncClient) -> None:
    asked = body("Say hi", background=True, max_output_tokens=8_000)
    begun = (await http.post(PATH, json=asked, headers={"X-Streamfleet-Ttl": "300ms"})).json()
    ended = await end(http, begun["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "deadline_exceeded")


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed", "cancelled"])
async def test_its_end_is_announced(stage: Stage, http: httpx.AsyncClient, kind: str) -> None:
    """In the form that OpenAI's client verifies; nobody has asked for the response."""
    more: dict[str, Body] = {
        "completed": {"ignore_eos": False, "max_output_tokens": 2_000},
        "incomplete": {},
        "failed": {"temperature": 9},
        "cancelled": {"max_output_tokens": 8_000},
    }
    async with Receiver().serving() as receiver:
        begun = await begin(http, callback_url=receiver.url(), **more[kind])
        if kind == "cancelled":
            await http.post(f"{PATH}/{begun['id']}/cancel")
        await eventually(lambda: receiver.came, 30, "the webhook came")
        (came,) = receiver.came
        client = openai.OpenAI(api_key="none", webhook_secret=SECRET)
        event: Any = client.webhooks.unwrap(came.body, dict(came.headers))
        assert (event.type, event.data.id) == (f"response.{kind}", begun["id"])
        assert (await end(http, begun["id"]))["status"] == kind


@contextlib.asynccontextmanager
async def stored_by_hand(
    stage: Stage, key_id: str, **more: Any
) -> AsyncIterator[tuple[ResponseBroker, ResponseRecord]]:
    """A response whose request no queue knows, as a gateway leaves it that is killed."""
    broker = ResponseBroker(Connection(stage.url), ResponseNames(GatewayNames().base))
    record = ResponseRecord(f"{key_id}-{'1' * 32}", "everything", "default", background=True, **more)
    try:
        await broker.add(record, 0)
        yield broker, record
        await broker.delete(record.tenant, record.id)
    finally:
        await broker.close()


async def test_an_end_is_announced_for_a_gateway_that_died_before(stage: Stage) -> None:
    async with (
        Receiver().serving() as receiver,
        stored_by_hand(stage, "k", callback_url=receiver.url()) as (broker, record),
    ):
        await broker.finish(record, {"status": "completed"})
        await eventually(lambda: receiver.came, 20, "the webhook came")
        (came,) = receiver.came
        assert json.loads(came.body)["data"]["id"] == f"resp_{record.id}"


async def test_one_that_redis_lost_has_failed(stage: Stage, tmp_path: Path) -> None:
    """Once its request had time to be enqueued."""
    key, owner = await add_key(stage.url, "loses")
    constants = {"gateway.responses.service.UNKNOWN_MS": 300}
    with gateway_on(stage.url, tmp_path, constants=constants, gateway_files=f"file://{tmp_path}/files") as gateway:
        async with gateway.http(key) as http, stored_by_hand(stage, owner.id) as (_, record):
            assert (await http.get(f"{PATH}/resp_{record.id}")).json()["status"] == "in_progress"
            ended = await end(http, f"resp_{record.id}")
    assert (ended["status"], ended["error"]["code"]) == ("failed", "request_lost")


async def test_a_stream_is_read_on_after_its_reader_has_left(stage: Stage, http: httpx.AsyncClient) -> None:
    asked = body("Say hi", background=True, stream=True, max_output_tokens=300)
    async with reading(http, path=PATH, json=asked) as sse:
        events = sse.events()
        first = [json.loads((await anext(events)).data) for _ in range(6)]
    name = first[0]["response"]["id"]
    assert first[0]["response"]["background"] is True
    async with reading(http, "GET", f"{PATH}/{name}?stream=true&starting_after=5") as again:
        rest = told(await again.rest())
    numbers = [event["sequence_number"] for event in (*first, *rest)]
    assert numbers == list(range(len(numbers)))
    assert rest[-1]["response"]["output"] == (await end(http, name))["output"]


@pytest.mark.kill
@pytest.mark.timeout(150)
async def test_they_end_once_whatever_is_killed(tmp_path: Path) -> None:
    """Gateways, workers and Redis, all at once; each end is announced once."""
    count = 200
    settings: dict[str, Any] = {**LOCAL, "gateway_files": f"file://{tmp_path}/files"}
    living: list[WorkerProcess | GatewayProcess] = []

    async def start(url: str, run: int) -> GatewayProcess:
        for number in range(2):
            folder = tmp_path / f"{run}-{number}"
            folder.mkdir()
            living.append(WorkerProcess(url, folder, f"w{run}{number}", speed=0.3, lease_ms=2_000))
            living.append(GatewayProcess(url, folder, None, **settings))
        for each in living:
            if isinstance(each, WorkerProcess):
                await each.ready()
            else:
                each.ready()
        return next(each for each in living if isinstance(each, GatewayProcess))

    with RedisServer(newest(find_servers()), appendonly=True) as server:
        try:
            gateway = await start(server.url, 1)
            key, _ = await add_key(server.url, "everything")
            await give_secret(server.url, "everything")
            async with Receiver().serving() as receiver:
                async with gateway.http(key) as http:
                    asked = [{"callback_url": receiver.url(), "max_output_tokens": 20 + each} for each in range(count)]
                    begun = await asyncio.gather(*(begin(http, f"Say {at}", **more) for at, more in enumerate(asked)))
                await eventually(lambda: len(receiver.came) >= 3, 30, "some have ended")
                for each in living:
                    each.destroy()
                server.kill()
                living.clear()
                assert len(receiver.came) < count / 2
                server.restart()
                gateway = await start(server.url, 2)
                async with gateway.http(key) as http:
                    ended = [await end(http, each["id"], 40) for each in begun]
                async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as rows:

                    async def announced() -> bool:
                        return not await rows.zcard("{gateway}/open_responses")

                    await eventually(announced, 20, "all are announced")
                    # A webhook that a killed gateway was sending waits for a minute; others end meanwhile.
                    async with rows.pipeline(transaction=True) as both:
                        both.zrange("{gateway}/webhooks:ended", 0, -1)
                        both.hkeys("{gateway}/webhooks:messages")
                        ids = [name for names in await both.execute() for name in names]
            assert len(ids) == len(set(ids)) == count
            assert {came.id for came in receiver.came} <= set(ids)
            for number, found in enumerate(ended):
                assert (found["status"], len(text_of(found).split())) == ("incomplete", 20 + number)
                assert text_of(found).split()[1:3] == ["Say", str(number)]
        finally:
            for each in living:
                each.destroy()
