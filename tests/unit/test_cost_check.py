"""Largest cost of a request, and what of its body the engine gets."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamfleet.common.errors import InvalidRequest, SettingsError
from streamfleet.common.protocol import CHAT, COMPLETIONS, RESPONSES, infer_endpoint
from streamfleet.common.settings import WorkerSettings, load
from streamfleet.worker.cost.check import check_cost, checked_demand, for_engine
from streamfleet.worker.cost.limits import CostLimits, Feature

LIMITS = CostLimits(
    max_sequences=4,
    max_output_tokens=100,
    max_prompt_bytes=200,
    max_inputs=50,
    max_messages=16,
    max_values=400,
    max_depth=12,
    max_options=40,
    max_odd_items=2,
    max_logprobs=5,
    max_echoed_tokens=20,
    max_grammar_bytes=600,
    max_tools_bytes=600,
    max_grammar_ms=950,
    max_pattern_size=100,
    max_pattern_ways=4,
)


def check(body: dict[str, Any], limits: CostLimits, longest: int | None = None, endpoint: str = "") -> None:
    """As the worker does: with the endpoint that the body is for."""
    with contextlib.suppress(InvalidRequest):
        endpoint = endpoint or infer_endpoint(body)
    check_cost(body, limits, longest, endpoint)


def nested(depth: int, inside: Any = 1) -> Any:
    for _ in range(depth):
        inside = [inside]
    return inside


def schema(**inside: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": inside}}}


def properties(count: int, **each: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": each for number in range(count)}}


def said(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


TOO_EXPENSIVE: list[tuple[dict[str, Any], str]] = [
    ({"n": 5}, "n"),
    ({"n": 4.5}, "n"),
    ({"n": "5"}, "n"),
    ({"n": "9" * 5_000}, "n"),
    ({"n": float("inf")}, "n"),
    ({"n": 10**400}, "n"),
    ({"best_of": 5}, "best_of"),
    ({"prompt": ["a"] * 5}, "prompt"),
    ({"prompt": ["a", "b"], "n": 3}, "prompt"),
    ({"max_tokens": 101}, "max_tokens"),
    ({"max_tokens": 26, "n": 4}, "max_tokens"),
    ({"max_tokens": "1_000"}, "max_tokens"),
    ({"max_completion_tokens": 101, "max_tokens": 1}, "max_completion_tokens"),
    ({"max_tokens": 101, "max_completion_tokens": 1}, "max_tokens"),
    ({"max_output_tokens": 1e9}, "max_output_tokens"),
    ({"min_tokens": 101}, "min_tokens"),
    ({"prompt": ["a", "b"], "max_tokens": 60}, "max_tokens"),
    ({"input": ["a"] * 51}, "input"),
    ({"text_2": ["a"] * 51}, "text_2"),
    ({"items": ["a"] * 51}, "items"),
    ({"query": "a", "documents": ["a"] * 51}, "documents"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": True, "top_logprobs": "6"}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"stop": ["a"] * 41}, "stop"),
    ({"logit_bias": {str(token): 1 for token in range(41)}}, "logit_bias"),
    ({"bad_words": ["a"] * 41}, "bad_words"),
    ({"what_nobody_knows": [1] * 41}, "what_nobody_knows"),
    ({"messages": [{}] * 17}, "messages"),
    ({"messages": [1] * 17}, "messages"),
    ({"input": [{}] * 3}, "input"),
    (said([{"type": "text", "text": "a"}] * 17), "messages"),
    ({"messages": [{"content": [1] * 9}, {"content": [1] * 8}]}, "messages"),
    ({"tools": [{"a": {str(number): 1 for number in range(50)}}] * 8}, "tools"),
    ({"tools": [{}] * 41}, "tools"),
    ({"chat_template_kwargs": {str(number): 1 for number in range(41)}}, "chat_template_kwargs"),
    ({"prompt": ["a", *[1] * 400]}, "prompt"),
    ({"prompt": [[1] * 5, [-1] * 400]}, "prompt"),
    ({"prompt": [2**32] * 401}, "prompt"),
    ({"metadata": nested(13)}, "metadata"),
    ({"messages": nested(100_000)}, "messages"),
    (said("a" * 201), "messages"),
    (said("ß" * 101), "messages"),
    (said([{"type": "text", "text": "a" * 101}] * 2), "messages"),
    ({**said("a" * 101), "documents": [{"text": "a" * 100}]}, "messages"),
    ({**said("a"), "tools": [{"description": "a" * 200}]}, "tools"),
    ({**said("a"), "chat_template_kwargs": {"more": "a" * 200}}, "chat_template_kwargs"),
    ({"prompt": "a" * 201}, "prompt"),
    ({"prompt": ["a" * 101] * 2}, "prompt"),
    ({"prompt": "data:" + "a" * 196}, "prompt"),
    (said("data:" + "a" * 200), "messages"),
    (said([{"type": "text", "text": "data:" + "a" * 200}]), "messages"),
    (said([{"type": "document", "source": {"type": "text", "data": "a" * 201}}]), "messages"),
    ({"tools": [{"function": {"parameters": {"url": "a" * 201}}}]}, "tools"),
    ({"tools": [{"function": {"parameters": {"data": "a" * 201}}}]}, "tools"),
    ({"tools": [{"function": {"parameters": {"input_audio": "a" * 201}}}]}, "tools"),
    ({"tools": [{"input_schema": {"source": {"type": "base64", "data": "a" * 201}}}]}, "tools"),
    ({"chat_template_kwargs": {"image": "data:" + "a" * 196}}, "chat_template_kwargs"),
    ({"prompt": [1] * 51}, "prompt"),
    ({"prompt": [[1] * 26] * 2}, "prompt"),
    ({"input": [1] * 51}, "input"),
    ({"input": ["a", [1] * 51]}, "input"),
    ({"input": ["a", "a" * 201]}, "input"),
    ({"input": [{"role": "user", "content": "a" * 150}], "instructions": "a" * 60}, "input"),
    ({"query": "a" * 201, "documents": ["a"]}, "query"),
    (schema(description="a" * 600), "response_format"),
    ({"structured_outputs": {"regex": "x" * 600}}, "structured_outputs"),
    ({"structured_outputs": {"choice": ["x" * 70] * 9}}, "structured_outputs"),
    ({"guided_regex": "x" * 600}, "guided_regex"),
    ({"text": {"format": {"schema": "x" * 600}}}, "text"),
    ({"tools": [{"function": {"parameters": {"d": "x" * 600}}}]}, "tools"),
    ({"tools": [{"function": {f"property-{n}": n for n in range(9)}}] * 4, "tool_choice": "required"}, "tools"),
    (schema(type="string", pattern="(.?){5}x"), "response_format"),
    (schema(type="string", pattern="[a-z]{101}"), "response_format"),
    (schema(type="string", pattern="(?=a)"), "response_format"),
    (schema(type="object", patternProperties={"(.?){5}": {}}), "response_format"),
    ({"guided_regex": "(.?){5000}x"}, "guided_regex"),
    ({"guided_whitespace_pattern": "(.?){5000}x"}, "guided_whitespace_pattern"),
    ({"guided_json": json.dumps({"pattern": "(.?){5000}x"})}, "guided_json"),
    ({"structured_outputs": {"json": json.dumps({"pattern": "(.?){5000}x"})}}, "structured_outputs"),
    (
        {"structured_outputs": {"structural_tag": '{"format":{"type":"regex","pattern":".*.*.*.*.*"}}'}},
        "structured_outputs",
    ),
    ({"response_format": {"type": "structural_tag", "format": {"pattern": "(.?){9}"}}}, "response_format"),
    ({"tools": [{"function": {"parameters": {"items": {"pattern": "(.?){9}"}}}}]}, "tools"),
    ({"structured_outputs": {"json": "[" * 100 + "]" * 100}}, "structured_outputs"),
    ({"structured_outputs": {"json": "[" * 290 + "]" * 290}}, "structured_outputs"),
    (schema(anyOf=[{"maxLength": 70}, {"maxLength": 71}]), "response_format"),
    (schema(anyOf=[{"maxLength": -1e12}, {"minLength": 70}, {"minLength": "71"}]), "response_format"),
    (schema(**{**properties(40), "minProperties": 30}), "response_format"),
    (schema(**{**properties(40), "maxProperties": 30}), "response_format"),
    ({"guided_regex": "[^x]{1,49}x[^y]{1,49}y"}, "guided_regex"),
]
NOT_ALLOWED: list[tuple[dict[str, Any], str, Feature]] = [
    ({"use_beam_search": True, "n": 2}, "use_beam_search", Feature.BEAM_SEARCH),
    ({"prompt_logprobs": 0}, "prompt_logprobs", Feature.PROMPT_LOGPROBS),
    ({"prompt_logprobs": "1"}, "prompt_logprobs", Feature.PROMPT_LOGPROBS),
    ({"prompt": [1] * 21, "echo": True, "logprobs": 0}, "echo", Feature.PROMPT_LOGPROBS),
    ({"prompt": [[1] * 11] * 2, "echo": True, "logprobs": 1}, "echo", Feature.PROMPT_LOGPROBS),
    ({"prompt": "a" * 40, "echo": True, "logprobs": True, "top_logprobs": 1}, "echo", Feature.PROMPT_LOGPROBS),
    ({"chat_template": "{{ 1 }}"}, "chat_template", Feature.CHAT_TEMPLATES),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", Feature.CHAT_TEMPLATES),
    ({"prompt_embeds": "AAAA"}, "prompt_embeds", Feature.EMBEDS),
    (said([{"type": "image_embeds", "image_embeds": "AAAA"}]), "messages", Feature.EMBEDS),
    ({"mm_processor_kwargs": {"num_crops": 10**9}}, "mm_processor_kwargs", Feature.PROCESSOR_KWARGS),
    ({"media_io_kwargs": {"video": {"num_frames": -1}}}, "media_io_kwargs", Feature.PROCESSOR_KWARGS),
    (said([{"image_url": {"url": "http://169.254.169.254/"}}]), "messages", Feature.MEDIA_URLS),
    (said([{"image_url": "HTTPS://x/y.png"}]), "messages", Feature.MEDIA_URLS),
    (said([{"video_url": {"url": "file:///etc/passwd"}}]), "messages", Feature.MEDIA_URLS),
    (said([{"audio_url": ["ftp://x"]}]), "messages", Feature.MEDIA_URLS),
    ({"input": [{"image": "http://x/y.png"}]}, "input", Feature.MEDIA_URLS),
    ({"input": [{"content": [{"type": "input_image", "image_url": "//x"}]}]}, "input", Feature.MEDIA_URLS),
    ({"documents": {"content": [{"image_url": {"url": "http://x"}}]}}, "documents", Feature.MEDIA_URLS),
    ({"tools": [{"type": "mcp", "server_url": "http://x"}]}, "tools", Feature.MEDIA_URLS),
    ({"guided_grammar": "root ::= root root"}, "guided_grammar", Feature.GRAMMARS),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs", Feature.GRAMMARS),
    ({"response_format": {"type": "grammar", "grammar": "x"}}, "response_format", Feature.GRAMMARS),
]


@pytest.mark.parametrize(("body", "param"), TOO_EXPENSIVE)
def test_too_much_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check(body, LIMITS)
    assert refusal.value.param == param
    assert refusal.value.code == "too_expensive"
    assert len(refusal.value.message) < 200


NO_LISTS: list[Any] = [True, 0, 1.5, "x", {}]
NO_OBJECTS: list[Any] = [True, 0, "x", []]
NO_TOOLS: list[Any] = [1, {}, {"function": {}}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *[({"messages": wrong}, "messages") for wrong in [None, *NO_LISTS]],
        *[({name: wrong}, name) for name in ("tools", "functions") for wrong in NO_LISTS],
        *[({"structured_outputs": wrong}, "structured_outputs") for wrong in NO_OBJECTS],
        *[({"messages": [{}, {"tool_calls": wrong}]}, "messages") for wrong in NO_LISTS],
        *[({**said("a"), "tools": [wrong], "tool_choice": {}}, "tools") for wrong in NO_TOOLS],
    ],
)
def test_types_on_which_a_front_end_breaks_are_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check(body, LIMITS)
    assert (refusal.value.param, refusal.value.code) == (param, "invalid_type")


@pytest.mark.parametrize(("body", "param", "feature"), NOT_ALLOWED)
def test_what_can_hurt_all_is_refused_unless_it_is_allowed(body: dict[str, Any], param: str, feature: Feature) -> None:
    others = [each for each in Feature if each is not feature]
    with pytest.raises(InvalidRequest, match=f"STREAMFLEET_ALLOW={feature}") as refusal:
        check_cost(body, replace(LIMITS, allow=others))
    assert refusal.value.param == param
    assert refusal.value.code == "not_allowed"
    check_cost(body, replace(LIMITS, allow=[feature]))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 4, "max_tokens": 25},
        {"n": "4"},
        {"n": None},
        {"n": -7},
        {"n": True},
        {"n": "many"},
        {"n": "nan"},
        {"max_tokens": [], "min_tokens": {}},
        {"prompt": [1] * 50},
        {"prompt": [[1] * 25, [2] * 25]},
        {"prompt": ["a", "b"], "n": 2},
        {"prompt": ["a" * 50] * 4},
        {"input": ["a" * 200] * 50},
        {"input": [1] * 50},
        {"input": [[1] * 50] * 50},
        {"documents": [{"text": "a" * 200}] * 50, "query": "a"},
        {"logprobs": True, "top_logprobs": 5},
        {"echo": True},
        {"echo": True, "logprobs": False},
        {"prompt": [1] * 50, "echo": True},
        {"prompt": [[1] * 10] * 2, "echo": True, "logprobs": 1},
        {"prompt": "a" * 39, "echo": True, "logprobs": 5},
        {"guided_regex": "x" * 90},
        {"response_format": None, "tools": None, "structured_outputs": None, "prompt": None},
        {"messages": [None, 1, {"tool_calls": None}, {"tool_calls": []}]},
        {**said("a"), "tools": [{"function": {"name": "f"}}], "tool_choice": {}},
        {"input": "a", "tools": [{"name": "f"}], "tool_choice": {}},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "user", "content": "a" * 16}] * 10},
        said([{"image_url": {"url": "data:image/png;base64," + "A" * 1_000}}]),
        said([{"image_url": "Data:image/png;base64," + "A" * 1_000}]),
        said([{"type": "input_file", "file_data": "data:application/pdf;base64," + "A" * 1_000}]),
        said([{"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 1_000}}]),
        said([{"type": "image", "source": {"type": "base64", "data": "A" * 1_000}}]),
        said([{"type": "input_audio", "input_audio": {"data": "A" * 1_000, "format": "wav"}}]),
        said("see https://example.com/x.png"),
        {"documents": [{"text": "a", "source_url": "https://example.com"}], **said("a")},
        {"tools": [{"function": {"parameters": properties(9, type="string", format="date")}}], "tool_choice": "auto"},
        {"tools": [{"function": {f"property-{n}": n for n in range(9)}}] * 4, "tool_choice": "auto"},
        {"tools": [{"function": {"parameters": {"properties": {"image_url": {"type": "string"}}}}}]},
        schema(**properties(10, type="string", maxLength=60)),
        schema(**{**properties(10), "minProperties": 10**9}),
        schema(type="string", pattern="^[a-z]{1,50}@[a-z]+$"),
        schema(properties={"pattern": {"type": "string"}, "grammar": {"type": "string"}}),
        {"structured_outputs": {"json": "{not json"}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"mm_processor_kwargs": {}, "chat_template": None},
        {"use_beam_search": False},
    ],
)
def test_what_is_allowed_or_the_engines_to_check_passes(body: dict[str, Any]) -> None:
    check(body, LIMITS)


@pytest.mark.parametrize("item", [1, "a", {}, None, [1]])
def test_items_of_a_conversation_are_messages_whatever_they_are(item: Any) -> None:
    check({"input": [item] * 2}, LIMITS, endpoint=RESPONSES)
    with pytest.raises(InvalidRequest, match="3 items of unusual form; at most 2 are allowed"):
        check({"input": [item] * 3}, LIMITS, endpoint=RESPONSES)
    with pytest.raises(InvalidRequest, match="9 messages; at most 8 are allowed"):
        check({"input": [*said("a")["messages"]] * 9}, LIMITS, endpoint=RESPONSES)


def test_tokens_are_many_values_where_no_prompt_in_tokens_belongs() -> None:
    for name, endpoint in (("input", RESPONSES), ("prompt", CHAT), ("input", CHAT)):
        with pytest.raises(InvalidRequest, match="beyond 400 values"):
            check({name: [1] * 401}, LIMITS, endpoint=endpoint)


def test_values_of_an_unusual_item_count_as_often_as_it_may_have_forms() -> None:
    check({"input": [{"tools": [1] * 13}]}, LIMITS, endpoint=RESPONSES)
    with pytest.raises(InvalidRequest, match="beyond 400 values"):
        check({"input": [{"tools": [1] * 14}]}, LIMITS, endpoint=RESPONSES)


def test_limits_that_are_not_set_follow_the_engine() -> None:
    limits = CostLimits()
    check_cost({"max_tokens": 2_048}, limits, 2_048)
    check_cost(said("a" * (2_048 * 16 - len("user"))), limits, 2_048)
    check_cost({"max_tokens": 32_768}, limits)
    check_cost(said("a" * 1_000_000), limits)
    for body in ({"max_tokens": 2_049}, said("a" * (2_048 * 16 - len("user") + 1))):
        with pytest.raises(InvalidRequest):
            check_cost(body, limits, 2_048)
    with pytest.raises(InvalidRequest):
        check_cost({"max_tokens": 32_769}, limits)


@pytest.mark.parametrize("pattern", ["a{129}", "(a|b{1,129}){2}", "[a-z]{129,}", "x|a{,129}"])
def test_a_schemas_pattern_repeats_no_more_than_its_compiler_bears(pattern: str) -> None:
    limits = CostLimits(max_pattern_ways=999)
    for body in (schema(type="string", pattern=pattern), schema(patternProperties={pattern: {}})):
        with pytest.raises(InvalidRequest, match="repeats a part 129 times"):
            check(body, limits)
    check(schema(type="string", pattern=pattern.replace("129", "128")), limits)
    check({"guided_regex": pattern}, limits)


EMPTY = r"^a[^\s\S]$"


@pytest.mark.parametrize(
    "body",
    [
        {"guided_regex": EMPTY},
        {"structured_outputs": {"regex": EMPTY}},
        {"structured_outputs": {"json": json.dumps({"pattern": EMPTY})}},
        {"structured_outputs": {"structural_tag": json.dumps({"format": {"type": "regex", "pattern": EMPTY}})}},
        {"guided_json": {"type": "array", "items": {"pattern": EMPTY}}},
        schema(type="string", pattern=EMPTY),
        schema(type="object", patternProperties={EMPTY: {}}),
        {"guided_whitespace_pattern": EMPTY},
        {"tools": [{"function": {"parameters": {"properties": {"x": {"pattern": EMPTY}}}}}]},
    ],
)
def test_a_pattern_that_no_text_matches_is_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="class of no character") as refusal:
        check(body, CostLimits())
    assert (refusal.value.param, refusal.value.code) == (next(iter(body)), "invalid_value")


# Lists for which vLLM's V2 model runner has a row of fixed width: with one item more, it ends with all that it runs.
ROWS: list[tuple[str, int, Any]] = [
    ("stop_token_ids", 128, list(range(1_024))),
    ("logprob_token_ids", 128, list(range(1_024))),
    ("allowed_token_ids", 1_024, list(range(5_000))),
    ("logit_bias", 1_024, {str(token): 1 for token in range(5_000)}),
    ("bad_words", 64, [f"{number}" for number in range(1_024)]),
]


def cut(items: Any, length: int) -> Any:
    return dict(list(items.items())[:length]) if isinstance(items, dict) else items[:length]


@pytest.mark.parametrize(("name", "most", "items"), ROWS)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES])
def test_what_ends_an_engine_is_refused_whatever_a_setting_allows(
    name: str, most: int, items: Any, endpoint: str
) -> None:
    body: dict[str, Any] = {CHAT: said("a"), COMPLETIONS: {"prompt": "a"}, RESPONSES: {"input": "a"}}[endpoint]
    for limits in (CostLimits(), CostLimits(max_options=100_000, max_values=100_000)):
        check({**body, name: cut(items, most)}, limits, endpoint=endpoint)
        for more in (cut(items, most + 1), cut(items, 1_024), items):
            if len(more) > most:
                with pytest.raises(InvalidRequest, match=f"at most {most} are allowed") as refused:
                    check({**body, name: more}, limits, endpoint=endpoint)
                assert (refused.value.param, refused.value.code) == (name, "too_expensive")


@pytest.mark.parametrize("least", [1, 5, "1", 1.0, True])
def test_stop_tokens_leave_room_for_the_models_own_where_the_engine_adds_them(least: Any) -> None:
    """With `min_tokens`, all of them together are held back, in a row of 128."""
    body = {"max_tokens": 9, "min_tokens": least, **said("a")}
    check({**body, "stop_token_ids": list(range(112))}, CostLimits())
    for count in (113, 127, 128):
        with pytest.raises(InvalidRequest, match="with min_tokens") as refused:
            check({**body, "stop_token_ids": list(range(count))}, CostLimits())
        assert refused.value.param == "stop_token_ids"


@pytest.mark.parametrize(
    "words",
    [
        ["x" * 512],
        ["bad word"] * 57,  # 57 times 8 and one
        ["ß" * 256],
        ["\U0001d160" * 43],  # 4 bytes, which a tokenizer reads as 12
        ["\ufdfa" * 20],  # 3 bytes, of which one makes 33
        ["x" * 1_000_000],
    ],
)
def test_bad_words_of_more_tokens_than_an_engine_has_room_for_are_refused(words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check({"bad_words": words, **said("a")}, CostLimits(max_options=100_000))
    assert (refused.value.param, refused.value.code) == ("bad_words", "too_expensive")


@pytest.mark.parametrize("words", [["x" * 511], ["seven b"] * 64, ["ß" * 255], [], [5], None, "none"])
def test_other_bad_words_pass(words: Any) -> None:
    check({"bad_words": words, **said("a")}, CostLimits())


def test_long_choices_are_dear_even_where_they_are_few() -> None:
    choices = {"structured_outputs": {"choice": ["a" * 4_000] * 4}}
    check_cost(choices, CostLimits())
    with pytest.raises(InvalidRequest, match="longer to compile"):
        check_cost(choices, CostLimits(max_grammar_ms=3_000))


def test_a_depth_beyond_what_python_follows_is_refused_all_the_same() -> None:
    deep = nested(990)
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        check_cost({"tools": [nested(100_000)]}, CostLimits(max_depth=200_000, max_values=200_000))
    check_cost({"metadata": deep}, CostLimits(max_depth=2_000))


def test_four_limits_are_settings_with_the_same_default() -> None:
    assert CostLimits.of(load(WorkerSettings)) == CostLimits()
    names = {field.name for field in fields(CostLimits)} & set(WorkerSettings.model_fields)
    assert names == {"max_sequences", "max_output_tokens", "max_prompt_bytes", "allow"}
    given = load(WorkerSettings, allow="grammars, media_urls", max_sequences=99)
    assert CostLimits.of(given) == CostLimits(max_sequences=99, allow=("grammars", "media_urls"))


def test_features_are_those_of_the_setting() -> None:
    assert load(WorkerSettings, allow=",".join(Feature)).allow == tuple(Feature)
    with pytest.raises(SettingsError, match="STREAMFLEET_ALLOW"):
        load(WorkerSettings, allow="everything")


NAMES = st.sampled_from(
    [
        *("n", "best_of", "prompt", "messages", "content", "input", "max_tokens", "min_tokens", "logprobs", "echo"),
        *("top_logprobs", "prompt_logprobs", "stop", "logit_bias", "response_format", "schema", "pattern", "regex"),
        *("json", "structured_outputs", "guided_json", "tools", "tool_choice", "minLength", "maxLength", "properties"),
        *("minProperties", "patternProperties", "choice", "grammar", "image_url", "url", "chat_template_kwargs"),
        *("chat_template", "documents", "use_beam_search", "minimum", "structural_tag", "instructions", "query"),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=9), st.sampled_from(["nan", "-inf", "1e400", "(.?){9}", "[", '{"pattern":"["}', "http://x"])
)
NUMBERS = st.one_of(st.integers(), st.sampled_from([10**400, -(10**400), 1e308, -1, 0]), st.floats(allow_nan=False))
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.one_of(NAMES, TEXTS), inner, max_size=5)),
    max_leaves=20,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.one_of(NAMES, TEXTS), ANYTHING, max_size=6), st.sampled_from([None, 1, 2_048]))
def test_any_body_passes_or_is_refused(body: dict[str, Any], longest: int | None) -> None:
    try:
        check_cost(body, CostLimits(), longest)
        for_engine(body, CHAT, CostLimits(), longest)
        check_cost(body, LIMITS, longest)
    except InvalidRequest as refusal:
        json.loads(refusal.to_openai())


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{}] * 340_000},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 26_000}]},
        {"tools": [{"function": {"parameters": {"pattern": "(a|b)" * 3_000}}}] * 60},
        {"tools": [{"pattern": f"{number}" + "[a-z]?" * 20} for number in range(3_000)]},
        {"prompt": ["a" * 20] * 40_000},
        {"prompt": [1] * 500_000},
        {"input": [[1, 2]] * 100_000},
        {"logit_bias": {str(number): 1 for number in range(60_000)}},
        {"guided_json": {f"p{number}": {"maxLength": number} for number in range(20_000)}},
        {"prompt": "a" * 1_000_000},
        {"messages": [{"role": "user", "content": "中" * 300_000}]},
    ],
)
def test_a_megabyte_of_anything_is_judged_in_a_moment(body: dict[str, Any]) -> None:
    begin = time.process_time()
    with contextlib.suppress(InvalidRequest):
        check(body, CostLimits(), 131_072)
    assert time.process_time() - begin < 0.5


def test_the_workers_own_business_stays_with_the_worker() -> None:
    body = {"messages": [], "stream": True, "stream_options": {}, "priority": 1, "request_id": "x", "seed": 1}
    assert for_engine(body) == {"messages": [], "seed": 1}
    assert body["stream"] is True


@pytest.mark.parametrize(
    ("body", "endpoint", "limits", "longest", "cap"),
    [
        ({**said("hi"), "n": 2}, CHAT, CostLimits(max_output_tokens=2_048), 2_048, 1_024),
        ({**said("hi"), "n": 2, "max_tokens": None}, CHAT, CostLimits(max_output_tokens=2_048), 2_048, 1_024),
        (said("hi"), CHAT, CostLimits(max_output_tokens=500), 2_048, 500),
        (said("hi"), CHAT, CostLimits(max_output_tokens=500), None, 500),
        ({"prompt": "hi", "max_tokens": None, "n": 2}, COMPLETIONS, CostLimits(max_output_tokens=64), 2_048, 32),
        # A server that does not refuse such a limit ignores it.
        ({**said("hi"), "max_tokens": -1}, CHAT, CostLimits(max_output_tokens=500), 2_048, 500),
        ({**said("hi"), "max_tokens": "many"}, CHAT, CostLimits(max_output_tokens=500), None, 500),
        ({**said("hi"), "max_tokens": [1], "n": 2}, CHAT, CostLimits(max_output_tokens=2_048), 2_048, 1_024),
        ({**said("hi"), "max_completion_tokens": -1}, CHAT, CostLimits(max_output_tokens=500), 2_048, 500),
        ({**said("hi"), "max_completion_tokens": {}, "max_tokens": 9}, CHAT, CostLimits(max_output_tokens=8), 64, 8),
        ({"prompt": "hi", "max_tokens": -5}, COMPLETIONS, CostLimits(max_output_tokens=500), 2_048, 500),
        # Nothing to say: it cannot be too much, the caller said it, it has a default, or only the engine knows.
        (said("hi"), CHAT, CostLimits(), 2_048, None),
        ({**said("hi"), "n": 2}, CHAT, CostLimits(max_output_tokens=4_096), 2_048, None),
        ({**said("hi"), "n": 2}, CHAT, CostLimits(), None, None),
        ({**said("hi"), "n": 16}, CHAT, CostLimits(), 2_048, None),
        ({"prompt": "hi", "n": 2}, COMPLETIONS, CostLimits(), 2_048, None),
        ({"input": "hi", "n": 2}, "/v1/embeddings", CostLimits(), 2_048, None),
        (said("a" * 5_000), CHAT, CostLimits(max_output_tokens=500), 2_048, None),
    ],
)
def test_what_is_left_open_is_limited(
    body: dict[str, Any], endpoint: str, limits: CostLimits, longest: int | None, cap: int | None
) -> None:
    assert for_engine(body, endpoint, limits, longest).get("max_tokens") == cap


def test_a_limit_of_the_callers_own_stays() -> None:
    body = {**said("hi"), "n": 2, "max_completion_tokens": 7}
    assert for_engine(body, CHAT, CostLimits(), 2_048) == body


def test_many_answers_of_any_length_to_a_long_prompt_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="set it to at most 512") as refusal:
        for_engine({**said("a" * 5_000), "n": 4}, CHAT, CostLimits(max_output_tokens=2_048), 2_048)
    assert refusal.value.param == "max_tokens"


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


PNG = "data:image/png;base64," + "A" * 300_000
FETCHED = CostLimits(allow=(Feature.MEDIA_URLS,))


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([image(PNG)], 1_300),
        ([image(PNG), image(PNG)], 2_600),
        ([{"type": "input_image", "image_url": PNG}], 1_300),
        ([image("https://example.com/x.png")], 1_300),
        ([{"type": "input_audio", "input_audio": {"data": "A" * 300_000, "format": "wav"}}], 750),
        ([{"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64," + "A" * 9_000}}], 750),
        ([{"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + "A" * 9_000}}], 6_272),
        ([{"type": "video_url", "video_url": {"url": "https://example.com/x.mp4"}}], 6_272),
        ([{"type": "text", "text": "data:" + "x" * 4_000}], 1_000),
        ([{"type": "text", "text": "x" * 4_000}], 1_000),
    ],
)
def test_a_medium_counts_as_what_an_engine_reads_it_as_and_text_by_its_bytes(
    parts: list[dict[str, Any]], tokens: int
) -> None:
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 100}
    demand = checked_demand(body, len(json.dumps(body)), FETCHED, 131_072, CHAT)
    assert tokens <= demand.tokens - 100 <= tokens + 80
    assert demand.prompt == demand.tokens - 100


def test_a_schema_that_speaks_of_images_brings_none() -> None:
    body = {"tools": [{"function": {"parameters": {"properties": {"image": {"type": "string"}}}}}], "max_tokens": 1}
    assert checked_demand(body, 400, CostLimits(), None, CHAT).tokens == 101
    body["tools"] = [{"function": {"parameters": {"image": "data:" + "A" * 8_000}}}]
    assert checked_demand(body, 8_400, CostLimits(), None, CHAT).tokens == 2_101
