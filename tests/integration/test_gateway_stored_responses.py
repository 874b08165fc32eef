"""Stored responses: read, deleted and gone on from, at any gateway, by nobody but the key that asked for them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import openai
import pytest
import redis
import redis.asyncio

from streamfleet.cli import gateway_command
from streamfleet.common.connection import Connection
from streamfleet.common.errors import BrokerUnavailable
from streamfleet.gateway.api_keys import GatewayNames
from streamfleet.gateway.auth_context import SLOW_S
from streamfleet.gateway.broker.responses import ResponseBroker, ResponseNames, ResponseRecord
from streamfleet.gateway.key_cache import MAX_AGE_S
from streamfleet.gateway.responses.service import ITEMS_PAUSES_S
from streamfleet.producer import Client
from tests.clocks import HandClock
from tests.integration.cli_processes import streamfleet
from tests.integration.gateway_process import GatewayProcess, Stage, add_key, gateway_on, make_key, stage_in
from tests.integration.test_gateway_responses import told
from tests.integration.test_gateway_streams import reading
from tests.integration.worker_process import WorkerProcess
from tests.waiting import eventually, eventually_blocking

PATH = "/v1/responses"
Body = dict[str, Any]
OPEN = "{gateway}/open_responses"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[Stage]:
    with stage_in(tmp_path_factory.mktemp("responses"), gateway_files=f"file://{files}") as stage:
        yield stage


def body(text: Any, previous: str | None = None, **more: Any) -> Body:
    """Its answer repeats every word of the conversation, as long as that is short."""
    chain = {} if previous is None else {"previous_response_id": previous}
    return {"model": "simulated", "input": text, "max_output_tokens": 30, "ignore_eos": True, **chain, **more}


async def post(http: httpx.AsyncClient, *args: Any, **more: Any) -> Body:
    answer = await http.post(PATH, json=body(*args, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def streamed(http: httpx.AsyncClient, *args: Any, **more: Any) -> Body:
    async with reading(http, path=PATH, json=body(*args, stream=True, **more)) as sse:
        events = told(await sse.rest())
    for event in events:
        if "response" in event:
            assert event["response"]["previous_response_id"] == events[-1]["response"]["previous_response_id"]
    return events[-1]["response"]  # type: ignore[no-any-return]


def text_of(response: Body) -> str:
    return str(response["output"][0]["content"][0]["text"])


async def ended(rows: redis.asyncio.Redis, request_id: str) -> str:
    """Its status once a gateway that looks through the open ones has ended it; nobody reads it."""

    async def status() -> str:
        await rows.zadd(OPEN, {request_id: 0}, xx=True)
        found = await rows.hget(f"{{gateway}}/response:{request_id}", "status")
        return "" if found == "in_progress" else str(found or "")

    return await eventually(status, 20, "it has ended")


# -- reading and deleting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [post, streamed])
async def test_a_response_is_there_until_it_is_deleted(
    http: httpx.AsyncClient, rows: redis.asyncio.Redis, ask: Any
) -> None:
    """Its request's result may go at once, where a tenant has many."""
    answered = await ask(http, "Say hi")
    await rows.delete(f"{{default}}:result:{answered['id'].removeprefix('resp_')}")
    path = f"{PATH}/{answered['id']}"

    async def whole() -> Body | None:
        found = (await http.get(path)).json()
        return None if found["status"] == "in_progress" else found

    assert await eventually(whole, 5, "its gateway has stored it") == {**answered, "store": True}
    assert (await http.delete(path)).json() == {"id": answered["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        gone = await http.request(method, path)
        assert (gone.status_code, gone.json()["error"]["message"]) == (
            404,
            f"Response with id '{answered['id']}' not found.",
        )
    refused = await http.post(PATH, json=body("and", answered["id"]))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "previous_response_not_found")


async def test_openais_client_goes_on_reads_and_deletes(stage: Stage) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key=stage.key, max_retries=0) as sdk:
        items: Any = [{"role": "user", "content": f"word {number}"} for number in range(5)]
        first = await sdk.responses.create(model="simulated", input=items)
        second = await sdk.responses.create(model="simulated", input="more", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert (await sdk.responses.retrieve(second.id)).output_text == second.output_text
        listed: Any = [item async for item in sdk.responses.input_items.list(first.id, limit=2, order="asc")]
        assert [item.content[0].text for item in listed] == [each["content"] for each in items]
        newest = await sdk.responses.input_items.list(first.id, limit=2)
        assert [item.id for item in newest.data] == [item.id for item in reversed(listed)][:2]
        assert newest.has_more
        own: Any = (await sdk.responses.input_items.list(second.id)).data[0]
        assert own.content[0].text == "more"
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
            await sdk.responses.cancel(first.id)
        with pytest.raises(openai.BadRequestError, match="after"):
            await sdk.responses.input_items.list(first.id, after="msg_none")
        await sdk.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(first.id)


async def test_the_page_shows_the_response_of_a_request(http: httpx.AsyncClient, stage: Stage) -> None:
    first = await post(http, "one")
    second = await post(http, "two", first["id"])
    operator, _ = await add_key(stage.url, "operator", operator=True)
    async with stage.gateway.http(operator) as page:
        rows = (await page.get("/ui/api/requests", params={"query": second["id"]})).json()["data"]
        story = (await page.get(f"/ui/api/requests/{rows[0]['id']}")).json()
    assert story["response"] == {"id": second["id"], "status": "incomplete", "previous": first["id"]}


async def test_only_what_is_to_be_stored_is(http: httpx.AsyncClient, stage: Stage, tmp_path: Path) -> None:
    unstored = await post(http, "Say hi", store=False)
    assert (await http.get(f"{PATH}/{unstored['id']}")).status_code == 404
    wrong = await http.post(PATH, json=body("Say hi", store="yes"))
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "store")
    settings = {"gateway_store_responses": "off", "gateway_files": f"file://{tmp_path}/files"}
    with gateway_on(stage.url, tmp_path, **settings) as gateway:
        async with gateway.http(stage.key) as other:
            for store, status in ((None, 404), (True, 200), (False, 404)):
                answered = await post(other, "Say hi", store=store)
                assert (await other.get(f"{PATH}/{answered['id']}")).status_code == status


