"""Bodies as clients send them by their defaults pass every check of their cost; what hurts in their shape does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import (
    CHAT,
    COMPLETIONS,
    DEFAULT_MAX_BODY_BYTES,
    DETOKENIZE,
    EMBEDDINGS,
    RESPONSES,
    TOKENIZE,
    parse_body,
)
from streamfleet.worker.cost.check import check_cost, for_engine
from streamfleet.worker.cost.limits import CostLimits

LONGEST = 32_768
ASKED = {"messages": [{"role": "user", "content": "hi"}]}


def tool(number: int) -> dict[str, Any]:
    """One of about 1.7 KB, as an agent's are."""
    fields: dict[str, Any] = {
        f"field_{at}": {"type": "string", "description": "What it is for. " * 4} for at in range(12)
    }
    fields["kind"] = {"type": "string", "enum": ["one", "two", "three"], "description": "Which of them."}
    fields["items"] = {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}}
    parameters = {"type": "object", "properties": fields, "required": ["kind"], "additionalProperties": False}
    function = {"name": f"tool_{number}", "description": "What it does. " * 20, "parameters": parameters}
    return {"type": "function", "function": function}


def turn(number: int) -> list[dict[str, Any]]:
    """Items of an agent's turn, as OpenAI's SDK sends back what it was answered."""
    said = {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "user", "content": [{"type": "input_text", "text": "and"}, {"type": "input_image", "image_url": PNG}]},
        {"id": f"rs_{number}", "type": "reasoning", "summary": [], "encrypted_content": None},
        {"id": f"fc_{number}", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": None},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        {"id": f"msg_{number}", "type": "message", "status": "completed", "role": "assistant", "content": [said]},
    ]


PNG = "data:image/png;base64,iVBORw0KGgo="
TOOLS = [tool(number) for number in range(128)]
ITEMS = [item for number in range(170) for item in turn(number)][:1_000]
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "20 prompts of langchain": (COMPLETIONS, {"prompt": ["Tell me a story. " * 20] * 20, "max_tokens": 256, "n": 1}),
    "20 long prompts": (COMPLETIONS, {"prompt": ["some words " * 10_000] * 20}),
    "20 long prompts in tokens": (COMPLETIONS, {"prompt": [[7] * 8_192] * 20, "max_tokens": 1}),
    "20 prompts without a limit": (COMPLETIONS, {"prompt": ["hi"] * 20, "max_tokens": None}),
    "20 prompts in tokens": (COMPLETIONS, {"prompt": [[7] * 500] * 20, "max_tokens": LONGEST}),
    "n of long answers": (CHAT, {**ASKED, "n": 16, "max_tokens": LONGEST}),
    "n without a limit": (CHAT, {**ASKED, "n": 32}),
    "1000 texts of 200 tokens": (EMBEDDINGS, {"input": [[123_456] * 200] * 1_000}),
    "2048 texts": (EMBEDDINGS, {"input": ["some words"] * 2_048}),
    "a long text in tokens": (EMBEDDINGS, {"input": [123_456] * LONGEST}),
    "lm-eval's loglikelihood": (
        COMPLETIONS,
        {"prompt": [[7] * 2_048], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234},
    ),
    "the same in text": (COMPLETIONS, {"prompt": "some word" * 900, "max_tokens": 0, "logprobs": 1, "echo": True}),
    "tokens of a long text": (TOKENIZE, {"prompt": "some words " * 40_000}),
    "the text of its tokens": (DETOKENIZE, {"tokens": [123_456] * 100_000}),
    "1000 messages": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}] * 1_000}),
    "1000 items": (RESPONSES, {"input": ITEMS}),
    "128 tools": (CHAT, {**ASKED, "tools": TOOLS}),
    "128 tools, one of which must be called": (CHAT, {**ASKED, "tools": TOOLS, "tool_choice": "required"}),
    "128 tools of a response": (
        RESPONSES,
        {"input": "hi", "tools": [{"type": "function", **each["function"]} for each in TOOLS]},
    ),
    "an image as large as a body": (
        CHAT,
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG + "A" * 4_190_000}}]}
            ]
        },
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_what_clients_send_is_read_and_allowed(name: str) -> None:
    endpoint, body = REAL[name]
    read = parse_body(json.dumps(body).encode(), DEFAULT_MAX_BODY_BYTES)
    check_cost(read, CostLimits(), LONGEST, endpoint)
    assert for_engine(read, endpoint, CostLimits(), LONGEST) == body


