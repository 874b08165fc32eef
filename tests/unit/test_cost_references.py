"""References of a JSON schema: those of no use are refused with their field named, recursive schemas pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import CHAT, RESPONSES
from streamfleet.worker.cost.check import check_cost
from streamfleet.worker.cost.limits import CostLimits

Schema = dict[str, Any]
Around = Callable[[Schema], dict[str, Any]]
TREE: Schema = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
NAMED = {"tool_choice": {"type": "function", "function": {"name": "f"}}}
# The places where an engine reads a schema; the first key is the field to be named.
PLACES: list[Around] = [
    lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
    lambda schema: {"response_format": {"type": "structural_tag", "format": {"json_schema": schema}}},
    lambda schema: {"response_format": {"type": "structural_tag", "structures": [{"begin": "<", "schema": schema}]}},
    lambda schema: {"structured_outputs": {"json": schema}},
    lambda schema: {"structured_outputs": {"json": json.dumps(schema)}},
    lambda schema: {"structured_outputs": {"structural_tag": json.dumps({"format": {"json_schema": schema}})}},
    lambda schema: {"guided_json": schema},
    lambda schema: {"guided_json": json.dumps(schema)},
    lambda schema: {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
    lambda schema: {"tools": [{"type": "function", "name": "f", "parameters": schema}], "tool_choice": "required"},
    lambda schema: {"tools": [{"function": {"name": "f", "parameters": each}} for each in (TREE, schema)], **NAMED},
]
# Places of schemas that most engines only show to the model.
SHOWN: list[Around] = [
    lambda schema: {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
    lambda schema: {"tools": [{"function": {"parameters": schema}}], "tool_choice": "auto"},
    lambda schema: {"tools": [{"function": {"parameters": schema}}], "tool_choice": "none"},
    lambda schema: {"functions": [{"name": "f", "parameters": schema}]},
]


def defs(where: str = "$defs", **parts: Any) -> Schema:
    return {"type": "object", "properties": {"x": {"$ref": f"#/{where}/a"}}, where: parts}


ITSELF: list[Schema] = [
    {"$ref": "#"},
    {"$ref": "#/"},
    {"$ref": "#", "type": "object", "properties": {"a": {"type": "string"}}},
    {"allOf": [{"$ref": "#"}]},
    {"anyOf": [{"$ref": "#"}]},
    {"oneOf": [{"$ref": "#"}]},
    {"anyOf": [{"$ref": "#"}, {"allOf": [{"oneOf": [{"$ref": "#"}]}]}]},
    {"allOf": [{"type": "object"}, {"$ref": "#"}]},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    {"type": "object", "properties": {"default": {"$ref": "#/properties/default"}}},
    {"type": "array", "items": {"$ref": "#/items"}},
    {"type": "array", "prefixItems": [{"$ref": "#/prefixItems/0"}]},
    defs(a={"$ref": "#/$defs/a"}),
    defs(a={"$ref": "#/$defs/b"}, b={"$ref": "#/$defs/c"}, c={"$ref": "#/$defs/a"}),
    defs(a={"$ref": "#/$defs/b"}, b={"$ref": "#/$defs/b"}),
    defs(a={"allOf": [{"$ref": "#/$defs/b"}]}, b={"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}),
    defs("definitions", a={"$ref": "#/definitions/b"}, b={"$ref": "#/definitions/a"}),
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}},
    {"$ref": "#/$defs/a~0b", "$defs": {"a~b": {"$ref": "#/$defs/a~0b"}}},
    {"$ref": "#/%24defs/%61", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    # Read without escapes it is a schema of its own, and the one that a compiler takes.
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}, "a~1b": {"$ref": "#/$defs/a~1b"}}},
    {"$ref": "#/somewhere/else", "somewhere": {"else": {"$ref": "#/somewhere/else"}}},
    {"$ref": "#/default", "default": {"$ref": "#/default"}},
]
NOWHERE: list[Schema] = [
    {"$ref": "#/$defs/a"},
    defs(b={"type": "string"}),
    {"$ref": "#/type", "type": "string"},
    {"$ref": "#/anyOf", "anyOf": [{"type": "string"}]},
    *({"$ref": f"#/anyOf/{step}", "anyOf": [{"type": "string"}]} for step in ("1", "x", "²", "9" * 5_000)),
    {"type": "array", "items": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/none"}]}},
]
OUTSIDE: list[Schema] = [
    {"$ref": "http://127.0.0.1/x.json"},
    {"$ref": "https://example.com/x.json#/$defs/a", "$defs": {"a": {"type": "string"}}},
    {"$ref": "file:///etc/passwd"},
    {"$ref": "other.json"},
    {"$ref": ""},
    {"$ref": "#name", "$defs": {"a": {"$anchor": "name", "type": "string"}}},
    {"type": "object", "properties": {"x": {"items": {"$ref": "x" * 1_000}}}},
]
OTHER_KINDS: list[Any] = [5, {"type": "string"}, None, []]
GOOD: list[Schema] = [
    TREE,
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "object", "additionalProperties": {"$ref": "#"}},
    {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}},
    {"type": "object", "properties": {"n": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["n"]},
    {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "string"}]},
    {"oneOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/node"}], "$defs": {"leaf": {"type": "null"}, "node": TREE}},
    defs(a={"anyOf": [{"type": "null"}, {"properties": {"next": {"$ref": "#/$defs/a"}}}]}),
    defs(a={"$ref": "#/$defs/b"}, b={"type": "array", "items": {"$ref": "#/$defs/a"}}),
    defs("definitions", a={"allOf": [{"$ref": "#/definitions/b"}]}, b={"properties": {"up": {"$ref": "#"}}}),
    defs(a=True),
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
    {"type": "object", "properties": {"$ref": {"type": "string"}, "schema": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}},
    {"$ref": "#/$defs/a~01b", "$defs": {"a~1b": {"type": "string"}}},
    {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
    defs(a={"anyOf": [], "type": "string"}),
    # Of keywords with values of another kind, the engine tells what it thinks.
    *({"$ref": value, "anyOf": value, "allOf": value} for value in OTHER_KINDS),
    {"const": {"$ref": "#"}},
    {"enum": [{"$ref": "http://example.com"}]},
    {"type": "object", "default": {"$ref": "nothing"}, "examples": [{"$ref": "#"}]},
    {"$ref": "#/$defs/a0", "$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(300)} | {"a300": {}}},
]


def refusal(body: dict[str, Any]) -> InvalidRequest | None:
    talk: dict[str, Any] = {"input": "a"} if "text" in body else {"messages": [{"role": "user", "content": "a"}]}
    try:
        check_cost({**talk, **body}, CostLimits(), endpoint=RESPONSES if "text" in body else CHAT)
    except InvalidRequest as error:
        return error
    return None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        *((each, "leads to nothing but itself") for each in ITSELF),
        *((each, "leads to no part of its schema") for each in NOWHERE),
        *((each, "leads out of its schema") for each in OUTSIDE),
    ],
)
def test_a_reference_of_no_use_is_refused_wherever_a_schema_may_stand(schema: Schema, says: str) -> None:
    for body in [around(schema) for around in PLACES]:
        error = refusal(body)
        assert error is not None, body
        assert (error.param, error.code) == (next(iter(body)), "invalid_value")
        assert says in str(error)
        assert len(str(error)) < 200


@pytest.mark.parametrize("schema", ITSELF)
def test_so_is_one_that_leads_to_itself_where_the_schema_is_only_shown(schema: Schema) -> None:
    for body in [around(schema) for around in SHOWN]:
        assert "leads to nothing but itself" in str(refusal(body)), body


@pytest.mark.parametrize(
    "schema",
    [
        *NOWHERE,
        *OUTSIDE,
        {"$id": "https://example.com/a", "$ref": "https://example.com/a"},
        {"type": "object", "x-meta": {"$ref": "somewhere"}},
    ],
)
def test_others_of_no_use_pass_where_the_schema_is_only_shown(schema: Schema) -> None:
    for body in [around(schema) for around in SHOWN]:
        assert refusal(body) is None, body


@pytest.mark.parametrize("schema", GOOD)
def test_a_schema_whose_references_say_something_passes(schema: Schema) -> None:
    for body in [around(schema) for around in (*PLACES, *SHOWN)]:
        assert refusal(body) is None, body


def test_references_in_texts_that_are_no_json_are_the_engines_to_refuse() -> None:
    assert refusal({"guided_json": '{"$ref": "#"'}) is None


def test_a_text_is_read_once_and_only_where_it_stands_for_a_schema() -> None:
    assert refusal({"guided_json": json.dumps(json.dumps({"$ref": "#"}))}) is None
    text = json.dumps({"schema": {"$ref": "#"}})
    assert refusal({"tools": [{"function": {"name": "f", "description": text, "parameters": TREE}}]}) is None
