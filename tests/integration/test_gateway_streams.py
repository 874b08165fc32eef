"""Tokens over HTTP while they come: OpenAI's client, readers that come back or leave, restarts that are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis.asyncio

from tests.integration.gateway_process import GatewayProcess, Stage, add_key, gateway_on, status_of
from tests.integration.worker_process import WorkerProcess, chat
from tests.waiting import eventually

PATH = "/v1/chat/completions"
MESSAGES: list[Any] = [{"role": "user", "content": "Count with me"}]


@pytest.fixture(scope="module")
def apart(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway to a queue of its own, whose workers a test starts and kills."""
    with gateway_on(
        stage.url,
        tmp_path_factory.mktemp("apart"),
        gateway_models="simulated=apart",
    ) as process:
        yield process


@dataclass
class Event:
    """One server-sent event."""

    id: str = ""
    event: str = ""
    data: str = ""

    @property
    def text(self) -> str:
        """The text that it adds to the first choice."""
        choices = json.loads(self.data).get("choices") or [{}]
        return str(choices[0].get("delta", {}).get("content") or "")


@dataclass
class Sse:
    """A stream that is being read.

    Attributes:
        answer: its headers.
        seen: all events so far.
    """

    answer: httpx.Response
    seen: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lines = self.answer.aiter_lines()  # which can be had once

    async def events(self) -> AsyncIterator[Event]:
        event = Event()
        async for line in self._lines:
            if not line:
                self.seen.append(event)
                yield event
                event = Event()
            else:
                name, _, value = line.partition(":")
                setattr(event, name, value.strip())

    async def rest(self) -> list[Event]:
        """All that is still to come."""
        return [event async for event in self.events()]


@asynccontextmanager
async def reading(http: httpx.AsyncClient, method: str = "POST", path: str = PATH, **more: Any) -> AsyncIterator[Sse]:
    async with http.stream(method, path, **more) as answer:
        if answer.status_code == 200:
            assert answer.headers["content-type"].startswith("text/event-stream")
        yield Sse(answer)


def joined(events: list[Event]) -> str:
    """The text of all chunks; the last event is the end."""
    assert events[-1].data == "[DONE]"
    return "".join(event.text for event in events[:-1])


# -- OpenAI's client ---------------------------------------------------------------------------------------


