"""The engine contract with the worker. The openai engine stands in front of a simulated one in another process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.message_events import text_of
from streamfleet.common.protocol import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, Lane
from streamfleet.worker.cost.check import check_cost, for_engine, pack_fields
from streamfleet.worker.cost.limits import CostLimits
from streamfleet.worker.engine.base import EngineDied, EngineReply, EngineRequest, EngineUnavailable, Partial, Text
from streamfleet.worker.engine.vllm import VllmEngine
from streamfleet.worker.messages import ask
from streamfleet.worker.outcome import Finished, judge
from tests.contract import subjects
from tests.contract.subjects import BAD, MAX_MODEL_LEN, Collected, Subject, chat, long_chat
from tests.e2e.gateway_stack import engine_processes
from tests.waiting import eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(480),
    pytest.mark.filterwarnings("ignore:::(torch|vllm|transformers|multiprocessing)"),
]

ENGINES = ["simulated", "openai", pytest.param("vllm", marks=pytest.mark.needs_vllm)]


@pytest.fixture(scope="module", params=ENGINES)
def subject(request: pytest.FixtureRequest) -> Subject:
    started: Subject = request.getfixturevalue(f"{request.param}_subject")
    return started


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
    assert subject.engine.kind in {"simulated", "openai", "vllm direct"}
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


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_body_is_refused_with_the_field_named(subject: Subject, name: str) -> None:
    changes, status, field = BAD[name]
    good = [asyncio.create_task(subject.engine.run(chat(f"good-{n}"))) for n in range(2)]
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
        kv_use: float = getattr(subject.engine, "kv_use", -1.0)
        assert kv_use == -1 if subject.engine.kind == "openai" else 0 < kv_use <= 1, "a server does not tell it"
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
    await eventually(lambda: getattr(subject.engine, "kv_use", 0.0) == 0, 5, "an idle engine uses none of its cache")


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


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("along", [True, False])
async def test_each_chunk_counts_the_tokens_so_far_for_those_who_ask(
    subject: Subject, endpoint: str, along: bool
) -> None:
    """As vLLM does it: those of the chunk's choice, and at last those of all choices."""
    prompt: dict[str, Any] = {"prompt": "Once upon a time"}
    if endpoint == CHAT:
        prompt = {"messages": [{"role": "user", "content": "Once upon a time"}]}
    body = {**prompt, "max_tokens": 6, "n": 2, "temperature": 0.5}
    asked = Collected(EngineRequest(f"along-{endpoint[-5:]}-{along}", endpoint, body, Lane.LOW))
    asked.request.tells_usage, asked.request.counts_along = True, along
    answer = json.loads((await subject.engine.run(asked.request)).body)
    *chunks, last = asked.chunks
    assert last["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    if not along:
        assert not any(chunk.get("usage") for chunk in chunks)
        return
    total = 0
    for number in range(2):
        counts = [chunk["usage"] for chunk in chunks if chunk["choices"][-1]["index"] == number]
        made = [each["completion_tokens"] for each in counts]
        assert made == sorted(made)
        assert {each["total_tokens"] - each["completion_tokens"] for each in counts} == {last["usage"]["prompt_tokens"]}
        total += made[-1]
    assert total == last["usage"]["completion_tokens"]


async def test_a_streamed_completion_of_several_choices(subject: Subject) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 4, "n": 2, "temperature": 0.5}
    asked = Collected(EngineRequest("text-2", COMPLETIONS, body, Lane.LOW))
    answer = json.loads((await subject.engine.run(asked.request)).body)
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert asked.text == answer["choices"][0]["text"]
    assert answer["usage"]["completion_tokens"] > 4
    assert all(chunk["choices"] for chunk in asked.chunks), "nobody asked for the count of tokens"


