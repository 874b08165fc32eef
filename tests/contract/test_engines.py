"""The engine contract with the worker. The openai engine stands in front of a simulated one in another process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from streamfleet.common.protocol import COMPLETIONS, EMBEDDINGS, Lane
from streamfleet.worker.engine.base import EngineDied, EngineReply, EngineRequest, EngineUnavailable, Partial
from tests.contract import subjects
from tests.contract.subjects import MAX_MODEL_LEN, Collected, Subject, chat, long_chat
from tests.waiting import eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(480),
    pytest.mark.filterwarnings("ignore:::(torch|vllm|transformers|multiprocessing)"),
]

ENGINES = ["simulated", "openai", pytest.param("vllm", marks=pytest.mark.needs_vllm)]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def subject(request: pytest.FixtureRequest, repository: Path) -> AsyncIterator[Subject]:
    if request.param == "simulated":
        opened = subjects.simulated()
    elif request.param == "openai":
        opened = subjects.openai(repository)
    else:
        opened = subjects.vllm(request.getfixturevalue("smollm2"))
    async with opened as started:
        yield started


def error_of(reply: EngineReply) -> dict[str, Any]:
    error = json.loads(reply.body)["error"]
    assert isinstance(error, dict)
    assert isinstance(error["message"], str)
    return error


async def test_an_answer_has_the_shape_of_openai(subject: Subject) -> None:
    reply = await subject.engine.run(chat("shape-1"))
    assert reply.status == 200
    answer = json.loads(reply.body)
    assert answer["object"] == "chat.completion"
    assert answer["id"] == "chatcmpl-shape-1"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["finish_reason"] in {"stop", "length"}
    usage = answer["usage"]
    assert 0 < usage["completion_tokens"] <= 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    if subject.engine.kind == "openai":  # not streamed
        assert reply.first_token_ms is None
    else:
        assert reply.first_token_ms is not None
        assert 0 < reply.first_token_ms < 60_000


async def test_completions_are_served_too(subject: Subject) -> None:
    request = EngineRequest("text-1", COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 4}, Lane.LOW)
    answer = json.loads((await subject.engine.run(request)).body)
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"]


async def test_an_engine_says_what_it_is_and_holds(subject: Subject) -> None:
    assert subject.engine.kind in {"simulated", "openai", "vllm"}
    assert subject.engine.models
    room = subject.engine.capacity()
    assert room.slots == 32
    assert room.max_model_len == MAX_MODEL_LEN
    assert room.kv_tokens is None or room.kv_tokens >= MAX_MODEL_LEN
    named = await subject.engine.run(chat("named-1", model=subject.engine.models[0]))
    assert named.status == 200


async def test_many_at_once_each_get_their_own_answer(subject: Subject) -> None:
    replies = await asyncio.gather(*(subject.engine.run(chat(f"many-{n}")) for n in range(32)))
    assert [reply.status for reply in replies] == [200] * 32
    assert [json.loads(reply.body)["id"] for reply in replies] == [f"chatcmpl-many-{n}" for n in range(32)]


async def test_lanes_and_deadlines_are_accepted(subject: Subject) -> None:
    bodies = chat("x").body
    requests = [
        EngineRequest(f"lane-{lane}", "/v1/chat/completions", bodies, lane, deadline)
        for lane in Lane
        for deadline in (None, 1_900_000_000_000)
    ]
    replies = await asyncio.gather(*map(subject.engine.run, requests))
    assert {reply.status for reply in replies} == {200}


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "a number that is none": ({"max_tokens": "many"}, 400, "max_tokens"),
    "no tokens at all": ({"max_tokens": -1}, 400, "max_tokens"),
    "a negative temperature": ({"temperature": -3}, 400, "temperature"),
    "messages that are none": ({"messages": "hi"}, 400, "messages"),
    "a message without a role": ({"messages": [{"content": "hi"}]}, 400, "role"),
    "a model that is not there": ({"model": "no-such-model"}, 404, "model"),
    "a prompt that is too long": ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "input"),
    "too many tokens wanted": ({"max_tokens": 100_000}, 400, "max_tokens"),
    "too many choices": ({"n": 100_000}, 400, "n"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_body_is_refused_with_the_field_named(subject: Subject, name: str) -> None:
    changes, status, field = BAD[name]
    good = [asyncio.create_task(subject.engine.run(chat(f"good-{n}"))) for n in range(4)]
    reply = await subject.engine.run(chat("bad-1", **changes))
    assert reply.status == status
    error = error_of(reply)
    assert field in f"{error.get('param')} {error['message']}"
    assert {reply.status for reply in await asyncio.gather(*good)} == {200}


@pytest.mark.parametrize("endpoint", ["/v1/nothing", "/metrics", "/v1/load_lora_adapter", "/shutdown"])
async def test_no_other_path_can_be_reached(subject: Subject, endpoint: str) -> None:
    reply = await subject.engine.run(EngineRequest("path-1", endpoint, {}, Lane.NORMAL))
    assert reply.status == 404
    assert error_of(reply)["param"] == "endpoint"


async def test_embeddings_of_a_model_that_generates_are_refused(subject: Subject) -> None:
    reply = await subject.engine.run(EngineRequest("emb-1", EMBEDDINGS, {"input": "hello"}, Lane.NORMAL))
    assert 400 <= reply.status < 500
    assert "embeddings" in error_of(reply)["message"]


async def test_a_cancelled_request_is_gone_from_the_engine(subject: Subject) -> None:
    # A request that goes on keeps the engine stepping, so that its own count is fresh.
    keeper = asyncio.create_task(subject.engine.run(long_chat("keeper")))
    victim = asyncio.create_task(subject.engine.run(long_chat("victim")))
    try:
        await eventually(_runs(subject, 2), 20, "both run in the engine")
        cancelled_at = time.monotonic()
        victim.cancel()
        await eventually(_runs(subject, 1), 3, "the cancelled one is gone from the engine")
        with pytest.raises(asyncio.CancelledError):
            await victim
        assert time.monotonic() - cancelled_at < 3
        assert not keeper.done()
    finally:
        keeper.cancel()
        await asyncio.wait({keeper, victim})


async def test_many_cancelled_at_once_leave_room_for_others(subject: Subject) -> None:
    victims = [asyncio.create_task(subject.engine.run(long_chat(f"victim-{n}"))) for n in range(40)]
    await eventually(_runs(subject, 32), 30, "the engine is full")
    for victim in victims:
        victim.cancel()
    await asyncio.wait(victims)
    assert all(victim.cancelled() for victim in victims)
    reply = await asyncio.wait_for(subject.engine.run(chat("after")), 10)
    assert reply.status == 200


async def test_a_well_engine_does_not_report_failure(subject: Subject) -> None:
    failed = asyncio.create_task(subject.engine.failed())
    assert (await subject.engine.run(chat("well-1"))).status == 200
    assert not failed.done()
    failed.cancel()
    await asyncio.wait({failed})
    assert failed.cancelled()


# -- streaming ---------------------------------------------------------------------------------------------


async def test_a_streamed_answer_says_the_same_as_one_that_is_not(subject: Subject) -> None:
    plain = json.loads((await subject.engine.run(chat("same-1", temperature=0))).body)
    asked = Collected(chat("same-1", temperature=0))
    asked.request.tells_usage = True
    reply = await subject.engine.run(asked.request)
    answer = json.loads(reply.body)
    assert reply.status == 200
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == plain["choices"][0]["finish_reason"]
    assert answer["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert asked.text == plain["choices"][0]["message"]["content"]
    assert len(asked.chunks) > 2
    assert asked.chunks[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert reply.first_token_ms is not None


async def test_a_streamed_completion_of_several_choices(subject: Subject) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 4, "n": 2, "temperature": 0.5}
    asked = Collected(EngineRequest("text-2", COMPLETIONS, body, Lane.LOW))
    answer = json.loads((await subject.engine.run(asked.request)).body)
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert asked.text == answer["choices"][0]["text"]
    assert answer["usage"]["completion_tokens"] > 4
    assert all(chunk["choices"] for chunk in asked.chunks), "nobody asked for the count of tokens"


async def test_a_bad_body_that_is_to_be_streamed_is_refused_all_the_same(subject: Subject) -> None:
    asked = Collected(chat("bad-2", max_tokens=-1))
    reply = await subject.engine.run(asked.request)
    assert (reply.status, asked.chunks) == (400, [])
    assert "max_tokens" in f"{error_of(reply).get('param')} {error_of(reply)['message']}"


async def test_a_streamed_request_that_is_cancelled_midway_is_gone_from_the_engine(subject: Subject) -> None:
    keeper = asyncio.create_task(subject.engine.run(long_chat("keeper-2")))
    asked = Collected(long_chat("victim-2"))
    victim = asyncio.create_task(subject.engine.run(asked.request))
    try:
        await eventually(lambda: len(asked.chunks) > 2, 20, "chunks come while it runs")
        victim.cancel()
        await eventually(_runs(subject, 1), 3, "it is gone from the engine")
        with pytest.raises(asyncio.CancelledError):
            await victim
        seen = len(asked.chunks)
        assert (await subject.engine.run(chat("after-2"))).status == 200
        assert len(asked.chunks) == seen
    finally:
        keeper.cancel()
        await asyncio.wait({keeper, victim})


# -- interruptions -----------------------------------------------------------------------------------------


async def interrupted(subject: Subject, asked: Collected, chunks: int) -> Partial | None:
    """What is kept of a streamed request that is interrupted when it has so many chunks, or a few more."""
    task = asyncio.create_task(subject.engine.run(asked.request))
    await eventually(lambda: len(asked.chunks) >= chunks, 20, "chunks come while it runs")
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    return asked.request.partial


async def test_an_interrupted_answer_goes_on_as_if_nothing_had_happened(subject: Subject) -> None:
    body = {"temperature": 0, "max_tokens": 48, "ignore_eos": True}
    whole = json.loads((await subject.engine.run(Collected(chat("going-on", **body)).request)).body)
    first = Collected(chat("going-on", **body))
    partial = await interrupted(subject, first, 8)
    second = Collected(replace(chat("going-on", **body), resume=partial))
    answer = json.loads((await subject.engine.run(second.request)).body)
    assert answer["choices"] == whole["choices"]
    assert answer["usage"] == whole["usage"]
    assert second.text == answer["choices"][0]["message"]["content"]
    assert second.request.made == (0 if subject.engine.kind == "openai" else 48)
    if subject.engine.kind == "openai":  # a server keeps nothing
        assert partial is None
        return
    assert partial is not None
    assert 6 <= partial.tokens <= first.request.made < 48
    assert second.request.resumed_tokens == partial.tokens
    assert len(second.chunks) <= 48 - partial.tokens + 4, "what was kept comes at once"


@pytest.mark.parametrize("state", [b"", b"null", b'{"engine":"other"}', b"[" * 9999])
async def test_a_partial_that_is_of_no_use_is_ignored(subject: Subject, state: bytes) -> None:
    request = replace(chat("useless"), resume=Partial(5, state))
    reply = await subject.engine.run(request)
    assert (reply.status, request.resumed_tokens) == (200, 0)


# -- the end -----------------------------------------------------------------------------------------------


async def test_stopping_ends_what_runs(subject: Subject) -> None:
    """The last test, because all others share the engine."""
    running = [asyncio.create_task(subject.engine.run(long_chat(f"stopped-{n}"))) for n in range(4)]
    await eventually(_runs(subject, 4), 20, "all four run")
    await asyncio.wait_for(subject.engine.stop(), 10)
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    elsewhere = subject.engine.kind == "openai"  # its server is still there
    assert [type(outcome) for outcome in outcomes] == [EngineUnavailable if elsewhere else EngineDied] * 4
    assert subjects.children() <= subject.others
    if not elsewhere:
        with pytest.raises(EngineDied, match="stopped"):
            await subject.engine.run(chat("late"))


def _runs(subject: Subject, count: int) -> Callable[[], Awaitable[bool]]:
    async def runs() -> bool:
        return await subject.running() == count

    return runs
