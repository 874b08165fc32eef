"""Responses over HTTP while they come: OpenAI's client, readers that come back, restarts that are told, kills."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import redis.asyncio

from streamfleet.common.response_events import TEXT_DELTA
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.commands.common import queue_settings
from streamfleet.operator.dead_letters import find_letter, requeue
from tests.integration.gateway_process import Stage, add_key, gateway_on
from tests.integration.test_gateway_streams import Event, reading
from tests.integration.worker_process import WorkerProcess, chat

PATH = "/v1/responses"
ASKED: dict[str, Any] = {"model": "simulated", "input": "Say hi", "max_output_tokens": 40, "ignore_eos": True}
TEXT = "[simulated] " + " ".join(["Say hi"] * 19) + " Say"
KINDS = [
    *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
    *(TEXT_DELTA, "response.output_text.done", "response.content_part.done", "response.output_item.done"),
    "response.incomplete",
]


def told(events: list[Event]) -> list[dict[str, Any]]:
    """The events' data, each named by its type."""
    found = [json.loads(event.data) for event in events]
    assert [event.event for event in events] == [each["type"] for each in found]
    return found


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == TEXT_DELTA)


def check_whole(events: list[dict[str, Any]]) -> None:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert list(dict.fromkeys(event["type"] for event in events)) == KINDS
    assert text_of(events) == TEXT == events[-1]["response"]["output"][0]["content"][0]["text"]


# -- what a reader gets -------------------------------------------------------------------------------------


async def test_openais_client_puts_the_response_together(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.responses.stream(
        model="simulated", input="Say hi", max_output_tokens=40, extra_body={"ignore_eos": True}
    ) as stream:
        events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == TEXT


async def test_events_are_named_and_numbered_and_nothing_else(stage: Stage) -> None:
    async with stage.client() as http:
        answer = await http.post(PATH, json={**ASKED, "stream": True})
        async with reading(http, path=PATH, json={**ASKED, "stream": True}) as sse:
            events = told(await sse.rest())
    check_whole(events)
    assert sum(event["type"] == TEXT_DELTA for event in events) > 1
    fields = {line.partition(":")[0] for line in answer.text.splitlines() if line}
    assert fields == {"event", "data"}


async def test_the_result_is_the_response_of_the_last_event(stage: Stage) -> None:
    key = {"Idempotency-Key": "response"}
    async with stage.client() as http:
        async with reading(http, path=PATH, json={**ASKED, "stream": True}, headers=key) as sse:
            last = told(await sse.rest())[-1]
        whole = await http.post(PATH, json=ASKED, headers=key)
    assert whole.json() == last["response"]
    assert last["response"]["id"] == f"resp_{whole.headers['x-streamfleet-id']}"


async def test_a_tier_is_told_in_each_response(stage: Stage) -> None:
    async with (
        stage.client() as http,
        reading(http, path=PATH, json={**ASKED, "stream": True, "service_tier": "flex"}) as sse,
    ):
        events = told(await sse.rest())
    check_whole(events)
    assert [event["response"]["service_tier"] for event in events if "response" in event] == ["flex"] * 3


async def test_what_fails_before_its_first_event_is_a_plain_error(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.responses.create(model="simulated", input="Say hi", temperature=9, stream=True)
    assert caught.value.param == "temperature"


async def test_a_response_whose_events_were_not_kept_has_the_usual_ones(stage: Stage) -> None:
    """It had been asked for without `stream`, or they have gone since."""
    key = {"Idempotency-Key": "response without events"}
    async with stage.client() as http:
        whole = (await http.post(PATH, json=ASKED, headers=key)).json()
        async with reading(http, path=PATH, json={**ASKED, "stream": True}, headers=key) as sse:
            events = told(await sse.rest())
        assert [bool(event.id) for event in sse.seen] == [*[False] * (len(events) - 1), True]
    check_whole(events)
    assert events[-1]["response"] == whole


async def test_tools_that_need_a_server_are_left_out_and_named(stage: Stage) -> None:
    """The simulated engine refuses the others; workers with vLLM take them."""
    tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {}}, {"type": "mcp"}]
    include = ["reasoning.encrypted_content", "web_search_call.action.sources"]
    async with stage.client() as http:
        answer = await http.post(PATH, json={**ASKED, "tools": tools, "include": include})
        ignored = "tools.web_search, tools.mcp, include.web_search_call.action.sources"
        assert answer.headers["x-streamfleet-ignored"] == ignored
        for body, param in (
            ({"tools": tools[:1]}, "tools"),
            ({"tools": tools, "tool_choice": tools[0]}, "tool_choice"),
        ):
            refused = await http.post(PATH, json={**ASKED, **body})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