async def test_a_streamed_response_has_numbered_events_and_the_result_in_the_last(subject: Subject) -> None:
    body = {"input": "Once upon a time", "max_output_tokens": 6, "temperature": 0}
    asked = Collected(EngineRequest("response-1", RESPONSES, body, Lane.LOW))
    reply = await subject.engine.run(asked.request)
    plain = json.loads((await subject.engine.run(EngineRequest("response-1", RESPONSES, body, Lane.LOW))).body)
    answer, (first, *_, last) = json.loads(reply.body), asked.chunks
    assert [event["sequence_number"] for event in asked.chunks] == list(range(len(asked.chunks)))
    assert (first["type"], last["response"]) == ("response.created", answer)
    text = answer["output"][0]["content"][0]["text"]
    assert text == "".join(event["delta"] for event in asked.chunks if event["type"] == "response.output_text.delta")
    assert text == plain["output"][0]["content"][0]["text"]
    assert answer["status"] == plain["status"] == "incomplete"
    assert answer["usage"]["output_tokens"] == plain["usage"]["output_tokens"] == 6
    assert reply.first_token_ms is not None


async def test_a_streamed_message_has_its_events_and_the_result_of_another(subject: Subject) -> None:
    """The limit is beyond the context: each engine counts the prompt, and gets what is left."""
    body = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 6, "temperature": 0}
    body["model"] = subject.engine.models[0]
    asked = Collected(EngineRequest("message-1", MESSAGES, body, Lane.LOW))
    reply = await ask(subject.engine, asked.request)
    plain = json.loads((await ask(subject.engine, EngineRequest("message-1", MESSAGES, body, Lane.LOW))).body)
    answer, (first, *_, last) = json.loads(reply.body), asked.chunks
    assert (first["type"], last["type"]) == ("message_start", "message_stop")
    assert answer["id"] == plain["id"] == first["message"]["id"] == "msg_message-1"
    assert "".join(map(text_of, asked.chunks)) == answer["content"][0]["text"] == plain["content"][0]["text"]
    assert answer["stop_reason"] == plain["stop_reason"] == "max_tokens"
    assert answer["usage"]["output_tokens"] == plain["usage"]["output_tokens"] == 6
    assert reply.first_token_ms is not None
    large = EngineRequest("message-2", MESSAGES, {**body, "max_tokens": 10**6, "stop_sequences": [" "]}, Lane.LOW)
    assert (await ask(subject.engine, large)).status == 200
    assert large.body["max_tokens"] < (subject.engine.capacity().max_model_len or 10**6)


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
    """Output that is kept of a streamed request, interrupted when it has so many chunks, or a few more."""
    task = asyncio.create_task(subject.engine.run(asked.request))
    await eventually(lambda: len(asked.chunks) >= chunks, 20, "chunks come while it runs")
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    return asked.request.partial


def counted(answer: dict[str, Any]) -> dict[str, Any]:
    """Usage, but for what came from the prefix cache: the next run finds the prompt there."""
    return {name: value for name, value in answer["usage"].items() if name != "prompt_tokens_details"}


async def test_an_interrupted_answer_goes_on_as_if_nothing_had_happened(subject: Subject) -> None:
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 48, "ignore_eos": True}
    whole = json.loads((await subject.engine.run(Collected(chat("going-on", **body)).request)).body)
    first = Collected(chat("going-on", **body))
    partial = await interrupted(subject, first, 8)
    second = Collected(replace(chat("going-on", **body), resume=partial))
    answer = json.loads((await subject.engine.run(second.request)).body)
    assert answer["choices"] == whole["choices"]
    assert counted(answer) == counted(whole)
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


# -- interruptions of vLLM; `make fault-vllm` interrupts 500 answers at random -----------------------------

only_vllm = pytest.mark.parametrize("subject", [pytest.param("vllm", marks=pytest.mark.needs_vllm)], indirect=True)
SECRET = "SECRET-7431"
GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


def world(identity: str, **body: Any) -> Collected:
    """A completion of characters that have several tokens each; the model goes on with their pattern."""
    prompt = f"{SECRET} {'🌍日本🎉語é한' * 8}"
    return Collected(EngineRequest(identity, COMPLETIONS, {"prompt": prompt, "max_tokens": 32, **body}, Lane.LOW))


