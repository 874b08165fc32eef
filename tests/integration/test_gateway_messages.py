"""Messages over HTTP: Anthropic's client, its errors and events, readers that are cut off, kills."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import pytest
import redis.asyncio

from streamfleet.common.message_events import END, STOP, text_of
from streamfleet.common.protocol import Lane
from tests.integration.gateway_process import GatewayProcess, Stage, add_key, gateway_on
from tests.integration.test_gateway_streams import Event, reading
from tests.integration.worker_process import WorkerProcess
from tests.waiting import eventually

PATH = "/v1/messages"
SAY: list[Any] = [{"role": "user", "content": "Say hi"}]
ASKED: dict[str, Any] = {"model": "simulated", "messages": SAY, "max_tokens": 40, "ignore_eos": True}
TEXT = "[simulated] " + " ".join(["Say hi"] * 19) + " Say"
WHOLE: dict[str, Any] = {"model": "simulated", "messages": SAY, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
KINDS = [
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop"),
]


@pytest.fixture
async def claude(stage: Stage) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's client, as it is but for the address."""
    async with anthropic.AsyncAnthropic(base_url=stage.gateway.url, api_key=stage.key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def apart(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway to a queue of its own, whose workers a test starts and ends."""
    with gateway_on(
        stage.url, tmp_path_factory.mktemp("apart"), gateway_models="simulated=messages", max_body_bytes=100_000
    ) as process:
        yield process


def text_in_message(message: Any) -> str:
    """The text of a message of Anthropic's client."""
    (block,) = message.content
    return str(block.text)


def told(events: list[Event]) -> list[dict[str, Any]]:
    """The events' data, each named by its type."""
    found = [json.loads(event.data) for event in events]
    assert [event.event for event in events] == [each["type"] for each in found]
    return found


def text_in(events: list[dict[str, Any]]) -> str:
    return "".join(map(text_of, events))


# -- what a caller gets -------------------------------------------------------------------------------------


async def test_anthropics_client_asks_and_streams(claude: anthropic.AsyncAnthropic) -> None:
    whole = await claude.messages.create(**WHOLE, system="Be kind", metadata={"user_id": "someone"})
    assert (whole.role, whole.stop_reason, whole.usage.output_tokens) == ("assistant", "max_tokens", 40)
    async with claude.messages.stream(**WHOLE) as stream:
        streamed = await stream.get_final_message()
    assert (text_in_message(streamed), streamed.stop_reason) == (TEXT, "max_tokens")
    assert streamed.usage.output_tokens == 40
    assert whole._request_id is not None
    assert whole._request_id.startswith("req_")


async def test_events_are_named_and_in_order_and_make_the_result(stage: Stage) -> None:
    key = {"Idempotency-Key": "message"}
    async with stage.client() as http:
        answer = await http.post(PATH, json={**ASKED, "stream": True})
        async with reading(http, path=PATH, json={**ASKED, "stream": True}, headers=key) as sse:
            events = told(await sse.rest())
        whole = (await http.post(PATH, json=ASKED, headers=key)).json()
        async with reading(http, "GET", f"/v1/streams/{sse.answer.headers['x-streamfleet-id']}") as again:
            assert told(await again.rest()) == events
        other = await http.get(f"/v1/responses/resp_{sse.answer.headers['x-streamfleet-id']}?stream=true")
    assert other.status_code == 404, "it is no response"
    assert list(dict.fromkeys(event["type"] for event in events)) == KINDS
    assert text_in(events) == TEXT == whole["content"][0]["text"]
    assert sum(event["type"] == "content_block_delta" for event in events) > 1
    assert events[-2] == {
        "type": END,
        "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
        "usage": whole["usage"],
    }
    assert {line.partition(":")[0] for line in answer.text.splitlines() if line} == {"event", "data"}


async def test_a_message_whose_events_were_not_kept_has_the_usual_ones(stage: Stage) -> None:
    """It had been asked for without `stream`, or they have gone since."""
    key = {"Idempotency-Key": "message without events"}
    async with stage.client() as http:
        whole = (await http.post(PATH, json=ASKED, headers=key)).json()
        async with reading(http, path=PATH, json={**ASKED, "stream": True}, headers=key) as sse:
            events = told(await sse.rest())
        async with reading(http, "GET", f"/v1/streams/{sse.answer.headers['x-streamfleet-id']}") as again:
            assert told(await again.rest()) == events
    assert [event["type"] for event in events] == KINDS
    assert text_in(events) == whole["content"][0]["text"]


async def test_a_stop_sequence_is_told(claude: anthropic.AsyncAnthropic) -> None:
    asked = {**WHOLE, "stop_sequences": ["hi Say hi"]}
    whole = await claude.messages.create(**asked)
    async with claude.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    for message in (whole, streamed):
        assert (text_in_message(message), message.stop_reason) == ("[simulated] Say ", "stop_sequence")
        assert message.stop_sequence == "hi Say hi"


async def test_max_tokens_is_cut_to_what_the_context_leaves(claude: anthropic.AsyncAnthropic) -> None:
    prompt: list[Any] = [{"role": "user", "content": "word " * 6_500}]
    for asked in (20_000, 1_000_000):
        message = await claude.messages.create(
            model="simulated", messages=prompt, max_tokens=asked, extra_body={"ignore_eos": True}, timeout=60
        )
        assert message.stop_reason == "max_tokens"
        assert message.usage.output_tokens == 8_192 - 8_125


async def test_tokens_are_counted(claude: anthropic.AsyncAnthropic) -> None:
    counted = await claude.messages.count_tokens(model="simulated", messages=SAY, system="Be kind")
    assert counted.input_tokens == 4


async def test_tools_of_anthropic_are_left_out_and_named(stage: Stage) -> None:
    """The simulated engine refuses the others; workers with vLLM take them."""
    search = {"type": "web_search_20250305", "name": "web_search"}
    async with stage.client() as http:
        answer = await http.post(PATH, json={**ASKED, "tools": [search, {"name": "f", "input_schema": {}}]})
        assert answer.headers["x-streamfleet-ignored"] == "tools.web_search"
        refused = await http.post(PATH, json={**ASKED, "tools": [search]})
    assert refused.status_code == 400
    assert "web_search" in refused.json()["error"]["message"]


async def test_models_are_in_the_form_of_whoever_asks(stage: Stage, claude: anthropic.AsyncAnthropic) -> None:
    assert [model.id async for model in claude.models.list()] == ["simulated"]
    assert (await claude.models.retrieve("simulated")).display_name == "simulated"
    async with stage.client() as http:
        assert (await http.get("/v1/models")).json()["object"] == "list"
        listed = (await http.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
        assert set(listed) == {"data", "has_more", "first_id", "last_id"}
        assert listed["data"][0]["max_input_tokens"] == 8_192
        assert (await http.head("/")).status_code == 200


async def test_a_user_is_a_session(stage: Stage, apart: GatewayProcess) -> None:
    async with apart.http(stage.key) as http, redis.asyncio.Redis.from_url(stage.url) as rows:
        asking = asyncio.create_task(http.post(PATH, json={**ASKED, "metadata": {"user_id": "someone"}}))
        found: Any = await eventually(lambda: rows.xrange("{messages}:lane:normal"), 5)
        asking.cancel()
    assert found[0][1][b"session"] == b"someone"


# -- errors -------------------------------------------------------------------------------------------------

LONG: list[Any] = [{"role": "user", "content": "word " * 9_000}]
REFUSED: dict[str, tuple[dict[str, Any], type[anthropic.APIStatusError], int, str, str]] = {
    "a field": (
        {"extra_body": {"temperature": 9}},
        anthropic.BadRequestError,
        400,
        "invalid_request_error",
        "temperature",
    ),
    "a model": ({"model": "none"}, anthropic.NotFoundError, 404, "not_found_error", "none"),
    "a lane": (
        {"extra_headers": {"X-Streamfleet-Lane": "nonsense"}},
        anthropic.BadRequestError,
        400,
        "invalid_request_error",
        "Lane",
    ),
    "too long": ({"messages": LONG}, anthropic.BadRequestError, 400, "invalid_request_error", "prompt is too long"),
    "much too long": (
        {"messages": [{"role": "user", "content": "word " * 90_000}]},
        anthropic.BadRequestError,
        400,
        "invalid_request_error",
        "prompt is too long",
    ),
    "no time": (
        {"extra_headers": {"X-Streamfleet-Ttl": "1ms"}},
        anthropic.APIStatusError,
        504,
        "timeout_error",
        "deadline",
    ),
}


def check_error(error: anthropic.APIStatusError, status: int, kind: str, said: str) -> None:
    assert isinstance(error.body, dict)
    assert error.status_code == status
    assert (error.body["type"], error.body["error"]["type"]) == ("error", kind)
    assert said in error.body["error"]["message"]
    assert error.body["request_id"] == error.response.headers["request-id"]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", REFUSED)
async def test_errors_have_anthropics_form(claude: anthropic.AsyncAnthropic, name: str, streams: bool) -> None:
    changes, kind_of_error, status, kind, said = REFUSED[name]
    with pytest.raises(kind_of_error) as caught:
        await claude.messages.create(**{**WHOLE, **changes}, stream=streams)
    check_error(caught.value, status, kind, said)
    if "too long" in said:
        assert isinstance(caught.value.body, dict)
        (found,) = re.findall(
            r"prompt is too long: (\d+) tokens > (\d+) maximum", caught.value.body["error"]["message"]
        )
        assert int(found[0]) > int(found[1]) == 8_192


async def test_keys_lanes_and_limits_have_anthropics_errors(stage: Stage) -> None:
    limited, _ = await add_key(stage.url, "limited", limits=(1, 100_000))
    low, _ = await add_key(stage.url, "low", lanes=(Lane.LOW,))
    url = stage.gateway.url

    async def refused(key: str | None, **headers: str) -> anthropic.APIStatusError:
        given: Any = {"auth_token": key} if key and "bearer" in headers else {"api_key": key or ""}
        headers.pop("bearer", None)
        async with anthropic.AsyncAnthropic(base_url=url, max_retries=0, **given) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.create(**WHOLE, extra_headers=headers)
        return caught.value

    check_error(await refused("sf-nonsense"), 401, "authentication_error", "not valid")
    check_error(await refused("sf-nonsense", bearer="1"), 401, "authentication_error", "not valid")
    check_error(await refused(low, **{"X-Streamfleet-Lane": "high"}), 403, "permission_error", "high")
    async with stage.gateway.http() as http:
        counted = await http.post(f"{PATH}/count_tokens", json={"messages": SAY}, headers={"x-api-key": low})
    assert counted.status_code == 200
    async with anthropic.AsyncAnthropic(base_url=url, auth_token=limited, max_retries=0) as client:
        answer = await client.messages.with_raw_response.create(**WHOLE)
    for what, limit in (("requests", "1"), ("tokens", "100000")):
        head = f"anthropic-ratelimit-{what}"
        assert answer.headers[f"{head}-limit"] == limit
        assert int(answer.headers[f"{head}-remaining"]) < int(limit)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", answer.headers[f"{head}-reset"])
    over = await refused(limited)
    check_error(over, 429, "rate_limit_error", "limit of 1 requests")
    assert int(over.response.headers["retry-after"]) > 0
    assert over.response.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert not [name for name in over.response.headers if name.startswith("x-ratelimit")]


async def test_counting_tokens_takes_none_of_the_limit(stage: Stage) -> None:
    few, _ = await add_key(stage.url, "few", limits=(None, 20))
    async with anthropic.AsyncAnthropic(base_url=stage.gateway.url, api_key=few, max_retries=0) as client:
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**WHOLE)
        for _ in range(3):
            answer = await client.messages.with_raw_response.count_tokens(model="simulated", messages=SAY)
            assert answer.headers["anthropic-ratelimit-tokens-remaining"] == "20"


async def test_a_key_with_fewer_tokens_than_a_client_asks_for_is_answered(stage: Stage) -> None:
    some, _ = await add_key(stage.url, "some", limits=(None, 2_000))
    async with anthropic.AsyncAnthropic(base_url=stage.gateway.url, api_key=some, max_retries=0) as client:
        answer = await client.messages.create(model="simulated", messages=SAY, max_tokens=32_000, timeout=60)
    assert answer.usage.output_tokens < 2_000


async def test_a_large_body_and_a_full_lane_have_anthropics_errors(
    stage: Stage, apart: GatewayProcess, tmp_path: Path
) -> None:
    async with apart.http(stage.key) as http:
        large = await http.post(PATH, json={**ASKED, "system": "x" * 200_000})
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    with gateway_on(stage.url, tmp_path, gateway_models="simulated=full", lane_limit=1) as gateway:
        async with gateway.http(stage.key) as http, redis.asyncio.Redis.from_url(stage.url) as rows:
            first = asyncio.create_task(http.post(PATH, json=ASKED))
            await eventually(lambda: rows.xlen("{full}:lane:normal"), 5)
            full = await http.post(PATH, json=ASKED)
            first.cancel()
    assert (full.status_code, full.json()["error"]["type"]) == (529, "overloaded_error")
    assert int(full.headers["retry-after"]) > 0


# -- restarts and kills -------------------------------------------------------------------------------------


@pytest.mark.kill
@pytest.mark.parametrize(("end", "goes_on"), [(signal.SIGTERM, True), (signal.SIGKILL, False)])
async def test_a_stream_goes_on_or_ends_with_an_error(
    stage: Stage, apart: GatewayProcess, tmp_path: Path, end: signal.Signals, goes_on: bool
) -> None:
    """A worker that hands its work back keeps the output; of one that is killed, the reader is told."""
    body = {**ASKED, "max_tokens": 400, "stream": True}
    with ExitStack() as workers:
        first = workers.enter_context(WorkerProcess(stage.url, tmp_path, "first", queue="messages", drain_ms=0))
        await first.ready()
        async with apart.http(stage.key) as http, reading(http, path=PATH, json=body) as sse:
            events = sse.events()
            for _ in range(8):
                await anext(events)
            first.send(end)
            await workers.enter_context(WorkerProcess(stage.url, tmp_path, "second", queue="messages")).ready()
            async for _ in events:
                pass
    found = told(sse.seen)
    if goes_on:
        assert list(dict.fromkeys(event["type"] for event in found)) == KINDS
        assert [event["type"] for event in found].count("message_start") == 1
        assert text_in(found).split() == ["[simulated]", *["Say", "hi"] * 199, "Say"]
    else:
        assert found[-1]["error"]["type"] == "overloaded_error"
        assert STOP not in [event["type"] for event in found]