async def test_what_failed_is_told(http: httpx.AsyncClient, rows: redis.asyncio.Redis) -> None:
    failed = await http.post(PATH, json=body("Say hi", temperature=9))
    name = failed.headers["x-streamfleet-id"]
    assert (failed.status_code, await ended(rows, name)) == (400, "failed")
    told = (await http.get(f"{PATH}/resp_{name}")).json()
    error = failed.json()["error"]
    assert (told["status"], told["error"]) == ("failed", {"code": error["code"], "message": error["message"]})
    refused = await http.post(PATH, json=body("and", f"resp_{name}"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")


# -- tries under an Idempotency-Key --------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{"background": True}, {"store": False}, {"instructions": "be brief"}])
async def test_another_question_under_the_same_key_is_a_conflict(http: httpx.AsyncClient, more: Body) -> None:
    named = {"Idempotency-Key": f"asks {sorted(more)}"}
    first = await http.post(PATH, json=body("Say hi"), headers=named)
    refused = await http.post(PATH, json=body("Say hi", **more), headers=named)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_conflict")
    again = await http.post(PATH, json=body("Say hi", service_tier="priority"), headers=named)
    assert (again.status_code, again.json()["output"]) == (200, first.json()["output"])


@pytest.mark.parametrize(
    "more", [{"background": False}, {"background": None}, {"previous_response_id": None}, {"callback_url": None}]
)
async def test_a_try_is_the_request_that_a_gateway_of_0_2_0_enqueues(
    http: httpx.AsyncClient, stage: Stage, more: Body
) -> None:
    """A gateway of 0.2.0 sends fields on that ask for nothing, and workers take them."""
    asked = body("Say hi", **more)
    first = await http.post(PATH, json=asked, headers={"Idempotency-Key": f"of 0.2.0 {more}"})
    assert first.status_code == 200, first.text
    async with Client(stage.url) as client:
        sent = await client.enqueue({**asked, "store": False}, id=first.headers["x-streamfleet-id"], endpoint=PATH)
    assert sent.existing


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["previous_response_id", "item_reference"])
async def test_a_try_gets_its_answer_though_what_it_went_on_from_is_gone(
    http: httpx.AsyncClient, by: str, stream: bool
) -> None:
    first = await post(http, "one")
    user = {"role": "user", "content": "two"}
    if by == "item_reference":
        asked = body([{"type": by, "id": first["output"][0]["id"]}, user], stream=stream)
    else:
        asked = body([user], first["id"], stream=stream)

    async def answer() -> httpx.Response:
        return await http.post(PATH, json=asked, headers={"Idempotency-Key": f"goes on {by} {stream}"})

    before = await answer()
    await http.delete(f"{PATH}/{first['id']}")
    again = await answer()
    assert (again.status_code, again.text) == (200, before.text)
    assert again.headers["x-streamfleet-id"] == before.headers["x-streamfleet-id"]


@pytest.mark.parametrize(
    ("kind", "more"), [("whole", {}), ("background", {"background": True}), ("streamed", {"stream": True})]
)
async def test_a_try_after_its_result_has_gone_has_one_answer(
    http: httpx.AsyncClient, rows: redis.asyncio.Redis, kind: str, more: Body
) -> None:
    """The stored one. Its events are not stored: it runs anew for a stream, and what is stored is what was read."""
    named = {"Idempotency-Key": f"outlives {kind}"}
    first = await http.post(PATH, json=body("Say hi", **more), headers=named)
    name = first.headers["x-streamfleet-id"]
    await ended(rows, name)
    before = (await http.get(f"{PATH}/resp_{name}")).json()
    await rows.delete(f"{{default}}:result:{name}", f"{{default}}:request:{name}", f"{{default}}:tokens:{name}")
    again = await http.post(PATH, json=body("Say hi", **more), headers=named)
    assert (again.status_code, again.headers["x-streamfleet-id"]) == (200, name)
    if kind != "streamed":
        assert again.json() == before
        assert not await rows.exists(f"{{default}}:request:{name}", f"{{default}}:result:{name}"), "it did not run"
        return
    read = json.loads(again.text.rpartition("data: ")[2])["response"]
    await ended(rows, name)
    after = (await http.get(f"{PATH}/resp_{name}")).json()
    assert (after["output"], after["created_at"]) == (read["output"], read["created_at"])


@pytest.mark.parametrize("status", [404, 400])
async def test_a_try_that_is_refused_leaves_what_is_stored(
    http: httpx.AsyncClient, rows: redis.asyncio.Redis, status: int
) -> None:
    """Its events have gone with its result: it would run anew."""
    named, first = {"Idempotency-Key": f"refused {status}"}, await post(http, "one")
    asked = body("two", first["id"], stream=True)
    name = (await http.post(PATH, json=asked, headers=named)).headers["x-streamfleet-id"]
    await ended(rows, name)
    before = (await http.get(f"{PATH}/resp_{name}")).json()
    await rows.delete(f"{{default}}:result:{name}", f"{{default}}:request:{name}", f"{{default}}:tokens:{name}")
    if status == 404:
        await http.delete(f"{PATH}/{first['id']}")
    refused = await http.post(PATH, json=asked, headers=named | ({} if status == 404 else {"X-Streamfleet-Ttl": "?"}))
    assert refused.status_code == status, refused.text
    assert (await http.get(f"{PATH}/resp_{name}")).json() == before


async def test_a_try_of_one_that_failed_runs_anew_once_its_result_has_gone(
    http: httpx.AsyncClient, rows: redis.asyncio.Redis
) -> None:
    for _ in range(2):
        failed = await http.post(PATH, json=body("hi", temperature=9), headers={"Idempotency-Key": "fails"})
        name = failed.headers["x-streamfleet-id"]
        assert (failed.status_code, await ended(rows, name)) == (400, "failed")
        await rows.delete(f"{{default}}:result:{name}", f"{{default}}:request:{name}")


# -- chains -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [post, streamed])
async def test_each_turn_has_the_whole_conversation(http: httpx.AsyncClient, ask: Any) -> None:
    """As if the caller had sent it. Instructions are those of the turn; its session is the chain."""
    conversation: list[Body] = []
    previous = None
    for text, most in (("one", 3), ([{"role": "user", "content": "two"}], 3), ("three", 40)):
        more: Body = {"instructions": f"be {most}", "max_output_tokens": most}
        answered = await ask(http, text, previous, **more)
        assert answered["previous_response_id"] == previous
        conversation += text if isinstance(text, list) else [{"role": "user", "content": text}]
        assert text_of(answered) == text_of(await post(http, conversation, store=False, **more))
        conversation += answered["output"]
        previous = answered["id"]
    assert {"one", "two", "three"} <= set(text_of({"output": conversation[-1:]}).split())


async def test_a_reference_to_an_item_stands_for_it(http: httpx.AsyncClient, stage: Stage) -> None:
    """As the AI SDK sends a conversation, if it is not told otherwise."""
    first, second = await post(http, "one"), await post(http, "two")
    items = [first["output"][0], second["output"][0]]
    references = [{"type": "item_reference", "id": item["id"]} for item in items]
    user = {"role": "user", "content": "and"}
    referred = await post(http, [*references, user])
    assert text_of(referred) == text_of(await post(http, [*items, user]))
    listed = (await http.get(f"{PATH}/{referred['id']}/input_items?order=asc")).json()["data"]
    assert [each["id"] for each in listed[:2]] == [each["id"] for each in items]
    key, _ = await add_key(stage.url, "refers", tenant="everything")
    async with stage.gateway.http(key) as other:
        assert (await other.post(PATH, json=body([references[0], user]))).status_code == 404
    await http.delete(f"{PATH}/{second['id']}")
    wrong: list[Any] = [items[1]["id"], "msg_unknown", "odd *", None, []]
    for name in wrong:
        gone = await http.post(PATH, json=body([{"type": "item_reference", "id": name}, user]))
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "item_not_found")