# -- coming back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [None, 0, 5])
async def test_a_reader_goes_on_behind_a_number(stage: Stage, sdk: openai.AsyncOpenAI, after: int | None) -> None:
    body = {**ASKED, "max_output_tokens": 100}
    async with stage.client() as http, reading(http, path=PATH, json={**body, "stream": True}) as sse:
        first = json.loads((await anext(sse.events())).data)
        more: dict[str, Any] = {} if after is None else {"starting_after": after}
        stream = await sdk.responses.retrieve(first["response"]["id"], stream=True, **more)
        events = [json.loads(event.model_dump_json(exclude_unset=True)) async for event in stream]
        await sse.rest()
    everything = told(sse.seen)
    begin = 0 if after is None else after + 1
    assert [each["sequence_number"] for each in events] == [each["sequence_number"] for each in everything[begin:]]
    assert text_of(events) == text_of(everything[begin:])


async def test_a_reader_goes_on_behind_an_event_as_of_a_chat(stage: Stage) -> None:
    """By a repeated POST, and by GET with the request's id, which does not say that it is a response."""
    body, key = {**ASKED, "max_output_tokens": 100, "stream": True}, {"Idempotency-Key": "response read on"}
    async with stage.client() as http:
        async with reading(http, path=PATH, json=body, headers=key) as first:
            events = first.events()
            while len(first.seen) < 6:
                await anext(events)
        last = {"Last-Event-ID": first.seen[-1].id}
        async with reading(http, path=PATH, json=body, headers={**key, **last}) as second:
            rest = await second.rest()
        request_id = second.answer.headers["x-streamfleet-id"]
        path, numbered = f"/v1/streams/{request_id}", f"{PATH}/resp_{request_id}?stream=true&starting_after=2"
        for each in (path, numbered):  # a browser connects again with the number that it began with
            async with reading(http, "GET", each, headers=last) as third:
                assert await third.rest() == rest
        async with reading(http, "GET", path) as again:
            everything = await again.rest()
        behind = await http.get(path, headers={"Last-Event-ID": everything[-1].id})
    assert [*first.seen, *rest] == everything
    assert [event["sequence_number"] for event in told(everything)] == list(range(len(everything)))
    assert behind.status_code == 204


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_number_leads_to_what_is_behind_it_however_the_response_was_asked_for(
    stage: Stage, streamed: bool
) -> None:
    async with stage.client() as http:
        answer = await http.post(PATH, json={**ASKED, "stream": streamed})
        path = f"{PATH}/resp_{answer.headers['x-streamfleet-id']}?stream=true"
        async with reading(http, "GET", path) as sse:
            everything = await sse.rest()
        last = len(everything) - 1
        for number in (0, 3, last - 1):
            async with reading(http, "GET", f"{path}&starting_after={number}") as sse:
                assert await sse.rest() == everything[number + 1 :]
        assert (await http.get(f"{path}&starting_after={last}")).status_code == 204
        for beyond in (last + 1, 999_999_999):
            refused = await http.get(f"{path}&starting_after={beyond}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")


