"""Real vLLM answers a request directly as through its HTTP application: field by field, chunk by chunk."""

from __future__ import annotations

import asyncio
import json
import re
from copy import deepcopy
from typing import Any

import pytest

from streamfleet.common import metrics
from streamfleet.common.message_events import DELTA
from streamfleet.common.protocol import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, Lane
from streamfleet.worker.engine import asgi, vllm_host
from streamfleet.worker.engine.base import EngineRequest
from streamfleet.worker.engine.vllm import VllmEngine
from streamfleet.worker.messages import ask, fit
from tests.contract.subjects import BAD, Subject
from tests.sampled import chosen
from tests.waiting import eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(480),
    pytest.mark.needs_vllm,
    pytest.mark.filterwarnings("ignore:::(torch|vllm|transformers|multiprocessing)"),
]

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"days": {"type": "integer", "maximum": 9}},
            "required": ["days"],
        },
    },
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
PNG = "data:image/png;base64,iVBORw0KGgo="

CHATS: dict[str, dict[str, Any]] = {
    "nothing special": {},
    "log probabilities": {"logprobs": True, "top_logprobs": 3},
    "several choices": {"n": 3, "temperature": 0.9, "seed": 5},
    "a stop string": {"stop": ["the", "a"]},
    "a stop string that is shown": {"stop": ["the", "a"], "include_stop_str_in_output": True},
    "token ids": {"return_token_ids": True},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    "a tool by name": {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    "a tool that has to be called": {"tools": [WEATHER], "tool_choice": "required"},
    "a tool that may be called": {"tools": [WEATHER]},
    "one token": {"max_tokens": 1},
    "the newer limit": {"max_tokens": None, "max_completion_tokens": 4},
    "a continued message": {
        "messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "content in parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "日本 🌍 café?"}]}]},
    "a body for the thread": {"user": "x" * 9_000},
    "a bias": {"logit_bias": {"11": -100, "30": 5.5}},
    "a model by its name": {"model": "smollm2", "user": "someone", "metadata": {"a": "b"}},
    "an id of its own": {"request_id": "mine", "priority": 3},
    "unknown fields": {"nonsense": {"a": [1, None]}, "top_k": 3},
    "prompt log probabilities": {"prompt_logprobs": 1},
    # refused
    **{name: changes for name, (changes, _, _) in BAD.items()},
    "a message that is none": {"messages": [7]},
    "a token beyond the vocabulary": {"logit_bias": {"9999999": 1}},
    "a tool that is not there": {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "no"}}},
    "a choice without tools": {"tool_choice": "required"},
    "a grammar that is none": {"structured_outputs": {"grammar": "::= ("}},
    "a schema that is none": {"structured_outputs": {"json": {"type": "nonsense"}}},
    "an expression that is none": {"structured_outputs": {"regex": "(["}},
    "more tokens at least than at most": {"min_tokens": 20, "max_tokens": 5},
    "both continued and begun": {"add_generation_prompt": True, "continue_final_message": True},
    # by the application alone
    "a template of its own": {"chat_template": "{{ messages[0]['content'] }}"},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}]},
}
TEXTS: dict[str, dict[str, Any]] = {
    "a text": {"prompt": "Once upon a time"},
    "several texts": {"prompt": ["One", "Two", "Three"]},
    "tokens": {"prompt": [1, 2, 3, 4]},
    "lists of tokens": {"prompt": [[1, 2, 3], [4, 5]]},
    "its own prompt": {"prompt": "Once upon a time", "echo": True, "logprobs": 2},
    "a text with log probabilities": {"prompt": "Once", "logprobs": 3},
    "choices of texts": {"prompt": ["One", "Two"], "n": 2, "temperature": 0.8, "seed": 9},
    "a text for the thread": {"prompt": "Once", "user": "x" * 9_000},
    # refused
    "no prompt": {},
    "an empty list": {"prompt": []},
    "tokens beyond the vocabulary": {"prompt": [1, 9_999_999]},
    "one of several too long": {"prompt": ["One", "word " * 5_000]},
    "a suffix": {"prompt": "Once", "suffix": "end"},
    "too many log probabilities": {"prompt": "Once", "logprobs": 5_000},
}
NOTHING = [("content", ""), ("prompt_token_ids", None), ("prompt_text", None)]
"""What vLLM's own chunks say only in their beginning, or not in their end."""
BY_APPLICATION = {"a template of its own", "a picture"}
BY_VLLM = {
    *("log probabilities", "several choices", "token ids", "prompt log probabilities", "its own prompt"),
    *("a tool by name", "a tool that has to be called", "a tool that may be called"),
    *("several texts", "lists of tokens", "a text with log probabilities", "choices of texts"),
}
"""Their chunks are vLLM's own, and their answers made of them; of all others, vLLM makes the answer as of any other."""
NOW = {
    *("nothing special", "log probabilities", "several choices", "a stop string", "a tool by name"),
    *("a tool that may be called", "a body for the thread", "content in parts", "an id of its own", "unknown fields"),
    *("a negative temperature", "a prompt that is too long", "a grammar that is none"),
    *("a template of its own", "a picture"),
    *("a text", "several texts", "tokens", "its own prompt", "no prompt", "one of several too long"),
}
"""Chats and texts of `make test`, one for each way through the worker's code. The others show that vLLM is the same."""