def secretive(identity: str, **body: Any) -> EngineRequest:
    """A chat whose system prompt nobody may see."""
    messages = [{"role": "system", "content": f"You are {SECRET}."}, {"role": "user", "content": "Tell me a story."}]
    return EngineRequest(identity, CHAT, {"messages": messages, "max_tokens": 40, **body}, Lane.LOW)


async def cut_off(subject: Subject, asked: Collected, made: int) -> Partial | None:
    """Output that is kept of a streamed request, interrupted when it has so many tokens."""
    task = asyncio.create_task(subject.engine.run(asked.request))
    collect = asked.request.on_chunk
    assert collect is not None

    def listen(line: bytes | Text) -> None:
        collect(line)
        if asked.request.made >= made:
            task.cancel()

    asked.request.on_chunk = listen
    await asyncio.wait({task})
    assert task.cancelled()
    return asked.request.partial


async def answer_of(subject: Subject, asked: Collected | EngineRequest) -> Any:
    reply = await subject.engine.run(asked.request if isinstance(asked, Collected) else asked)
    assert reply.status == 200, reply.body
    assert SECRET.encode() not in reply.body
    return json.loads(reply.body)


def ids_of(partial: Partial | None) -> list[int]:
    return list(json.loads(partial.state)["ids"]) if partial is not None else []


def decoder(subject: Subject) -> Callable[[list[int]], str]:
    assert isinstance(subject.engine, VllmEngine)
    assert subject.engine._hosted is not None
    decode: Callable[[list[int]], str] = subject.engine._hosted.engine.tokenizer.decode
    return decode


@pytest.mark.long
@only_vllm
async def test_vllm_goes_on_wherever_it_was_cut(subject: Subject) -> None:
    """Also inside of a character, from where vLLM itself would answer with the prompt."""
    decode = decoder(subject)
    whole, _ = await asyncio.gather(
        answer_of(subject, world("w-whole", **GREEDY)), answer_of(subject, world("w-beside", **GREEDY))
    )
    choice = whole["choices"][0]

    async def interrupted_at(made: int) -> int:
        partial = await cut_off(subject, world(f"w-{made}", **GREEDY), made)
        kept = ids_of(partial)
        assert kept == choice["token_ids"][: len(kept)]
        assert choice["text"].startswith(decode(kept))
        assert partial is None or SECRET.encode() not in partial.state
        again = world(f"w-{made}", **GREEDY)
        again.request.resume = partial
        answer = await answer_of(subject, again)
        assert again.request.resumed_tokens == len(kept)
        assert answer["choices"] == whole["choices"]
        assert counted(answer) == counted(whole)
        assert again.text == choice["text"] == decode(choice["token_ids"]).rstrip("\ufffd")
        return made - len(kept)

    dropped = await asyncio.gather(*map(interrupted_at, range(1, 18)))
    assert set(dropped) > {0, 1}, "some were cut inside of a character"
    assert max(dropped) <= 4


@only_vllm
@pytest.mark.parametrize(
    "cuts", [range(1, 18, 4), pytest.param(range(1, 18), marks=pytest.mark.long)], ids=["few", "all"]
)
async def test_vllm_shows_no_prompt_after_bytes_that_are_no_characters(subject: Subject, cuts: range) -> None:
    decode = decoder(subject)
    assert isinstance(subject.engine, VllmEngine)
    assert subject.engine._hosted is not None
    body = {"allowed_token_ids": subject.engine._hosted.engine.tokenizer.encode("🌍日本🎉한"), "ignore_eos": True}

    async def interrupted_at(made: int) -> None:
        partial = await cut_off(subject, Collected(secretive(f"b-{made}", **body)), made)
        assert not decode(ids_of(partial)).endswith("\ufffd")
        again = Collected(replace(secretive(f"b-{made}", **body), resume=partial))
        answer = await answer_of(subject, again)
        assert SECRET not in again.text
        assert again.text == answer["choices"][0]["message"]["content"]
        assert answer["usage"]["completion_tokens"] == 40
        assert again.request.resumed_tokens == (partial.tokens if partial is not None else 0)

    await asyncio.gather(*map(interrupted_at, cuts))


