"""A whole answer, put together from its chunks: whatever the cuts, it is the answer that was cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.worker.engine.assembling import Assembly

HEAD = {"id": "chatcmpl-1", "created": 7, "model": "m", "system_fingerprint": "f"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
logprobs = st.lists(st.fixed_dictionaries({"token": words, "logprob": st.just(-0.5), "top_logprobs": st.just([])}))
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": words,
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": words, "arguments": st.lists(words, min_size=1).map("".join)}),
        }
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def chat_answers(draw: st.DrawFn) -> dict[str, Any]:
    """A chat answer as an engine gives it whole."""
    choices = []
    for index in range(draw(st.integers(1, 3))):
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for name in ("content", "refusal", "reasoning_content"):
            if draw(st.booleans()):
                message[name] = "".join(draw(st.lists(words, min_size=1)))
        if draw(st.booleans()):
            message["tool_calls"] = draw(calls)
        told = {"content": draw(logprobs)} if draw(st.booleans()) else None
        reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
        choices.append({"index": index, "message": message, "logprobs": told, "finish_reason": reason})
    return {**HEAD, "object": "chat.completion", "choices": choices, "usage": USAGE}


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """A text, cut anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def deltas_of(draw: st.DrawFn, choice: dict[str, Any]) -> list[dict[str, Any]]:
    """Draws the deltas of a choice's chunks, in an order in which an engine could send them."""
    message = choice["message"]
    found: list[dict[str, Any]] = []
    for name in ("reasoning_content", "refusal", "content"):
        found += [{name: piece} for piece in pieces(draw, message[name])] if message.get(name) else []
    for index, call in enumerate(message.get("tool_calls", [])):
        function = {"name": call["function"]["name"], "arguments": ""}
        found.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]})
        for piece in pieces(draw, call["function"]["arguments"]):
            found.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return found


@st.composite
def streamed(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An answer, and chunks that say the same."""
    answer = draw(chat_answers())
    by_choice = []
    for choice in answer["choices"]:
        index = choice["index"]
        told = list((choice["logprobs"] or {}).get("content", []))
        parts: list[dict[str, Any]] = [{"index": index, "delta": {"role": "assistant"}, "logprobs": None}]
        for delta in deltas_of(draw, choice):
            some = told[:1] if choice["logprobs"] is not None else None
            told = told[1:]
            parts.append({"index": index, "delta": delta, "logprobs": None if some is None else {"content": some}})
        last = None if choice["logprobs"] is None else {"content": told}
        parts.append({"index": index, "delta": {}, "logprobs": last, "finish_reason": choice["finish_reason"]})
        by_choice.append(parts)
    mixed = []
    while any(by_choice):
        chosen = draw(st.sampled_from([parts for parts in by_choice if parts]))
        mixed.append({"finish_reason": None, **chosen.pop(0)})
    chunks = [{**HEAD, "object": "chat.completion.chunk", "choices": [choice], "usage": None} for choice in mixed]
    return answer, [*chunks, {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}]


@given(streamed())
def test_whatever_the_cuts_the_answer_is_the_one_that_was_cut(case: tuple[dict[str, Any], list[Any]]) -> None:
    answer, chunks = case
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(json.loads(json.dumps(chunk)))
    assert assembly.finished
    assert assembly.answer() == answer


def test_a_completion_has_its_texts_and_log_probabilities_joined() -> None:
    assembly = Assembly()
    for text, tokens in (("Hel", ["Hel"]), ("lo", ["lo"])):
        told = {"tokens": tokens, "token_logprobs": [-1.0], "top_logprobs": [{tokens[0]: -1.0}], "text_offset": [0]}
        assembly.add({"object": "text_completion", "choices": [{"index": 0, "text": text, "logprobs": told}]})
    assembly.add({"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    answer = assembly.answer()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "Hello"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["Hel", "lo"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in answer


def test_empty_content_beside_a_tool_call_is_none() -> None:
    assembly = Assembly()
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assembly.add({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    assembly.add({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]})
    message = assembly.answer()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize("repeated", ["id", "type"])
def test_a_name_that_comes_with_every_piece_is_taken_once(repeated: str) -> None:
    assembly = Assembly()
    for piece in ("{", "}"):
        call = {"index": 0, repeated: "same", "function": {"arguments": piece}}
        assembly.add({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    (call,) = assembly.answer()["choices"][0]["message"]["tool_calls"]
    assert (call[repeated], call["function"]["arguments"]) == ("same", "{}")


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": ["x"]},
        {"choices": [{"index": "x", "delta": {"content": "a"}}]},
        {"choices": [{"delta": 5, "text": 5, "logprobs": 7}]},
        {"choices": [{"index": 0, "delta": {"content": ["a"], "tool_calls": "x", "role": None}}]},
    ],
    ids=["nothing", "no choices", "odd choice", "odd index", "odd values", "odd message"],
)
def test_odd_chunks_break_nothing(chunk: dict[str, Any]) -> None:
    assembly = Assembly()
    for one in (chunk, {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}, chunk):
        assembly.add(one)
    assert json.dumps(assembly.answer())


def test_two_tool_calls_of_one_index_stay_two() -> None:
    """As some servers send them: the id comes first, or with each piece."""
    assembly = Assembly()
    pieces = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
        {"index": 0, "id": "b", "type": "function", "function": {"name": "g", "arguments": "["}},
        {"index": 0, "id": "b", "function": {"arguments": "]"}},
        {"index": 1, "id": "c", "type": "function", "function": {"name": "h", "arguments": "1"}},
        {"index": 0, "id": "", "function": {"arguments": " "}},
    ]
    for piece in pieces:
        assembly.add({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]})
    calls = assembly.answer()["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("a", "f", "{}"),
        ("b", "g", "[] "),
        ("c", "h", "1"),
    ]