@pytest.fixture
def engine(vllm_subject: Subject) -> VllmEngine:
    assert isinstance(vllm_subject.engine, VllmEngine)
    return vllm_subject.engine


def asked(endpoint: str, name: str, body: dict[str, Any]) -> EngineRequest:
    base: dict[str, Any] = {"max_tokens": 3, "temperature": 0}
    if endpoint == CHAT:
        base["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
    return EngineRequest(name.replace(" ", "-"), endpoint, {**base, **body}, Lane.NORMAL)


def comparable(value: Any) -> Any:
    """Without what is never the same twice: times, random ids, the last digits of log probabilities, cached tokens."""
    if isinstance(value, dict):
        return {
            key: re.sub(r"[0-9a-f]{16,}", "…", item) if key == "id" and isinstance(item, str) else comparable(item)
            for key, item in value.items()
            if key not in {"created", "prompt_tokens_details"} and (key, item) not in NOTHING
        }
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"\[\d\d:\d\d:\d\d\]", "[time]", value)  # of a grammar that cannot be read
    return round(value, 2) if isinstance(value, float) else value


async def answered(engine: VllmEngine, request: EngineRequest, *, streams: bool) -> dict[str, Any]:
    chunks: list[Any] = []
    if streams:
        request.on_chunk, request.tells_usage = lambda line: chunks.append(json.loads(bytes(line))), True
    reply = await engine.run(request)
    return {
        "status": reply.status,
        "answer": comparable(json.loads(reply.body)),
        "chunks": comparable(without_text(sorted(filter(says_something, chunks), key=choice_of))),
        "text": {index: "".join(text_of(chunk, index) for chunk in chunks) for index in range(6)},
        "made": request.made,
        "tells first token": reply.first_token_ms is not None,
    }


def says_something(chunk: dict[str, Any]) -> bool:
    """False for a token whose text is kept back: a stop string may begin in it."""
    choice = (chunk.get("choices") or [{"finish_reason": "none"}])[0]
    return bool(choice.get("finish_reason") or choice.get("text") or choice.get("delta") != {"content": ""})


def without_text(chunks: list[Any]) -> list[Any]:
    """Chunks that differ in more than their text: on a busy machine, vLLM makes one of the tokens of several steps."""
    found: list[Any] = []
    for chunk in deepcopy(chunks):
        for choice in chunk["choices"]:
            if not (choice.get("logprobs") or choice.get("token_ids")):
                choice.update({"text": ""} if "text" in choice else {"delta": {**choice["delta"], "content": ""}})
        if not found or chunk != found[-1]:
            found.append(chunk)
    return found


def text_of(chunk: Any, index: int) -> str:
    return "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or ""
        for choice in chunk["choices"]
        if choice["index"] == index
    )