async def test_an_item_is_found_though_nobody_has_finished_its_response_yet(
    stage: Stage, rows: redis.asyncio.Redis
) -> None:
    """The gateway that answered died before; the others look at it only after a while."""
    key, _ = await add_key(stage.url, "refers at once")
    async with stage.gateway.http(key) as http:
        reference = {"type": "item_reference", "id": (await _as_open(http, rows))["output"][0]["id"]}
        referred = await http.post(PATH, json=body([reference, {"role": "user", "content": "and"}]))
    assert referred.status_code == 200, referred.text


async def _as_open(http: httpx.AsyncClient, rows: redis.asyncio.Redis) -> Body:
    """A response that has an answer, and whose record has not ended."""
    answered = await post(http, "one")
    name = answered["id"].removeprefix("resp_")
    await ended(rows, name)
    record = f"{{gateway}}/response:{name}"
    for item in answered["output"]:
        await rows.delete(*[each async for each in rows.scan_iter(f"{{gateway}}/response:*/{item['id']}")])
    await rows.hset(record, "status", "in_progress")
    await rows.hdel(record, "output", "items")
    return answered


async def test_references_count_as_often_as_they_are_named(stage: Stage, tmp_path: Path) -> None:
    """Else a body of references to one item would be a thousand times itself in the gateway's memory."""
    with gateway_on(stage.url, tmp_path, max_body_bytes=20_000) as small:
        async with small.http(stage.key) as http:
            item = (await post(http, "one"))["output"][0]
            for count, status in ((20, 200), (200, 400)):
                references = [{"type": "item_reference", "id": item["id"]}] * count
                answer = await http.post(PATH, json=body([*references, {"role": "user", "content": "and"}]))
                assert answer.status_code == status
                assert (status == 200) or answer.json()["error"]["code"] == "context_length_exceeded"


