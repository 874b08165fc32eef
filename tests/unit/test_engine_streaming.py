"""Each engine's result from a streamed answer; the servers are replaced, all else is real."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from streamfleet.common.protocol import CHAT, COMPLETIONS, EMBEDDINGS, Lane
from streamfleet.worker.engine.asgi import Receive, Send, post
from streamfleet.worker.engine.base import (
    EngineAborted,
    EngineDied,
    EngineReply,
    EngineRequest,
    EngineUnavailable,
    Text,
)
from streamfleet.worker.engine.openai import OpenAIEngine, Upstream
from streamfleet.worker.engine.simulated import SimulatedEngine
from tests.clocks import HandClock
from tests.unit.test_engine_openai import started as openai_started
from tests.unit.test_engine_simulated import started as simulated_started
from tests.unit.test_engine_sse_parser import ANSWER, delta, wire
from tests.unit.test_engine_vllm import Stand, stand

__all__ = ["stand"]
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}


class Collected:
    """A streamed request, and what came of it."""

    def __init__(self, endpoint: str = CHAT, *, tells_usage: bool = False, **body: Any) -> None:
        self.lines: list[bytes | Text] = []
        given = {"messages": [{"role": "user", "content": "Count to three please"}], **body}
        self.request = EngineRequest(
            "r-1", endpoint, given, Lane.HIGH, on_chunk=self.lines.append, tells_usage=tells_usage
        )

    @property
    def chunks(self) -> list[Any]:
        return [json.loads(bytes(line)) for line in self.lines]

    def text(self, index: int = 0) -> str:
        """The text of a choice, from all its chunks."""
        found = ""
        for chunk in self.chunks:
            for choice in chunk["choices"]:
                if choice["index"] == index:
                    found += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        return found


def whole(reply: EngineReply) -> Any:
    return json.loads(reply.body)


@pytest.mark.parametrize("number", [1, 3])
async def test_simulated_chunks_say_what_the_answer_says(number: int) -> None:
    async with simulated_started(clock=HandClock(), speed=1.0) as engine:
        asked = Collected(max_tokens=6, ignore_eos=True, n=number, tells_usage=True)
        reply = await engine.run(asked.request)
        plain = await engine.run(EngineRequest("r-1", CHAT, asked.request.body, Lane.HIGH))
    texts = [choice["message"]["content"] for choice in whole(reply)["choices"]]
    assert [asked.text(index) for index in range(number)] == texts
    assert whole(reply)["choices"] == whole(plain)["choices"]
    assert len(asked.chunks) > number * 6, "one a token"
    assert asked.chunks[-1]["usage"] == whole(reply)["usage"]
    ends = [choice["finish_reason"] for chunk in asked.chunks[-1 - number : -1] for choice in chunk["choices"]]
    assert ends == ["length"] * number
    assert {chunk["object"] for chunk in asked.chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("stop", ["three", "t t", "]", "[", " to"])
async def test_simulated_chunks_end_where_the_answer_stops(stop: str) -> None:
    async with simulated_started() as engine:
        asked = Collected(max_tokens=9, ignore_eos=True, stop=stop)
        (choice,) = whole(await engine.run(asked.request))["choices"]
    assert asked.text() == choice["message"]["content"]
    assert asked.chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "stop"


async def test_simulated_completions_stream_and_embeddings_do_not() -> None:
    async with simulated_started() as engine:
        text = Collected(COMPLETIONS, prompt=["one two", "three"], max_tokens=3)
        reply = await engine.run(text.request)
        assert [text.text(index) for index in range(2)] == [choice["text"] for choice in whole(reply)["choices"]]
        vector = Collected(EMBEDDINGS, input="hello")
        assert (await engine.run(vector.request)).status == 200
        assert vector.lines == []


async def test_simulated_chunks_come_while_it_runs() -> None:
    engine = SimulatedEngine(clock=(clock := HandClock()))
    await engine.start()
    asked = Collected(max_tokens=8, ignore_eos=True)
    seen: list[float] = []
    asked.request.on_chunk = lambda _: seen.append(clock.seconds)
    await engine.run(asked.request)
    await engine.stop()
    assert seen == sorted(seen)
    assert len(set(seen)) >= 8, "a step apart"


async def test_simulated_drops_leave_no_end() -> None:
    async with simulated_started() as engine:
        engine.faults.aborts = 1
        asked = Collected(max_tokens=3)
        with pytest.raises(EngineAborted):
            await engine.run(asked.request)
    assert asked.chunks
    assert all(choice["finish_reason"] is None for chunk in asked.chunks for choice in chunk["choices"])


def answering(content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, content=content, headers=EVENTS if headers is None else headers)

    return answer, seen


async def test_openai_asks_for_a_stream_and_gives_the_whole() -> None:
    answer, seen = answering(wire(*ANSWER))
    async with openai_started(answer) as engine:
        asked = Collected()
        reply = await engine.run(asked.request)
    sent = json.loads(seen[0].content)
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    assert asked.chunks == list(ANSWER[:4])
    assert whole(reply)["choices"][0]["message"]["content"] == "Hello"
    assert whole(reply)["usage"] == {"completion_tokens": 2}
    assert reply.first_token_ms is not None


async def test_openai_does_not_ask_where_nobody_reads_along() -> None:
    answer, seen = answering(b'{"choices": []}', headers={})
    async with openai_started(answer) as engine:
        await engine.run(EngineRequest("r-1", CHAT, {"messages": []}, Lane.HIGH))
        await engine.run(Collected(EMBEDDINGS, input="x").request)
    assert all("stream" not in json.loads(request.content) for request in seen)


async def test_openai_takes_a_server_that_does_not_stream_at_its_word() -> None:
    body = b'{"choices": [{"finish_reason": "stop"}]}'
    answer, _ = answering(body, headers={"Content-Type": "application/json"})
    async with openai_started(answer) as engine:
        asked = Collected()
        assert (await engine.run(asked.request)).body == body
    assert asked.lines == []


@pytest.mark.parametrize(
    "content", [wire(*ANSWER[:3], done=False), b"", wire(*ANSWER)[:-3]], ids=["cut", "empty", "end"]
)
async def test_openai_answers_that_break_off_are_tried_again(content: bytes) -> None:
    answer, _ = answering(content)
    async with openai_started(answer) as engine:
        with pytest.raises(EngineUnavailable, match="broke off"):
            await engine.run(Collected().request)


@pytest.mark.parametrize(("code", "raises"), [(400, False), (429, True), (500, True), (None, False)])
async def test_openai_errors_among_the_chunks_are_judged_like_others(code: int | None, raises: bool) -> None:
    answer, _ = answering(wire(ANSWER[1], {"error": {"message": "no such thing", "code": code}}))
    async with openai_started(answer) as engine:
        if raises:
            with pytest.raises(EngineUnavailable, match=f"answers {code}"):
                await engine.run(Collected().request)
        else:
            reply = await engine.run(Collected().request)
            assert (reply.status, whole(reply)["error"]["message"]) == (400, "no such thing")


async def test_openai_aborts_are_no_success() -> None:
    answer, _ = answering(wire(ANSWER[1], delta(finish="abort")))
    async with openai_started(answer) as engine:
        asked = Collected()
        with pytest.raises(EngineAborted):
            await engine.run(asked.request)
    assert asked.chunks == [ANSWER[1]]


async def test_openai_endless_streams_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfleet.worker.engine.openai.MOST_ANSWER_BYTES", 1_000)
    answer, _ = answering(wire(*[delta("x" * 100)] * 20))
    async with openai_started(answer, Upstream("http://example.test")) as engine:
        assert isinstance(engine, OpenAIEngine)
        with pytest.raises(EngineUnavailable, match="more than 1000 bytes"):
            await engine.run(Collected().request)


def streams(stand: Stand, *parts: bytes) -> None:
    """Have the application answer with an event stream."""

    async def send_all(send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    stand.streams = send_all


async def run(stand: Stand, asked: Collected) -> EngineReply:
    assert stand.engine is not None
    return await stand.engine.run(asked.request)


async def test_vllm_chunks_go_on_and_the_whole_comes_back(stand: Stand) -> None:
    content = wire(*ANSWER)
    streams(stand, content[:7], content[7:60], content[60:])
    asked = Collected(tells_usage=True)
    reply = await run(stand, asked)
    assert asked.chunks == list(ANSWER)
    assert whole(reply)["choices"][0]["message"]["content"] == "Hello"
    assert reply.first_token_ms == pytest.approx(25)
    assert stand.asked["stream"] is True


async def test_vllm_refusals_before_the_first_token_are_as_ever(stand: Stand) -> None:
    stand.status, stand.body = 400, b'{"error": {"message": "too long", "param": "messages"}}'
    asked = Collected()
    reply = await run(stand, asked)
    assert (reply.status, reply.body, asked.lines) == (400, stand.body, [])


async def test_vllm_errors_among_the_chunks_fail_the_request(stand: Stand) -> None:
    streams(stand, wire({"error": {"message": "bad grammar", "type": "BadRequestError", "code": 400}}))
    reply = await run(stand, Collected())
    assert (reply.status, whole(reply)["error"]["message"]) == (400, "bad grammar")


async def test_vllm_errors_of_a_dead_engine_are_its_death(stand: Stand) -> None:
    streams(stand, wire(ANSWER[1], {"error": {"message": "EngineDeadError", "code": 500}}))
    stand.front.errored = True
    with pytest.raises(EngineDied):
        await run(stand, Collected())


async def test_vllm_aborts_are_no_success_and_no_end_for_readers(stand: Stand) -> None:
    streams(stand, wire(ANSWER[1], delta(finish="abort")))
    asked = Collected()
    with pytest.raises(EngineAborted):
        await run(stand, asked)
    assert asked.chunks == [ANSWER[1]]


async def test_vllm_answers_that_break_off_are_no_answers(stand: Stand) -> None:
    streams(stand, wire(ANSWER[1], done=False))
    assert (await run(stand, Collected())).status == 500


async def test_only_event_streams_go_part_by_part() -> None:
    parts: list[bytes] = []

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"{}"})

    response = await post(app, "/", {}, b"", parts.append)
    assert (response.body, response.streamed, parts) == (b"{}", False, [])