def choice_of(chunk: dict[str, Any]) -> float:
    """The choice that a chunk is of: those of several run side by side, and come as they are made."""
    return chunk["choices"][0]["index"] if chunk.get("choices") else float("inf")


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", chosen([*CHATS, *TEXTS], NOW))
async def test_both_ways_answer_the_same(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch, name: str, streams: bool
) -> None:
    endpoint, body = (CHAT, CHATS[name]) if name in CHATS else (COMPLETIONS, TEXTS[name])
    assert engine.kind == "vllm direct"
    before = by_application()
    directly = await answered(engine, asked(endpoint, name, body), streams=streams)
    went_round = by_application() - before
    if streams and name not in BY_VLLM:
        whole = await answered(engine, asked(endpoint, name, body), streams=False)
        assert directly["answer"] == whole["answer"], "a streamed request has the result of any other"
        directly["answer"] = None
    monkeypatch.setattr(engine, "_direct", None)
    by_http = await answered(engine, asked(endpoint, name, body), streams=streams)
    if directly["answer"] is None:
        by_http["answer"] = None
    assert directly == by_http
    if directly["status"] == 200:
        assert went_round == (name in BY_APPLICATION)


def by_application() -> float:
    return sum(counted(reason) for reason in metrics.ByApplication)


def counted(reason: str) -> float:
    return float(metrics.BY_APPLICATION.labels(reason)._value.get())


async def test_other_endpoints_go_through_the_application(engine: VllmEngine) -> None:
    before = counted("endpoint")
    reply = await engine.run(EngineRequest("e-1", EMBEDDINGS, {"input": "hello"}, Lane.NORMAL))
    assert 400 <= reply.status < 500
    assert counted("endpoint") == before + 1


async def test_a_body_is_left_as_it_was(engine: VllmEngine) -> None:
    """vLLM changes what it is given; another run needs it as the caller wrote it."""
    body = {"tools": [WEATHER], "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
    written = json.dumps(body)
    await asyncio.gather(*(engine.run(EngineRequest(f"b-{n}", CHAT, body, Lane.NORMAL)) for n in range(3)))
    assert json.dumps(body) == written


NAMED = {"type": "function", "name": "weather", "parameters": WEATHER["function"]["parameters"]}
RESPONSE: dict[str, dict[str, Any]] = {
    "nothing special": {},
    "instructions": {"instructions": "Answer in French."},
    "a conversation": {
        "input": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "日本"}], "type": "message", "id": "m"},
            {"role": "user", "content": [{"type": "input_text", "text": "Go on"}]},
        ]
    },
    "log probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "a schema": {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, "max_output_tokens": 30},
    "a tool that has to be called": {"tools": [NAMED], "tool_choice": "required", "max_output_tokens": 60},
    "a tool by name": {
        "tools": [NAMED],
        "tool_choice": {"type": "function", "name": "weather"},
        "max_output_tokens": 60,
    },
    "a tool that may be called": {"tools": [NAMED]},
    "fields of agents": {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}, "user": "x"},
    "fields of OpenAI's": {
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "flex",
        "stream_options": {"include_obfuscation": False},
        "max_tool_calls": 2,
        "text": {"verbosity": "low"},
    },
    "unknown fields": {"nonsense": {"a": [1, None]}},
    "an end of its own": {"max_output_tokens": 60, "stop": ["."]},
    "samples": {"temperature": 0.9, "top_p": 0.9, "seed": 5, "presence_penalty": 1, "frequency_penalty": 1},
    "any object": {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 12},
    "a tool that is not called": {"tools": [NAMED], "tool_choice": "none"},
    "one call at a time": {
        "tools": [NAMED],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 60,
    },
    "a turn behind a tool": {
        "tools": [NAMED],
        "input": [
            {"role": "user", "content": "Will it rain?"},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"days": 2}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "It will."},
        ],
    },
    "a turn behind a reasoned one": {
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
            {"role": "assistant", "content": "Ho"},
            {"role": "user", "content": "Go on"},
        ]
    },
    "a prompt that may be cut": {"truncation": "auto"},
    "tools of a server": {"tools": [{"type": "web_search"}, {"type": "code_interpreter", "container": "c"}]},
    # refused
    "a wrong temperature": {"temperature": -3},
    "too long a prompt": {"input": "word " * 5_000},
    "no such model": {"model": "none"},
    "no input": {"input": None},
    "an item that is none": {"input": [7]},
    "a role that is none": {"input": [{"role": "king", "content": "Hi"}]},
    "a picture": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PNG}]}]},
    "a limit that is none": {"max_output_tokens": "many"},
    "a negative limit": {"max_output_tokens": -1},
    "a schema that is none": {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "no"}}}},
    "a tool that is not there": {"tools": [NAMED], "tool_choice": {"type": "function", "name": "no"}},
    "a choice without tools": {"tool_choice": "required"},
    "a tool without a name": {"tools": [{"type": "function"}]},
    "too many log probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 5_000},
    "an unknown part": {"include": ["everything"]},
    "a response that is not there": {"previous_response_id": "resp_0"},
    "in the background": {"background": True},
    "a prompt of a store": {"prompt": {"id": "pmpt_1"}},
    "a truncation that is none": {"truncation": "middle"},
}