async def test_a_chain_is_a_session(http: httpx.AsyncClient, rows: redis.asyncio.Redis) -> None:
    first = await post(http, "one")
    second = await post(http, "two", first["id"])
    own = await post(http, "three", second["id"], prompt_cache_key="own")
    sessions = [
        await rows.hget(f"{{default}}:result:{each['id'].removeprefix('resp_')}", "session")
        for each in (first, second, own)
    ]
    assert sessions == [first["id"].removeprefix("resp_")] * 2 + ["own"]


async def test_fifty_turns_cost_their_own_bytes(stage: Stage, rows: redis.asyncio.Redis) -> None:
    key, _ = await add_key(stage.url, "fifty")
    sizes: list[int] = []
    previous = None
    async with stage.gateway.http(key) as http:
        for number in range(50):
            answered = await post(http, f"this is turn {number:02}", previous, max_output_tokens=10)
            previous = answered["id"]
            await ended(rows, answered["id"].removeprefix("resp_"))
            sizes.append(int(await rows.hget("{gateway}/use:fifty", "response_bytes") or 0))
            if number == 49:
                assert answered["usage"]["input_tokens"] > 50 * 16, "it has read all turns"
    costs = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(costs) < 1.1 * min(costs)


@pytest.mark.parametrize(
    ("text", "tokens", "long"),
    [("word " * 3_300, 30, "input"), ("a" * 40, 500, "output"), ("word " * 3_200, 30, "")],
)
async def test_long_texts_are_in_the_store_of_files(
    http: httpx.AsyncClient,
    rows: redis.asyncio.Redis,
    stage: Stage,
    files: Path,
    tmp_path: Path,
    text: str,
    tokens: int,
    long: str,
) -> None:
    """Another gateway goes on from them; what is deleted may be swept from the store."""
    answered = await post(http, text, max_output_tokens=tokens)
    name = answered["id"].removeprefix("resp_")
    await ended(rows, name)
    kept: Any = await rows.hgetall(f"{{gateway}}/response:{name}")
    stored = {name: text.partition(" ")[2] for name, text in kept.items() if text.startswith("@")}
    assert list(stored) == ([long] if long else [])
    assert all((files / each).exists() for each in stored.values())
    with gateway_on(stage.url, tmp_path, gateway_files=f"file://{files}") as gateway:
        async with gateway.http(stage.key) as other:
            assert (await other.get(f"{PATH}/{answered['id']}")).json()["output"] == answered["output"]
            assert (await other.get(f"{PATH}/{answered['id']}/input_items")).json()["data"][0]["content"][0][
                "text"
            ] == text
            chained = await post(other, "last", answered["id"])
            assert chained["usage"]["input_tokens"] > answered["usage"]["input_tokens"]
    await http.delete(f"{PATH}/{answered['id']}")
    assert [await rows.zscore("{gateway}/loose", each) for each in stored.values()] == [0] * len(stored)