@pytest.mark.long
@only_vllm
async def test_vllm_does_not_go_on_inside_of_a_character_whatever_the_state_says(subject: Subject) -> None:
    partial = await cut_off(subject, world("forged", **GREEDY), 24)
    assert partial is not None
    state, decode = json.loads(partial.state), decoder(subject)
    inside = next(n for n in range(5, partial.tokens) if decode(state["ids"][:n]).endswith("\ufffd"))
    forged = replace(partial, state=json.dumps({**state, "ids": state["ids"][:inside]}).encode())
    again = world("forged", **GREEDY)
    again.request.resume = forged
    await answer_of(subject, again)
    assert again.request.resumed_tokens == 0


@pytest.mark.long
@only_vllm
@pytest.mark.parametrize("made", [3, 20])
async def test_vllm_goes_on_with_an_answer_that_is_not_streamed(subject: Subject, made: int) -> None:
    """With its log probabilities, twice interrupted, beside another request."""
    body = {**GREEDY, "logprobs": True, "top_logprobs": 2, "min_tokens": 30}
    whole, _ = await asyncio.gather(answer_of(subject, secretive("l-1", **body)), answer_of(subject, long("l-b", 40)))
    partial: Partial | None = None
    usages: list[Any] = []
    for _ in range(2):
        beside = Collected(long(f"beside-{made}", 500))
        keeper = asyncio.create_task(subject.engine.run(beside.request))
        request = replace(secretive("l-1", **body), resume=partial)
        task = asyncio.create_task(subject.engine.run(request))
        await eventually(_runs(subject, 2), 20, "both run")
        began = beside.request.made
        await eventually(lambda: beside.request.made >= began + made, 20, "both have made some")  # noqa: B023
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert request.partial is not None
        assert request.partial.tokens > (partial.tokens if partial is not None else 0)
        assert SECRET.encode() not in request.partial.state
        partial, usages = request.partial, [*usages, request.usage]
        keeper.cancel()
        await asyncio.wait({keeper})
        if made == 20:
            break
    assert partial is not None
    request = replace(secretive("l-1", **body), resume=partial)
    answer, _ = await asyncio.gather(answer_of(subject, request), answer_of(subject, long("l-b", 40)))
    assert request.resumed_tokens == partial.tokens
    assert [usage["prompt_tokens"] for usage in usages] == [whole["usage"]["prompt_tokens"]] * len(usages)
    assert counted(answer) == counted(whole)
    one, other = answer["choices"][0], whole["choices"][0]
    assert one["token_ids"] == other["token_ids"]
    assert one["message"] == other["message"]
    assert len(one["logprobs"]["content"]) == 40
    for mine, theirs in zip(one["logprobs"]["content"], other["logprobs"]["content"], strict=True):
        assert (mine["token"], len(mine["top_logprobs"])) == (theirs["token"], 2)
        assert mine["logprob"] == pytest.approx(theirs["logprob"], abs=0.1)


def long(identity: str, tokens: int) -> EngineRequest:
    return chat(identity, max_tokens=tokens, ignore_eos=True)


@pytest.mark.long
@only_vllm
async def test_vllm_finds_a_stop_string_across_the_cut(subject: Subject) -> None:
    whole = await answer_of(subject, Collected(secretive("s-0", **GREEDY)))
    text, ids = whole["choices"][0]["message"]["content"], whole["choices"][0]["token_ids"]
    decode = decoder(subject)

    async def interrupted_at(made: int) -> bool:
        seam = len(decode(ids[:made]))
        stop = text[seam - 2 : seam + 3]
        first, again = (Collected(secretive(f"s-{made}", **GREEDY, stop=[stop, "@@@@"])) for _ in range(2))
        if text.index(stop) != seam - 2:  # it has come before
            return False
        partial = await cut_off(subject, first, made)
        assert len(ids_of(partial)) < made
        again.request.resume = partial
        choice = (await answer_of(subject, again))["choices"][0]
        assert (choice["message"]["content"], choice["stop_reason"]) == (text[: seam - 2], stop)
        assert again.text == text[: seam - 2]
        return again.request.resumed_tokens > 0

    assert sum(await asyncio.gather(*map(interrupted_at, range(6, 22)))) > 6