BROKEN_OFF = {"a schema that is none", "too many log probabilities"}
"""vLLM's server begins a stream of these with 200, and breaks it off."""
RESPONSES_NOW = {
    *("nothing special", "log probabilities", "fields of agents", "a turn behind a tool"),
    *("too long a prompt", "no such model", "a schema that is none"),
}


def masked(value: Any) -> str:
    """A response or event as text, without times, random ids, and what a prefix cache had."""
    text = re.sub(r'"(id|item_id|call_id)": "[a-z_-]+[0-9a-f]{8,}"', r'"\1": "…"', json.dumps(value, sort_keys=True))
    text = re.sub(r'("cached_tokens": )[0-9]+|\[\d\d:\d\d:\d\d\]', r"\1", text)
    return re.sub(r'("created_at": )[0-9.]+|(logprob": -?[0-9]+\.[0-9]{3})[0-9e-]+', r"\1\2", text)


@pytest.mark.parametrize("name", chosen(RESPONSE, RESPONSES_NOW))
async def test_a_streamed_response_is_that_of_vllms_own_server(engine: VllmEngine, name: str) -> None:
    """Its events are vLLM's, but for how many tokens a delta has; its result is that of the same request unstreamed."""
    base: dict[str, Any] = {
        "input": "What is the capital of France?",
        "max_output_tokens": 4,
        "temperature": 0,
        "store": False,
    }
    body = {**base, **RESPONSE[name]}
    whole = await engine.run(EngineRequest("unstreamed-1", RESPONSES, body, Lane.NORMAL))
    assert engine._app is not None
    own = await asgi.post(engine._app, RESPONSES, {}, json.dumps({**body, "request_id": "resp_unstreamed-1"}).encode())
    assert (whole.status, masked(json.loads(whole.body))) == (own.status, masked(json.loads(own.body)))
    events: list[Any] = []
    request = EngineRequest("streamed-1", RESPONSES, body, Lane.NORMAL, chunk_every_s=0.05)
    request.on_chunk = lambda line: events.append(json.loads(bytes(line)))
    reply = await engine.run(request)
    parts: list[bytes] = []
    asked_of_it = json.dumps({**body, "stream": True, "request_id": "resp_streamed-1"}).encode()
    answer, result = json.loads(reply.body), json.loads(whole.body)
    if name in BROKEN_OFF:
        assert (reply.status, masked(answer), len(events)) == (400, masked(result), 2)
        with pytest.raises(asgi.NoResponse):
            await asgi.post(engine._app, RESPONSES, {}, asked_of_it, parts.append)
        return
    own = await asgi.post(engine._app, RESPONSES, {}, asked_of_it, parts.append)
    if whole.status != 200:
        assert (reply.status, masked(answer), events) == (whole.status, masked(result), [])
        assert masked(answer) == masked(json.loads(own.body))
        return
    assert (result.pop("id"), answer["id"]) == ("resp_unstreamed-1", "resp_streamed-1")
    assert masked({**result, "id": answer["id"]}) == masked(answer)
    assert reply.first_token_ms is not None
    told = [json.loads(line[6:]) for line in b"".join(parts).decode().split("\n") if line.startswith("data: ")]
    for each in (events, told):
        assert [event.pop("sequence_number") for event in each] == list(range(len(each)))
    assert [masked(event) for event in joined(events)] == [masked(event) for event in joined(told)]
    assert json.loads(reply.body) == events[-1]["response"]


def joined(events: list[Any]) -> list[Any]:
    """Events with the deltas in a row as one."""
    found: list[Any] = []
    for event in events:
        if found and event["type"] == found[-1]["type"] and event["type"].endswith(".delta"):
            found[-1]["delta"] += event["delta"]
            found[-1].get("logprobs", []).extend(event.get("logprobs", []))
        else:
            found.append(event)
    return found