async def test_a_conversation_counts_as_part_of_the_body(stage: Stage, tmp_path: Path) -> None:
    """Of the bytes that a gateway holds, and of what a body may have."""
    limits = {"gateway_max_held_bytes": 1_048_576, "max_body_bytes": 350_000}
    with gateway_on(stage.url, tmp_path, gateway_files=f"file://{tmp_path}/files", **limits) as gateway:
        async with gateway.http(stage.key) as http:
            padded = [_image(300_000)]
            first = await post(http, padded)
            refused = await http.post(PATH, json=body(padded, first["id"]))
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_bytes")
            second = await post(http, "more", first["id"])
            assert gateway.metric("streamfleet_gateway_body_bytes") == 0, "all is let go"
            refused = await http.post(PATH, json=body([_image(60_000)], second["id"]))
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")


def _image(size: int) -> Body:
    """A message with an image, whose bytes are no text that the model reads."""
    url = f"data:image/png;base64,{'A' * size}"
    return {
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": url}],
    }


# -- access -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strangers:
    """Ids of responses that a key may not see."""

    key: str
    owner: str
    ids: dict[str, str]


@pytest.fixture(scope="module")
def strangers(stage: Stage) -> Strangers:
    mine, me = make_key(stage.url, "mine", tenant="shared")
    owner, _ = make_key(stage.url, "theirs", tenant="shared")

    async def asked() -> list[Body]:
        async with stage.gateway.http(owner) as http:
            return [await post(http, "Say hi"), await streamed(http, "Say hi")]

    stored, live = asyncio.run(asked())
    ids = {
        "another's": stored["id"],
        "another's stream": live["id"],
        "unknown": f"resp_{me.id}-{'0' * 32}",
        "without prefix": stored["id"].removeprefix("resp_"),
        "odd": f"resp_{me.id}-*",
    }
    return Strangers(mine, owner, ids)