async def test_a_reader_that_hears_of_a_failure_is_told_in_events_numbered_behind_its_own(stage: Stage) -> None:
    async with stage.client() as http:
        failed = await http.post(PATH, json={**ASKED, "temperature": 9, "stream": True})
        path = f"{PATH}/resp_{failed.headers['x-streamfleet-id']}?stream=true"
        for had in (0, 4):
            at_once, after = {"X-Streamfleet-Expected": "tell"}, f"&starting_after={had - 1}" if had else ""
            async with reading(http, "GET", path + after, headers=at_once) as sse:
                (error,) = told(await sse.rest())
            assert (error["type"], error["sequence_number"], error["param"]) == ("error", had, "temperature")


@pytest.mark.parametrize("more", [{}, {"stream": True}], ids=str)
async def test_a_chat_is_no_response(stage: Stage, more: dict[str, Any]) -> None:
    async with stage.client() as http:
        asked = await http.post("/v1/chat/completions", json=chat(0.1, model="simulated", **more))
        path = f"{PATH}/{asked.headers['x-streamfleet-id']}?stream=true"
        for after in ("", "&starting_after=2", "&starting_after=999"):
            refused = await http.get(path + after)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "request_not_found")


@pytest.mark.parametrize(
    ("query", "param"),
    [("?stream=true&starting_after=x", "starting_after"), ("?stream=true&starting_after=-1", "starting_after")],
)
async def test_a_wrong_number_is_refused(stage: Stage, query: str, param: str) -> None:
    async with stage.client() as http, stage.gateway.http("sk-unknown") as stranger:
        answer = await http.get(f"{PATH}/resp_1{query}")
        assert (await stranger.get(f"{PATH}/resp_1{query}")).status_code == 401, "the key first"
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_response_of_another_key_is_not_there(stage: Stage) -> None:
    key, _ = await add_key(stage.url, "another")
    async with stage.client() as http, stage.gateway.http(key) as other:
        mine = (await http.post(PATH, json=ASKED)).json()["id"]
        for name in (mine, "resp_unknown", "unknown"):
            answer = await other.get(f"{PATH}/{name}?stream=true")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
        assert (await http.get(f"{PATH}/{mine}?stream=true")).status_code == 200


# -- events that are gone -----------------------------------------------------------------------------------


@asynccontextmanager
async def tokens_of(stage: Stage, request_id: str) -> AsyncIterator[tuple[Any, str, list[dict[bytes, bytes]]]]:
    """The Redis, the key of a request's tokens, and what it has, before it is deleted."""
    rows: Any
    async with redis.asyncio.Redis.from_url(stage.url) as rows:
        key = f"{{default}}:tokens:{request_id}"
        entries = [fields for _, fields in await rows.xrange(key)]
        await rows.delete(key)
        yield rows, key, entries


def as_run(entries: list[dict[bytes, bytes]], attempt: int) -> list[dict[bytes, bytes]]:
    """The same events, of another run."""
    return [each | {b"run": b"another", b"attempt": b"%d" % attempt} if b"run" in each else each for each in entries]


GONE: dict[str, Callable[[list[dict[bytes, bytes]]], list[Any]]] = {
    "another run": lambda entries: as_run(entries, 2),
    "two runs": lambda entries: [*entries[:-1], *as_run(entries, 1)],
    "another life": lambda entries: [{"requeued": "1-0"}, *entries],
    "all are gone": lambda _: [],
}


@pytest.mark.parametrize("case", GONE)
async def test_a_number_that_may_be_of_another_run_is_told(stage: Stage, case: str) -> None:
    async with stage.client() as http:
        streamed = await http.post(PATH, json={**ASKED, "stream": True})
        request_id = streamed.headers["x-streamfleet-id"]
        path = f"{PATH}/resp_{request_id}?stream=true"
        async with tokens_of(stage, request_id) as (rows, key, entries):
            for fields in GONE[case](entries):
                await rows.xadd(key, fields)
        for number in (0, 5):
            refused = await http.get(f"{path}&starting_after={number}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stream_restarted")
        async with reading(http, "GET", path) as sse:
            check_whole(told(await sse.rest()))