CITY = {"name": "weather", "input_schema": WEATHER["function"]["parameters"], "strict": True}
SAY = {"role": "user", "content": "What is the capital of France?"}
USED = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"days": 2}}
FOUND = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "Sun"}]}
MESSAGE: dict[str, dict[str, Any]] = {
    "nothing special": {},
    "a system text": {"system": "Answer in French."},
    "system blocks": {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    "a stop sequence": {"stop_sequences": ["the", "a", " "], "max_tokens": 12},
    "sampling": {"temperature": 0, "top_k": 3, "top_p": 0.5, "metadata": {"user_id": "someone"}},
    "a tool that has to be called": {"tools": [CITY], "tool_choice": {"type": "any"}, "max_tokens": 60},
    "a tool by name": {"tools": [CITY], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 60},
    "a tool that may be called": {"tools": [CITY], "tool_choice": {"type": "auto"}},
    "a tool's result": {
        "tools": [CITY],
        "messages": [SAY, {"role": "assistant", "content": [USED]}, {"role": "user", "content": [FOUND]}],
    },
    "thinking as before": {
        "messages": [
            SAY,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": "s"},
                    {"type": "text", "text": "日本 🌍"},
                ],
            },
            SAY,
        ]
    },
    "a shape": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "max_tokens": 30},
    "adaptive thinking": {"thinking": {"type": "adaptive"}},
    "a wrong temperature": {"temperature": -3},
    "no limit": {"max_tokens": None},
    "a tool that is not there": {"tools": [CITY], "tool_choice": {"type": "tool", "name": "none"}},
    "a choice without tools": {"tool_choice": {"type": "any"}},
    "a block that is none": {"messages": [{"role": "user", "content": [{"type": "nonsense"}]}]},
    "a role that is none": {"messages": [{"role": "tool", "content": "x"}]},
    "no messages": {"messages": []},
    "no content": {"messages": [{"role": "user", "content": []}]},
    "the beginning of the answer": {"messages": [SAY, {"role": "assistant", "content": "The capital"}]},
    "a result without its call": {"messages": [{"role": "user", "content": [FOUND]}]},
    "a result that is no text": {
        "messages": [{"role": "user", "content": [{**FOUND, "content": [{"type": "text", "text": 5}]}]}]
    },
    "a call without a name": {"messages": [SAY, {"role": "assistant", "content": [{"type": "tool_use"}]}, SAY]},
    "a schema that is none": {
        "tools": [{**CITY, "input_schema": {"type": "nonsense"}}],
        "tool_choice": {"type": "any"},
    },
    "a shape that is none": {"output_config": {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}},
    "a picture": {
        "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "x"}}]}]
    },
    "an empty stop sequence": {"stop_sequences": [""]},
    "no such model": {"model": "none"},
}


MESSAGES_NOW = {
    *("nothing special", "a stop sequence", "a tool that has to be called", "a tool's result", "thinking as before"),
    *("a wrong temperature", "no limit", "a result without its call"),
}


def unlike(value: Any) -> str:
    """A message or event as text, without random ids, and with the message's own as it is named."""
    text = json.dumps(value, sort_keys=True).replace('"chatcmpl-one"', '"msg_one"')
    return re.sub(r'"(id|signature)": "[a-zA-Z_-]*[0-9a-f]{8,}"', r'"\1": "…"', text)


@pytest.mark.parametrize("name", chosen(MESSAGE, MESSAGES_NOW))
async def test_a_message_is_that_of_vllms_own_server(engine: VllmEngine, name: str) -> None:
    """Whole and streamed, but for how many tokens a delta has; refusals are vLLM's, and never a fault of the engine."""
    body = {"model": "smollm2", "messages": [SAY], "max_tokens": 4, "temperature": 0, **MESSAGE[name]}
    assert engine._app is not None
    headers, parts = {"X-Request-Id": "one"}, list[bytes]()
    own = await asgi.post(engine._app, MESSAGES, headers, json.dumps(body).encode())
    whole = await engine.run(EngineRequest("one", MESSAGES, body, Lane.NORMAL))
    events: list[Any] = []
    request = EngineRequest("one", MESSAGES, body, Lane.NORMAL, chunk_every_s=0.05)
    request.on_chunk = lambda line: events.append(json.loads(bytes(line)))
    streamed = await ask(engine, request)
    assert whole.status == streamed.status == own.status
    assert unlike(json.loads(whole.body)) == unlike(json.loads(streamed.body)) == unlike(json.loads(own.body))
    if own.status != 200:
        assert (own.status < 500, events) == (True, [])
        return
    asked = json.dumps({**body, "stream": True}).encode()
    await asgi.post(engine._app, MESSAGES, headers, asked, parts.append)
    told = [json.loads(line[6:]) for line in b"".join(parts).decode().split("\n") if line.startswith("data: ")]
    assert [unlike(event) for event in in_one(events)] == [unlike(event) for event in in_one(told)]