ACTS: dict[str, tuple[str, str, Body]] = {
    "retrieve": ("GET", "{id}", {}),
    "stream": ("GET", "{id}?stream=true", {}),
    "stream behind": ("GET", "{id}?stream=true&starting_after=1", {}),
    "delete": ("DELETE", "{id}", {}),
    "cancel": ("POST", "{id}/cancel", {}),
    "input": ("GET", "{id}/input_items", {}),
    "input behind": ("GET", "{id}/input_items?after=msg_1", {}),
    "go on": ("POST", "", {}),
    "go on streamed": ("POST", "", {"stream": True}),
    "go on unstored": ("POST", "", {"store": False}),
    "go on flex": ("POST", "", {"service_tier": "flex"}),
    "go on with items": ("POST", "", {"input": [{"role": "user", "content": "hi"}]}),
}


@pytest.mark.parametrize("whose", ["another's", "another's stream", "unknown", "without prefix", "odd"])
@pytest.mark.parametrize("act", ACTS)
async def test_nobody_else_finds_it(stage: Stage, strangers: Strangers, act: str, whose: str) -> None:
    method, rest, more = ACTS[act]
    name = strangers.ids[whose]
    path = f"{PATH}/{rest.format(id=name)}" if rest else PATH
    asked = None if rest else {**body("hi", name), **more}
    async with stage.gateway.http(strangers.key) as http:
        answer = await http.request(method, path, json=asked)
    assert answer.status_code == 404, answer.text
    kind = "request" if "?stream" in rest else "response" if rest else "previous_response"
    assert answer.json()["error"]["code"] == f"{kind}_not_found"
    if whose.startswith("another"):
        async with stage.gateway.http(strangers.owner) as http:
            assert (await http.get(f"{PATH}/{name}")).status_code == 200, "it is still there"


