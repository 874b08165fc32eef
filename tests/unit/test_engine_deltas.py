"""Chunks of plain streamed answers, made of vLLM's outputs. Small objects stand in for vLLM's; the real ones are in
tests/contract/test_both_ways.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from streamfleet.common.protocol import CHAT, COMPLETIONS, Lane
from streamfleet.worker.engine import direct, vllm_host
from streamfleet.worker.engine.base import EngineAborted, EngineReply, EngineRequest
from streamfleet.worker.engine.vllm import VllmEngine
from tests.unit.test_engine_direct import ASKED, Answer, Server, started

WORDS = ["Rain", " and\u2028", "", " snow"]


class Kind(Enum):
    DELTA = 1
    FINAL_ONLY = 2


class Model(Server):
    """Generates `WORDS`, one an output. Its serving object answers with what the last output has that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = "stop"
        self.fails: Exception | None = None
        self.params: Any = None
        self.does = self.answers

    async def generate(self, _prompt: Any, params: Any, _id: str, **_: Any) -> AsyncIterator[Any]:
        self.params = params
        for number, text in enumerate(WORDS):
            last = number + 1 == len(WORDS)
            if last and self.fails is not None:
                raise self.fails
            ended = self.ends if last else None
            choice = SimpleNamespace(text=text, token_ids=[number], logprobs=None, finish_reason=ended, stop_reason=7)
            yield SimpleNamespace(outputs=[choice], prompt_token_ids=[1, 2], finished=last)

    async def answers(self, request: Answer) -> Any:
        await self.engine_core.add_request_async(request)
        params = SimpleNamespace(output_kind=Kind.FINAL_ONLY, stream_interval=request.body.get("stream_interval"))
        name = "cmpl-r-1-0" if "prompt" in request.body else "chatcmpl-r-1"
        outputs = self.generate({"type": "text"}, params, name, lora_request="adapter")
        (only,) = [output async for output in outputs]
        choice = only.outputs[0]
        answer = Answer({"text": choice.text, "ids": choice.token_ids, "choices": [vars(choice)]})
        answer.usage = {"total_tokens": 6}  # type: ignore[attr-defined]
        return answer


@pytest.fixture
async def model() -> Model:
    return Model()


@pytest.fixture
async def engine(model: Model, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VllmEngine]:
    monkeypatch.setattr(vllm_host, "look", lambda _place, _name: Answer)
    engine = await started(model, monkeypatch)
    yield engine
    await engine.stop()


async def streamed(
    engine: VllmEngine, endpoint: str = CHAT, body: Any = ASKED, **more: Any
) -> tuple[EngineReply, list[Any]]:
    chunks: list[Any] = []
    request = EngineRequest("r-1", endpoint, body, Lane.HIGH, on_chunk=lambda each: chunks.append(bytes(each)), **more)
    reply = await engine.run(request)
    assert not any(end in chunk for chunk in chunks for end in (b"\n", "\u2028".encode()))
    return reply, [json.loads(chunk) for chunk in chunks]


async def test_a_reader_gets_each_text_and_the_answer_is_that_of_an_unstreamed_request(engine: VllmEngine) -> None:
    reply, chunks = await streamed(engine)
    answer = json.loads(reply.body)
    assert (reply.status, answer["text"], answer["ids"]) == (200, "Rain and\u2028 snow", [0, 1, 2, 3])
    assert {(chunk["id"], chunk["model"], chunk["object"]) for chunk in chunks} == {
        ("chatcmpl-r-1", "adapter", "chat.completion.chunk")
    }
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Rain"},
        {"content": " and\u2028"},
        {"content": " snow"},
    ]
    ends = [(chunk["choices"][0]["finish_reason"], chunk["choices"][0].get("stop_reason")) for chunk in chunks]
    assert ends == [(None, None)] * 3 + [("stop", 7)]


async def test_a_completion_has_texts(engine: VllmEngine) -> None:
    _, chunks = await streamed(engine, COMPLETIONS, {"prompt": "x"})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "".join(WORDS)
    assert {(chunk["id"], chunk["object"]) for chunk in chunks} == {("cmpl-r-1", "text_completion")}