def in_one(events: list[Any]) -> list[Any]:
    """Events of a message with the deltas in a row as one."""
    found: list[Any] = []
    for event in events:
        if (
            found
            and event["type"] == found[-1]["type"] == DELTA
            and event["delta"]["type"] == found[-1]["delta"]["type"]
        ):
            (piece,) = event["delta"].keys() - {"type"}
            found[-1]["delta"][piece] += event["delta"][piece]
        else:
            found.append(event)
    return found


@pytest.mark.parametrize("thinking", [None, {"type": "enabled", "budget_tokens": 30_000}], ids=["plain", "thinking"])
async def test_a_message_is_fitted_to_the_context(engine: VllmEngine, thinking: Any) -> None:
    """vLLM refuses it as it is: the only difference between both."""
    body = {"model": "smollm2", "messages": [SAY], "max_tokens": 32_000, "thinking": thinking, "stop_sequences": ["."]}
    assert (await engine.run(EngineRequest("long", MESSAGES, body, Lane.NORMAL))).status == 400
    request = EngineRequest("fitted", MESSAGES, body, Lane.NORMAL)
    assert await fit(engine, request) is None
    counted = await engine.run(EngineRequest("count", COUNT_TOKENS, {**body, "thinking": None}, Lane.NORMAL))
    longest = engine.capacity().max_model_len
    assert longest == request.body["max_tokens"] + json.loads(counted.body)["input_tokens"]
    assert (await engine.run(request)).status == 200


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_a_refused_budget_is_left_out(engine: VllmEngine, streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server does not tell beforehand that it cannot keep one; here the worker's own vLLM stands for it."""
    monkeypatch.setattr(vllm_host.Hosted, "reasons", True)
    thinking = {"type": "enabled", "budget_tokens": 1_024}
    body = {"model": "smollm2", "messages": [SAY], "max_tokens": 1_100, "thinking": thinking, "stop_sequences": ["."]}
    chunks: list[Any] = []
    refused, fitted = (
        EngineRequest("budget", MESSAGES, body, Lane.NORMAL, on_chunk=chunks.append if streams else None)
        for _ in range(2)
    )
    assert (await engine.run(refused)).status == 400
    assert (await ask(engine, fitted)).status == 200
    assert bool(chunks) is streams


async def test_a_message_that_is_too_long_says_by_how_much(engine: VllmEngine) -> None:
    longest = engine.capacity().max_model_len
    assert longest is not None
    for words in (longest, 3 * longest):
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "word " * words}], "max_tokens": 1}
        refused = await fit(engine, EngineRequest("too-long", MESSAGES, body, Lane.NORMAL))
        assert refused is not None
        (found,) = re.findall(r"prompt is too long: (\d+) tokens > (\d+) maximum", refused.body.decode())
        assert int(found[0]) > int(found[1]) == longest


async def test_an_interrupted_message_goes_on(engine: VllmEngine) -> None:
    """As a chat: it has the answer of one run, without generating again what was kept."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 40}
    first, cut, second = (
        EngineRequest("goes-on", MESSAGES, {**body, "temperature": 0}, Lane.NORMAL, on_chunk=lambda _: None)
        for _ in range(3)
    )
    whole = json.loads((await engine.run(first)).body)
    running = asyncio.create_task(engine.run(cut))
    await eventually(lambda: cut.made >= 8, 20, "it writes")
    running.cancel()
    await asyncio.wait({running})
    second.resume = cut.partial
    answer = json.loads((await engine.run(second)).body)
    assert second.resumed_tokens > 0
    assert answer["content"] == whole["content"]
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 40)