# An answer that could be short would sometimes end before it is cut off.
LONG_ARRAY = {"type": "array", "items": {"type": "integer"}, "minItems": 20}
NOT_CONTINUED: dict[str, dict[str, Any]] = {
    "a seed": {"seed": 7, "temperature": 1},
    "a presence penalty": {"presence_penalty": 0.5},
    "a frequency penalty": {"frequency_penalty": 0.5},
    "bad words": {"bad_words": ["of the"]},
    "a schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": LONG_ARRAY}},
        "ignore_eos": False,
    },
    "several choices": {"n": 2},
    "log probabilities of the prompt": {"prompt_logprobs": 1, "stream": False},
    "nothing special": {},
    "a seed without chance": {"seed": 7, "temperature": 0},
    "a bias": {"logit_bias": {"11": -3.0}, "repetition_penalty": 1.1, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
}
CONTINUED = {"nothing special", "a seed without chance", "a bias"}


@only_vllm
async def test_vllm_begins_anew_where_it_could_not_go_on_rightly(subject: Subject) -> None:
    async def kept(name: str) -> bool:
        body = {"ignore_eos": True, "max_tokens": 400, **NOT_CONTINUED[name]}
        request = secretive(f"n-{name}".replace(" ", "-"), **body)
        if "prompt_logprobs" in body:  # refused where it is streamed
            return await kept_unstreamed(subject, request)
        return await cut_off(subject, Collected(request), 6) is not None

    continued = await asyncio.gather(*map(kept, NOT_CONTINUED))
    assert {name for name, goes_on in zip(NOT_CONTINUED, continued, strict=True) if goes_on} == CONTINUED


async def kept_unstreamed(subject: Subject, request: EngineRequest) -> bool:
    beside = Collected(long("beside-unstreamed", 300))
    keeper = asyncio.create_task(subject.engine.run(beside.request))
    task = asyncio.create_task(subject.engine.run(request))
    await eventually(lambda: beside.request.made > 40, 60, "both have made some")
    task.cancel()
    keeper.cancel()
    await asyncio.wait({task, keeper})
    assert task.cancelled()
    assert request.usage is not None
    return request.partial is not None


# -- the end -----------------------------------------------------------------------------------------------


def _runs(subject: Subject, count: int) -> Callable[[], Awaitable[bool]]:
    async def runs() -> bool:
        return await subject.running() == count

    return runs


PROMPT = "Hello! " * 40
LIMITS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, beyond": (CHAT, {"max_tokens": MAX_MODEL_LEN + 1}),
    "chat by its newer name, beyond": (CHAT, {"max_completion_tokens": MAX_MODEL_LEN + 1}),
    "chat, the older name does not count": (CHAT, {"max_tokens": MAX_MODEL_LEN + 1, "max_completion_tokens": 2}),
    "chat, no room": (CHAT, {"max_tokens": MAX_MODEL_LEN, "stop": ["e", "a", "o"]}),
    "completion, beyond": (COMPLETIONS, {"max_tokens": MAX_MODEL_LEN + 1}),
    "completion, no room": (COMPLETIONS, {"max_tokens": MAX_MODEL_LEN, "stop": ["e", "a", "o"]}),
    "a long prompt": (COMPLETIONS, {"prompt": "Hello! " * MAX_MODEL_LEN, "max_tokens": 1}),
    "a long text": (COMPLETIONS, {"prompt": "x" * 500_000, "max_tokens": 1}),
    "a long chat": (CHAT, {"messages": [{"role": "user", "content": "Hello! " * MAX_MODEL_LEN}]}),
    "a prompt that fills all": (COMPLETIONS, {"prompt": [5] * MAX_MODEL_LEN, "max_tokens": 1}),
}