async def test_another_life_is_not_taken_for_the_former_one(stage: Stage) -> None:
    """A dead letter that was enqueued again, of a request that was late within its stream."""
    async with stage.client() as http:
        body = {**ASKED, "max_output_tokens": 300, "stream": True}
        async with reading(http, path=PATH, json=body, headers={"X-Streamfleet-Ttl": "1s"}) as sse:
            *before, late = told(await sse.rest())
        assert (late["type"], late["code"], len(before) > 5) == ("error", "deadline_exceeded", True)
        request_id = sse.answer.headers["x-streamfleet-id"]
        broker = OperatorBroker.open(queue_settings(stage.url, None))
        letter = await find_letter(broker, request_id)
        assert await requeue(broker, letter, letter.written_ms)
        await broker.close()
        path = f"{PATH}/resp_{request_id}?stream=true"
        refused = await http.get(f"{path}&starting_after=5")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stream_restarted")
        async with reading(http, "GET", path) as sse:
            assert told(await sse.rest())[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
async def test_who_has_nothing_gets_the_whole_answer_where_its_chunks_are_gone(stage: Stage, path: str) -> None:
    body, key = ASKED if path == PATH else chat(0.1, model="simulated"), {"Idempotency-Key": f"gone {path}"}
    async with stage.client() as http:
        first = await http.post(path, json={**body, "stream": True}, headers=key)
        whole = (await http.post(path, json=body, headers=key)).json()
        async with tokens_of(stage, first.headers["x-streamfleet-id"]):
            again = await http.post(path, json={**body, "stream": True}, headers=key)
            read = await http.get(f"/v1/streams/{first.headers['x-streamfleet-id']}")
    *_, last = [json.loads(line[6:]) for line in again.text.splitlines() if line.startswith("data: {")]
    assert [line for line in read.text.splitlines() if line] == [line for line in again.text.splitlines() if line]
    if path == PATH:
        assert last["response"] == whole
    else:
        assert last["choices"][0]["delta"] == whole["choices"][0]["message"]


# -- restarts and kills -------------------------------------------------------------------------------------


@pytest.mark.kill
async def test_a_restart_is_an_error_event_and_the_end(stage: Stage, tmp_path: Path) -> None:
    """Of the stream, and of one that goes on behind a number; who asks for the whole gets the run that counts."""
    body = {**ASKED, "max_output_tokens": 500, "stream": True}
    with ExitStack() as workers:
        first = workers.enter_context(WorkerProcess(stage.url, tmp_path, "first", queue="responses"))
        await first.ready()
        with gateway_on(stage.url, tmp_path, gateway_models="simulated=responses") as gateway:
            async with (
                gateway.http(stage.key) as http,
                reading(http, path=PATH, json=body, headers={"Idempotency-Key": "restarted"}) as sse,
            ):
                events = sse.events()
                for _ in range(10):
                    await anext(events)
                first.destroy()
                await workers.enter_context(WorkerProcess(stage.url, tmp_path, "second", queue="responses")).ready()
                async for _ in events:
                    pass
                *before, last = told(sse.seen)
                assert [each["sequence_number"] for each in (*before, last)] == list(range(len(sse.seen)))
                assert (
                    (last["type"], last["code"])
                    == ("error", "stream_restarted")
                    == (last["type"], last["error"]["code"])
                )
                path = f"{PATH}/{before[0]['response']['id']}?stream=true"
                async with reading(http, "GET", path) as again:
                    whole = told(await again.rest())
                for had in (before, whole[:-1]):  # of the first run, of the second one
                    behind, asks = f"{path}&starting_after={len(had) - 1}", {"X-Streamfleet-Restarts": "event"}
                    refused = await http.get(behind)
                    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stream_restarted")
                    async with reading(http, "GET", behind, headers=asks) as anew:
                        assert (await anext(anew.events())).event == "restart", "and then all that counts"
                        assert told(await anew.rest()) == whole
                assert [each["sequence_number"] for each in whole] == list(range(len(whole)))
                assert text_of(whole).split() == ["[simulated]", *["Say", "hi"] * 249, "Say"]