async def test_a_stream_has_the_text_of_the_whole_answer(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(model="simulated", messages=MESSAGES, max_tokens=20)
    stream = await sdk.chat.completions.create(model="simulated", messages=MESSAGES, max_tokens=20, stream=True)
    chunks = [chunk async for chunk in stream]
    assert len(chunks) > 5
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    asked = whole.choices[0].message.content or ""
    assert text.split()[:3] == asked.split()[:3] == ["[simulated]", "Count", "with"]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")
    assert all(chunk.usage is None for chunk in chunks)


async def test_completions_stream_too(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.completions.create(model="simulated", prompt="Once upon", max_tokens=4, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream if chunk.choices]).startswith("[simulated] Once")


async def test_usage_comes_last_for_who_asks(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="simulated", messages=MESSAGES, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    *_, last = [chunk async for chunk in stream]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 4


async def test_usage_comes_along_for_who_asks(sdk: openai.AsyncOpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = await sdk.chat.completions.create(
        model="simulated", messages=MESSAGES, max_tokens=4, stream=True, stream_options=options
    )
    counts = [chunk.usage.completion_tokens for chunk in [chunk async for chunk in stream] if chunk.usage]
    assert counts == [0, 1, 2, 3, 4, 4, 4]


async def test_what_fails_before_the_first_token_is_a_plain_error(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(model="simulated", messages=MESSAGES, temperature=9, stream=True)
    assert caught.value.param == "temperature"


async def test_tokens_come_before_the_answer_is_there(stage: Stage) -> None:
    async with (
        redis.asyncio.Redis.from_url(stage.url) as rows,
        stage.client() as http,
        reading(http, json=chat(4, model="simulated", stream=True)) as sse,
    ):
        async for _ in sse.events():
            break
        assert not await rows.exists(f"{{default}}:result:{sse.answer.headers['x-streamfleet-id']}")
        assert (await sse.rest())[-1].data == "[DONE]"
    sample = "streamfleet_gateway_first_token_seconds_count"
    assert stage.gateway.metric(sample) >= 1
    await eventually(lambda: stage.gateway.metric("streamfleet_gateway_streams_open") == 0, 5)


async def test_a_stream_may_be_longer_than_the_silence_that_its_client_bears(stage: Stage) -> None:
    """OpenAI's clients send their time-out by themselves: of a stream it is that between two chunks."""
    headers = {"X-Stainless-Read-Timeout": "0.2"}
    body = chat(1.8, model="simulated", stream=True)
    async with stage.client() as http, reading(http, json=body, headers=headers) as sse:
        assert joined(await sse.rest())


# -- coming back -------------------------------------------------------------------------------------------


async def test_a_reader_that_was_cut_goes_on_where_it_was(stage: Stage) -> None:
    """By a repeated POST with its Idempotency-Key, and by GET with the request's id, each behind the last event."""
    body = {**chat(1.5, model="simulated", stream=True)}
    key = {"Idempotency-Key": "read-on"}
    async with stage.client() as http:
        async with reading(http, json=body, headers=key) as first:
            async for _ in first.events():
                if len(first.seen) == 10:
                    break
        last = {"Last-Event-ID": first.seen[-1].id}
        async with reading(http, json=body, headers={**key, **last}) as second:
            async for _ in second.events():
                if len(second.seen) == 20:
                    break
        assert second.answer.headers["x-streamfleet-id"] == first.answer.headers["x-streamfleet-id"]
        path = f"/v1/streams/{first.answer.headers['x-streamfleet-id']}"
        last = {"Last-Event-ID": second.seen[-1].id}
        async with reading(http, "GET", path, headers=last) as third:
            rest = await third.rest()
        async with reading(http, "GET", path) as again:
            everything = await again.rest()
    pieces = [event.id for event in (*first.seen, *second.seen, *rest)]
    assert pieces == [event.id for event in everything], "each event once, in order"
    assert joined([*first.seen, *second.seen, *rest]) == joined(everything)
    assert len(everything) > 30


async def test_a_stream_without_tokens_left_is_one_chunk(stage: Stage) -> None:
    """It had been asked for without `stream`, or its tokens have gone since."""
    key, body = {"Idempotency-Key": "whole first"}, chat(0.1, model="simulated")
    async with stage.client() as http:
        whole = await http.post(PATH, json=body, headers=key)
        async with reading(http, json={**body, "stream": True}, headers=key) as sse:
            events = await sse.rest()
    assert joined(events) == whole.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "resumes",
    [
        {},
        {"Idempotency-Key": "ids"},
        {"X-Streamfleet-On-Disconnect": "continue"},
        {"X-Streamfleet-Event-Ids": "send"},
    ],
    ids=str,
)
async def test_events_have_ids_for_those_who_can_resume(stage: Stage, resumes: dict[str, str]) -> None:
    """All others get `data:` lines, and nothing else."""
    body = chat(0.5, model="simulated", stream=True)
    async with stage.client() as http:
        answer = await http.post(PATH, json=body, headers=resumes)
        again = await http.get(f"/v1/streams/{answer.headers['x-streamfleet-id']}")
    fields = {line.partition(":")[0] for line in answer.text.splitlines() if line}
    assert fields == ({"id", "data"} if resumes else {"data"})
    chunks = [line for line in again.text.splitlines() if line.startswith("data:")]
    assert [line for line in answer.text.splitlines() if line.startswith("data:")] == chunks
    assert again.text.count("id: ") == len(chunks) - 1, "all but [DONE]"


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_eventsource_ends_when_its_stream_has_ended(stage: Stage, streamed: bool) -> None:
    """It comes back after each 200 behind its last id, by the standard, until it gets another status."""
    async with stage.client() as http:
        asked = await http.post(PATH, json=chat(0.1, model="simulated", stream=streamed))
        path, last, seen = f"/v1/streams/{asked.headers['x-streamfleet-id']}", "", 0
        events: list[Event] = []
        ended = None
        while ended is None and seen < 100:
            async with reading(http, "GET", path, headers={"Last-Event-ID": last} if last else {}) as sse:
                if sse.answer.status_code != 200:
                    ended = sse.answer
                    break
                events = await sse.rest()
            seen += len(events)
            last = next((event.id for event in reversed(events) if event.id), last)
    assert ended is not None
    assert (ended.status_code, ended.headers.get("content-length")) == (204, None)
    assert seen == len(events), "it came back once"


@pytest.mark.parametrize("last", ["nonsense", "1-0", "x/y"])
async def test_an_event_id_that_is_none_is_refused(stage: Stage, last: str) -> None:
    async with stage.client() as http:
        body = chat(0.1, model="simulated", stream=True)
        answer = await http.post(PATH, json=body, headers={"Last-Event-ID": last, "Idempotency-Key": f"odd {last}"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_streams_use_up_tokens_too(stage: Stage) -> None:
    key, _ = await add_key(stage.url, "streaming", limits=(None, 500))
    async with stage.gateway.http(key) as http:
        async with reading(http, json=chat(0.05, model="simulated", stream=True)) as sse:
            events = await sse.rest()
        assert events[-1].data == "[DONE]"

        async def left() -> int:
            return int((await http.get("/v1/models")).headers["x-ratelimit-remaining-tokens"])

        await eventually(lambda: _at_least(left, 485), 2, "what was reserved and not used is back")


async def _at_least(left: Any, tokens: int) -> bool:
    return bool(await left() >= tokens)


# -- going away, starting anew -----------------------------------------------------------------------------


async def test_a_reader_that_leaves_cancels_its_request(stage: Stage) -> None:
    async with stage.client() as http, reading(http, json=chat(15, model="simulated", stream=True)) as sse:
        async for _ in sse.events():
            break
        asked = sse.answer.headers["x-streamfleet-id"]
    assert await eventually(lambda: status_of(stage.url, asked), 5, "it ends") == "cancelled"
    await eventually(lambda: stage.worker.metric("streamfleet_running") == 0, 10, "the engine has dropped it")


@pytest.mark.kill
async def test_a_restart_is_told_and_never_glued_on(stage: Stage, apart: GatewayProcess, tmp_path: Path) -> None:
    """Two readers of one worker that is killed: one is told that it begins anew, the other gets an error."""
    body = chat(5, model="simulated", stream=True)
    with ExitStack() as workers:
        first = workers.enter_context(WorkerProcess(stage.url, tmp_path, "first", queue="apart"))
        await first.ready()
        async with (
            apart.http(stage.key) as http,
            openai.AsyncOpenAI(base_url=f"{apart.url}/v1", api_key=stage.key, max_retries=0) as sdk,
            reading(http, json=body, headers={"X-Streamfleet-Restarts": "event"}) as sse,
        ):
            plain = await sdk.chat.completions.create(
                model="simulated", messages=MESSAGES, max_tokens=500, stream=True, extra_body={"ignore_eos": True}
            )
            events = sse.events()
            for _ in range(20):
                await anext(events)
            await anext(plain)
            first.destroy()
            await workers.enter_context(WorkerProcess(stage.url, tmp_path, "second", queue="apart")).ready()
            with pytest.raises(openai.APIError) as caught:
                async for _ in plain:
                    pass
            assert caught.value.code == "stream_restarted"
            async for _ in events:
                pass
        told = [index for index, event in enumerate(sse.seen) if event.event == "restart"]
        assert len(told) == 1
        assert joined(sse.seen[told[0] + 1 :]).split() == ["[simulated]", *["Say", "hi"] * 249, "Say"]


async def test_many_read_at_once(stage: Stage) -> None:
    async with stage.client() as http:

        async def one(number: int) -> str:
            body = chat(0.3, model="simulated", stream=True)
            async with reading(http, json={**body, "user": str(number)}) as sse:
                return joined(await sse.rest())

        texts = await asyncio.gather(*(one(number) for number in range(40)))
    assert len(set(texts)) == 1
