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
from streamfleet.worker.engine.vllm_host import MOST_TOKENS
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


BY_TEXT, BY_ENGINE = (SimpleNamespace(engine_based_streaming=each) for each in (False, True))


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
        ({}, SimpleNamespace(parse=print, reasoning_parser_cls=None, tool_parser_cls=BY_TEXT), False),
        ({}, SimpleNamespace(parse=parse, reasoning_parser_cls=object, tool_parser_cls=BY_TEXT), False),
        ({}, SimpleNamespace(parse=parse, reasoning_parser_cls=None, tool_parser_cls=BY_ENGINE), False),
        ({}, SimpleNamespace(parse=parse, reasoning_parser_cls=None, tool_parser_cls=BY_TEXT), True),
        (
            {"tool_choice": None},
            SimpleNamespace(parse=parse, reasoning_parser_cls=None, tool_parser_cls=BY_TEXT),
            False,
        ),
    ],
)
def test_only_an_answer_that_is_its_text_is_handed_out(
    monkeypatch: pytest.MonkeyPatch, body: Any, parser: Any, handed_out: bool
) -> None:
    monkeypatch.setattr(vllm_host, "look", lambda _place, _name: SimpleNamespace(parse=parse))
    some: Any = None
    way = direct._Way(some, some, some, some, some, parser=parser)
    asked = Answer(body)
    asked.__dict__.setdefault("tool_choice", "none")
    assert way.hands_out(asked) is handed_out


@pytest.mark.parametrize(
    ("asked", "chunk_every_s", "token_s", "set_to"),
    [
        ({}, 0.05, 0.018, 3),
        ({}, 0.05, 0.004, MOST_TOKENS),
        ({}, 0.05, 0.022, 2),
        ({}, 0.003, 0.02, 1),
        ({}, 0.05, 0, 1),
        ({"stream_interval": 2}, 0.05, 0.02, 2),
        ({"stream_interval": 99}, 0.05, 0.018, 3),
        ({"stream_interval": 99}, 0.05, 0, MOST_TOKENS),
        ({"stream_interval": 99, "tools": [{}]}, 0.05, 0.018, 3),
        ({"tools": [{}]}, 0.05, 0.02, 1),
        ({}, 0, 0.02, None),
        ({"stream_interval": 99}, 0, 0.02, 99),
    ],
)
async def test_vllm_makes_an_output_as_often_as_a_reader_gets_a_chunk(
    asked: Any, chunk_every_s: float, token_s: float, set_to: int | None
) -> None:
    request = EngineRequest("r-1", CHAT, asked, Lane.HIGH, on_chunk=print, chunk_every_s=chunk_every_s)
    params = SimpleNamespace(output_kind=Kind.DELTA, stream_interval=asked.get("stream_interval"))
    vllm_host._stream(vllm_host.Progress(request), params, "r-1", token_s=token_s)
    assert params.stream_interval == set_to


@pytest.mark.parametrize("other", ["unstreamed", "a release without it"])
def test_all_other_outputs_come_as_vllm_makes_them(other: str) -> None:
    request = EngineRequest("r-1", CHAT, {}, Lane.HIGH, chunk_every_s=0.05)
    request.on_chunk = None if other == "unstreamed" else print
    params = SimpleNamespace(output_kind=Kind.DELTA, stream_interval=None)
    if other == "a release without it":
        del params.stream_interval
    before = dict(vars(params))
    vllm_host._stream(vllm_host.Progress(request), params, "r-1", token_s=0.02)
    assert vars(params) == before


async def test_the_pace_is_that_of_the_engine(engine: VllmEngine, model: Model) -> None:
    engine._steps.token_s = 0.018
    await streamed(engine, chunk_every_s=0.05)
    assert (model.params.output_kind, model.params.stream_interval) == (Kind.DELTA, 3)


async def test_counts_along_are_left_to_vllms_own_generator(engine: VllmEngine, model: Model) -> None:
    seen: list[Any] = []

    async def own(request: Answer) -> Any:
        progress = vllm_host.current_progress.get()
        seen.append((request.body["stream"], progress and progress.deltas))
        raise RuntimeError("not yet")

    model.does = own
    await streamed(engine, counts_along=True)
    assert seen == [(True, None)]


async def test_what_was_refused_first_streams_by_the_application(engine: VllmEngine, model: Model) -> None:
    """Its chunks are those of the application: none are made of outputs any more."""
    seen: list[Any] = []

    async def refuses(_request: Answer) -> Any:
        raise RuntimeError("not yet")

    async def answered() -> None:
        progress = vllm_host.current_progress.get()
        seen.append(progress and progress.deltas)

    model.does, model.answered = refuses, answered  # type: ignore[method-assign]
    await streamed(engine)
    assert seen == [None]