class Waits(HandClock):
    """The clock of a command that erases.

    Attributes:
        meanwhile: what happens while it waits.
        waited_s: how long it has waited.
    """

    meanwhile: ClassVar[list[Callable[[], Awaitable[object]]]] = []
    waited_s: ClassVar[list[float]] = []

    async def sleep(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        for work in self.meanwhile:
            await work()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> type[Waits]:
    class Own(Waits):
        meanwhile: ClassVar[list[Callable[[], Awaitable[object]]]] = []
        waited_s: ClassVar[list[float]] = []

    monkeypatch.setattr(gateway_command, "SystemClock", Own)
    return Own


@pytest.mark.usefixtures("waits")
def test_a_key_is_revoked_with_what_it_stored(stage: Stage) -> None:
    names: dict[str, str] = {}
    for kind, options in (("kept", ()), ("erased", ("--erase-responses",))):
        key, record = make_key(stage.url, kind, tenant="two keys")
        with stage.gateway.http_blocking(key) as http:
            names[kind] = http.post(PATH, json=body("Say hi")).headers["x-streamfleet-id"]
        assert streamfleet(stage.url, "gateway", "keys", "revoke", record.id, *options).returncode == 0
    with redis.Redis.from_url(stage.url) as rows:
        assert rows.exists(f"{{gateway}}/response:{names['kept']}")
        assert not rows.exists(f"{{gateway}}/response:{names['erased']}")


def test_what_a_gateway_stores_that_still_trusts_the_key_is_erased(stage: Stage, waits: type[Waits]) -> None:
    """It has not heard yet that the keys have ended. The command waits once for all of them."""
    records = [make_key(stage.url, name, tenant="trusted")[1] for name in ("one", "two")]
    late = [ResponseRecord(f"{record.id}-late", "trusted", "default") for record in records]

    async def stores() -> None:
        found = ResponseBroker(Connection(stage.url), ResponseNames(GatewayNames().base))
        try:
            assert all([await found.add(each, 1_000) for each in late])
        finally:
            await found.close()

    waits.meanwhile.append(stores)
    command = ("gateway", "keys", "revoke", *(record.id for record in records), "--erase-responses")
    ended = streamfleet(stage.url, *command)
    assert (ended.returncode, "waiting 10 s" in ended.stderr) == (0, True)
    assert waits.waited_s == [gateway_command.STORED_S]
    assert MAX_AGE_S + SLOW_S + sum(ITEMS_PAUSES_S) < gateway_command.STORED_S
    with redis.Redis.from_url(stage.url) as rows:
        assert not rows.exists(*(f"{{gateway}}/response:{each.id}" for each in late))
    assert streamfleet(stage.url, *command).returncode
    assert waits.waited_s == [gateway_command.STORED_S], "there is nothing to wait for"


@pytest.mark.usefixtures("waits")
def test_an_erasure_that_broke_midway_can_be_repeated(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key is refused at once."""
    key, record = make_key(stage.url, "half erased")
    with stage.gateway.http_blocking(key) as http:
        names = [http.post(PATH, json=body("Say hi")).headers["x-streamfleet-id"] for _ in range(2)]
    delete, deleted = ResponseBroker.delete, list[str]()

    async def breaks(self: ResponseBroker, tenant: str, request_id: str) -> bool:
        if deleted:
            raise BrokerUnavailable("it broke")
        deleted.append(request_id)
        return await delete(self, tenant, request_id)

    command = ("gateway", "keys", "revoke", record.id, "--erase-responses")
    with monkeypatch.context() as patched:
        patched.setattr(ResponseBroker, "delete", breaks)
        assert streamfleet(stage.url, *command).returncode
    with stage.gateway.http_blocking(key) as http:

        def refused() -> bool:
            return http.get("/v1/models").status_code == 401

        eventually_blocking(refused, 10, "the key has ended")
    assert streamfleet(stage.url, *command).returncode == 0
    with redis.Redis.from_url(stage.url) as rows:
        assert not rows.exists(*(f"{{gateway}}/response:{name}" for name in names))
    assert streamfleet(stage.url, *command).returncode


# -- kills --------------------------------------------------------------------------------------------------


@pytest.mark.kill
async def test_a_response_of_a_killed_gateway_ends(stage: Stage, rows: redis.asyncio.Redis, tmp_path: Path) -> None:
    """Whoever asks for it, and nobody: others look through the open ones."""
    folders = [tmp_path / name for name in ("g1", "g2")]
    settings = {"gateway_models": "simulated=slow", "gateway_files": f"file://{tmp_path}/files"}
    with WorkerProcess(stage.url, tmp_path, "slow", queue="slow", speed=0.5) as worker:
        await worker.ready()
        with contextlib.ExitStack() as stack:
            gateways: list[GatewayProcess] = []
            for folder in folders:
                folder.mkdir()
                gateways.append(stack.enter_context(gateway_on(stage.url, folder, **settings)))
            names = [await _begun(gateways[0], stage.key) for _ in range(2)]
            gateways[0].destroy()
            async with gateways[1].http(stage.key) as http:
                told = (await http.get(f"{PATH}/{names[0]}")).json()
                assert told["status"] == "in_progress"

                async def whole() -> Body | None:
                    found = (await http.get(f"{PATH}/{names[0]}")).json()
                    return None if found["status"] == "in_progress" else found

                found: Any = await eventually(whole, 30, "it has ended")
                assert found["status"] == "incomplete"
                assert len(text_of(found).split()) == 100
                assert await ended(rows, names[1].removeprefix("resp_")) == "incomplete"
                assert text_of(await post(http, "and", names[1])).count("Say") > 1


async def _begun(gateway: GatewayProcess, key: str) -> str:
    """The id of a response that has begun; its reader does not cancel it."""
    async with gateway.http(key) as http:
        asked = body("Say hi", stream=True, max_output_tokens=100)
        headers = {"X-Streamfleet-On-Disconnect": "continue"}
        async with reading(http, path=PATH, json=asked, headers=headers) as sse:
            first = json.loads((await anext(sse.events())).data)
    return str(first["response"]["id"])
