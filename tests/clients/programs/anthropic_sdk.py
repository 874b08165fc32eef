"""Anthropic's Python SDK."""

from __future__ import annotations

import time
from typing import Any

import anthropic
from calls import CITY, KEY, LIMIT, MODEL, SAY, URL, call, run

client = anthropic.Anthropic(base_url=URL.removesuffix("/v1"), api_key=KEY)
ASKED: list[Any] = [{"role": "user", "content": SAY}]
TOOLS: list[Any] = [{"name": "weather", "description": "The weather of a city", "input_schema": CITY}]
FORCED: Any = {"type": "tool", "name": "weather"}


@call
def models() -> Any:
    return [each.id for each in client.models.list() if each.id == MODEL]


@call
def message() -> Any:
    (block,) = client.messages.create(model=MODEL, messages=ASKED, max_tokens=LIMIT, system="Be kind").content
    return block.text


@call
def message_streamed() -> Any:
    with client.messages.stream(model=MODEL, messages=ASKED, max_tokens=LIMIT) as stream:
        text = "".join(stream.text_stream)
    assert stream.get_final_message().usage.output_tokens
    return text


@call
def more_tokens_than_the_context_has() -> Any:
    options: Any = {"stop_sequences": ["a", "e", "i", "o"]}
    return client.messages.create(model=MODEL, messages=ASKED, max_tokens=20_000, **options).stop_reason


@call
def thinking_that_the_model_cannot_do() -> Any:
    thinking: Any = {"type": "enabled", "budget_tokens": 1_024}
    return client.messages.create(model=MODEL, messages=ASKED, max_tokens=1_100, thinking=thinking).content


@call
def tool_and_its_result() -> Any:
    made = client.messages.create(model=MODEL, messages=ASKED, max_tokens=200, tools=TOOLS, tool_choice=FORCED)
    (use,) = [block for block in made.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": f"Fine in {use.input['city']}"}
    turns: Any = [*ASKED, {"role": "assistant", "content": made.content}, {"role": "user", "content": [result]}]
    return client.messages.create(model=MODEL, messages=turns, max_tokens=LIMIT, tools=TOOLS).content


@call
def tool_streamed() -> Any:
    asked: Any = {"tools": TOOLS, "tool_choice": FORCED}
    with client.messages.stream(model=MODEL, messages=ASKED, max_tokens=200, **asked) as stream:
        (use,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    return use.input["city"]


@call
def tokens_counted() -> Any:
    return client.messages.count_tokens(model=MODEL, messages=ASKED, tools=TOOLS).input_tokens


@call
def batches() -> Any:
    params: Any = {"model": MODEL, "messages": ASKED, "max_tokens": LIMIT}
    made = client.messages.batches.create(requests=[{"custom_id": "a", "params": params}])
    until = time.monotonic() + 60
    while client.messages.batches.retrieve(made.id).processing_status != "ended" and time.monotonic() < until:
        time.sleep(0.5)
    (result,) = client.messages.batches.results(made.id)
    assert made.id in [each.id for each in client.messages.batches.list()]
    client.messages.batches.delete(made.id)
    return result.result.type == "succeeded" and result.result.message.content


@call
def error_of_the_model() -> Any:
    try:
        client.messages.create(model="none", messages=ASKED, max_tokens=LIMIT)
    except anthropic.NotFoundError as error:
        return "none" in str(error) and error.request_id
    return None


@call
def error_of_the_context() -> Any:
    try:
        client.messages.create(model=MODEL, messages=[{"role": "user", "content": "hi " * 9000}], max_tokens=LIMIT)
    except anthropic.BadRequestError as error:
        return "prompt is too long: " in str(error)
    return None


run()