@only_vllm
@pytest.mark.parametrize("name", LIMITS)
async def test_a_limit_beyond_the_model_is_cut_or_refused_as_vllm_does(subject: Subject, name: str) -> None:
    """A worker refuses what vLLM refuses and nothing else, and both have OpenAI's code for it."""
    endpoint, changed = LIMITS[name]
    prompt = {"messages": [{"role": "user", "content": PROMPT}]} if endpoint == CHAT else {"prompt": PROMPT}
    body = {**prompt, **changed}
    request = EngineRequest(f"limit-{name.replace(' ', '-')}", endpoint, body, Lane.LOW)
    reply = await subject.engine.run(request)
    outcome = judge(reply, request)
    assert isinstance(outcome, Finished)
    if reply.status == 400:
        error = json.loads(outcome.error)["error"]
        assert (error["code"], error["param"] in body) == ("context_length_exceeded", True), error
        assert error["param"] in error["message"]
        with contextlib.suppress(InvalidRequest):  # the worker cannot count tokens: what is left is the engine's
            check_cost(body, CostLimits(), MAX_MODEL_LEN, endpoint)
    else:
        check_cost(body, CostLimits(), MAX_MODEL_LEN, endpoint)
    assert reply.status == (200 if "no room" in name or "does not count" in name else 400)


@only_vllm
async def test_guided_fields_hold_for_vllm_again(subject: Subject) -> None:
    for field, value, fits in (
        ("guided_choice", ["violet"], "violet"),
        ("guided_regex", "[0-9]{7}", r"[0-9]{7}"),
        ("guided_json", {"enum": [41]}, "41"),
    ):
        body = for_engine({**chat("x").body, field: value, "max_tokens": 12}, CHAT, CostLimits(), MAX_MODEL_LEN)
        answer = await answer_of(subject, EngineRequest(f"{field}-1", CHAT, body, Lane.LOW))
        assert re.fullmatch(fits, answer["choices"][0]["message"]["content"]), field


@only_vllm
async def test_vllm_tells_its_fields(subject: Subject) -> None:
    assert isinstance(subject.engine, VllmEngine)
    fields = subject.engine.fields
    assert set(fields) == set(subject.engine.endpoints)
    assert {"messages", "structured_outputs", "top_k"} <= set(fields[CHAT])
    assert {"prompt", "echo"} <= set(fields[COMPLETIONS])
    assert not {"guided_json", "store", "metadata"} & set(fields[CHAT])
    assert len(pack_fields(fields)) < 1_500, "every gateway reads it every two seconds, from each worker"


@pytest.mark.parametrize("subject", ["simulated", "openai"], indirect=True)
async def test_stopping_ends_what_runs(subject: Subject) -> None:
    """Of real vLLM: tests/e2e/test_vllm_engine.py."""
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


@only_vllm
async def test_death_of_the_core_fails_what_runs_and_is_reported(subject: Subject) -> None:
    """The last test of vLLM, because all others share the engine, those of test_both_ways.py too."""
    engine, mine = subject.engine, engine_processes(os.getpid())
    assert set(mine) == {"EngineCore", "Worker"}
    # Out of our group: a SIGTERM for the whole group lets us drain.
    assert os.getpgrp() not in {os.getpgid(process.pid) for process in mine.values()}
    failed = asyncio.create_task(engine.failed())
    running = [asyncio.create_task(engine.run(long_chat(f"doomed-{n}"))) for n in range(4)]
    await eventually(_runs(subject, 4), 20, "all four run")
    killed_at = time.monotonic()
    os.kill(mine["EngineCore"].pid, signal.SIGKILL)
    outcomes = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 5)
    assert [type(outcome) for outcome in outcomes] == [EngineDied] * 4
    reason = await asyncio.wait_for(failed, 5)
    assert time.monotonic() - killed_at < 2
    assert "died" in reason
    with pytest.raises(EngineDied):
        await engine.run(chat("late"))
    await engine.stop()
    assert subjects.children() <= subject.others