USER = {"role": "user", "content": "a"}
ODD: list[Any] = [
    1,
    None,
    [],
    {},
    {"role": "user"},
    {"content": "a"},
    {**USER, "role": ["user"]},
    {**USER, "role": "nobody"},
    {**USER, "type": "nothing"},
    {**USER, "type": {}},
    {**USER, "content": [{}]},
    {**USER, "content": ["a"]},
    {**USER, "content": [{"type": "nothing", "text": "a"}]},
    {**USER, "content": [{"type": ["input_text"], "text": "a"}]},
    {**USER, "content": [{"type": "input_text", "text": 1}]},
    {**USER, "id": 1},
    {**USER, **{f"field_{number}": "" for number in range(9)}},
    {**USER, "content": [{"type": "output_text", "text": "a"}]},
    {**USER, "content": [{"type": "input_image", "image_url": "data:", "detail": "huge"}]},
    {**USER, "content": [{"type": "input_text", "text": []}]},
    {"type": "function_call", "call_id": "c"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": []},
    {"type": "function_call_output", "call_id": "c", "output": "a", "id": []},
    {"type": "function_call_output", "call_id": "c", "output": "a", "status": "odd"},
    {"type": "item_reference", "id": "x"},
]


@pytest.mark.parametrize("item", ODD, ids=json.dumps)
def test_items_that_an_engine_tries_in_many_forms_are_few(item: Any) -> None:
    check_cost({"input": [USER] * 896 + [item] * 96}, CostLimits(), None, RESPONSES)
    with pytest.raises(InvalidRequest) as refused:
        check_cost({"input": [item] * 129}, CostLimits(), None, RESPONSES)
    assert (refused.value.param, refused.value.code) == ("input", "too_expensive")


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (RESPONSES, {"input": [USER] * 1_025}),
        (RESPONSES, {"input": [{**USER, "content": [1] * 1_300}]}),
        (CHAT, {"messages": [USER] * 2_049}),
        (CHAT, {**ASKED, "tools": [tool(1)] * 20, "x": [[1] * 1_000] * 33}),
        (COMPLETIONS, {"prompt": ["a"] * 33}),
        (COMPLETIONS, {"prompt": ["a"] * 20, "n": 2}),
        (EMBEDDINGS, {"input": [[1]] * 2_049}),
        (CHAT, {**ASKED, "tools": [{"p": {f"f{n}": {} for n in range(40)}}] * 128, "tool_choice": "required"}),
        (CHAT, {**ASKED, "tools": [{"enum": ["x" * 16_000]}] * 17, "tool_choice": "required"}),
        (CHAT, {**ASKED, "tools": [{"enum": ["x" * 17_000]}]}),
    ],
)
def test_beyond_that_it_is_refused(endpoint: str, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_cost(body, CostLimits(), LONGEST, endpoint)
    assert refused.value.code == "too_expensive"


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (COMPLETIONS, {"prompt": ["a", "a" * (16 * LONGEST + 1)]}),
        (CHAT, {"messages": [{"role": "user", "content": "a" * (16 * LONGEST)}], "prompt": ["a"] * 20}),
        (CHAT, {**ASKED, "n": 2, "max_tokens": LONGEST + 1}),
    ],
)
def test_beyond_what_the_model_holds_it_is_refused_as_too_long(endpoint: str, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_cost(body, CostLimits(), LONGEST, endpoint)
    assert refused.value.code == "context_length_exceeded"


def test_a_limit_of_all_prompts_stays_one_of_all() -> None:
    limits = CostLimits(max_prompt_bytes=100)
    check_cost({"prompt": ["a" * 50] * 2}, limits, LONGEST, COMPLETIONS)
    with pytest.raises(InvalidRequest, match="at most 100 are allowed"):
        check_cost({"prompt": ["a" * 50, "a" * 51]}, limits, LONGEST, COMPLETIONS)


def test_a_limit_of_all_output_stays_one_of_all() -> None:
    limits = CostLimits(max_output_tokens=100)
    check_cost({**ASKED, "n": 4, "max_tokens": 25}, limits, LONGEST, CHAT)
    with pytest.raises(InvalidRequest, match="at most 100 output tokens"):
        check_cost({**ASKED, "n": 4, "max_tokens": 26}, limits, LONGEST, CHAT)