async def test_tokens_are_counted_in_a_chunk_of_their_own_where_they_are_wanted(engine: VllmEngine) -> None:
    _, chunks = await streamed(engine, tells_usage=True)
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], {"total_tokens": 6})


async def test_what_the_engine_dropped_has_no_end(engine: VllmEngine, model: Model) -> None:
    model.ends = "abort"
    chunks: list[Any] = []
    request = EngineRequest("r-1", CHAT, ASKED, Lane.HIGH, on_chunk=lambda each: chunks.append(bytes(each)))
    with pytest.raises(EngineAborted):
        await engine.run(request)
    assert [json.loads(chunk)["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 3


async def test_an_error_is_that_of_an_unstreamed_request(engine: VllmEngine, model: Model) -> None:
    model.fails = RuntimeError("broken")
    reply, chunks = await streamed(engine)
    assert (reply.status, json.loads(reply.body)["error"]["message"]) == (500, "told")
    assert (len(chunks), model.sent, model.by_application) == (3, ["r-1"], 0)


def parse() -> None:
    """Stands in for the method of vLLM's usual parser."""


@pytest.mark.parametrize(
    ("body", "parser", "handed_out"),
    [
        ({"temperature": 0.5, "n": 1, "tools": [], "logprobs": False, "unknown": None}, None, True),
        ({"tools": [{"type": "function"}]}, None, False),
        ({"n": 2}, None, False),
        ({"logprobs": True}, None, False),
        ({"logprobs": 0}, None, False),
        ({"return_token_ids": True}, None, False),
        ({"echo": True}, None, False),
        ({"prompt": "x"}, None, True),
        ({"prompt": [1, 2]}, None, True),
        ({"prompt": ["x", "y"]}, None, False),
        ({"prompt": [[1], [2]]}, None, False),
        ({}, SimpleNamespace(parse=print, reasoning_parser_cls=None), False),
        ({}, SimpleNamespace(parse=parse, reasoning_parser_cls=object), False),
        ({}, SimpleNamespace(parse=parse, reasoning_parser_cls=None), True),
    ],
)
def test_only_an_answer_that_is_its_text_is_handed_out(
    monkeypatch: pytest.MonkeyPatch, body: Any, parser: Any, handed_out: bool
) -> None:
    monkeypatch.setattr(vllm_host, "look", lambda _place, _name: SimpleNamespace(parse=parse))
    some: Any = None
    way = direct._Way(some, some, some, some, some, parser=parser)
    assert way.hands_out(Answer(body)) is handed_out


@pytest.mark.parametrize(
    ("asked", "more", "set_to"),
    [
        ({}, {"chunk_every_s": 0.05}, 5),
        ({}, {"chunk_every_s": 0.003}, 1),
        ({"stream_interval": 2}, {"chunk_every_s": 0.05}, 2),
        ({"stream_interval": 99}, {"chunk_every_s": 0.05}, 5),
        ({}, {}, None),
        ({"stream_interval": 99}, {}, 99),
    ],
)
async def test_vllm_makes_an_output_as_often_as_a_reader_gets_a_chunk(
    engine: VllmEngine, model: Model, asked: Any, more: Any, set_to: int | None
) -> None:
    engine._watchdog.step_s = 0.012
    await streamed(engine, body={**ASKED, **asked}, **more)
    assert (model.params.output_kind, model.params.stream_interval) == (Kind.DELTA, set_to)


@pytest.mark.parametrize("other", ["unstreamed", "of a parser", "a release without it", "an engine that has not begun"])
async def test_all_other_outputs_come_as_vllm_makes_them(engine: VllmEngine, model: Model, other: str) -> None:
    engine._watchdog.step_s = 0 if other == "an engine that has not begun" else 0.012
    request = EngineRequest("r-1", CHAT, {"tools": [{}]} if other == "of a parser" else {}, Lane.HIGH)
    request.on_chunk, request.chunk_every_s = None if other == "unstreamed" else print, 0.05
    params = SimpleNamespace(output_kind=Kind.DELTA, stream_interval=None)
    if other == "a release without it":
        del params.stream_interval
    before = dict(vars(params))
    vllm_host._stream(vllm_host.Progress(request), params, "r-1", step_s=engine._watchdog.step_s)
    assert vars(params) == before
