"""Strategies for hypothesis: JSON of any shape, texts and bytes that programs trip over, whole entries."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import strategies as st

from streamfleet.common.envelope import KNOWN_FIELDS
from tests.fuzz import bodies, garbage
from tests.fuzz.entries import ODD_BYTES, ODD_NUMBERS, Entries

NOW_MS = 1_790_000_000_000

texts = st.one_of(st.text(max_size=40), st.sampled_from((*bodies.ODD_TEXTS, "\ud800")))
raw = st.one_of(st.binary(max_size=60), st.sampled_from(ODD_BYTES), st.sampled_from(ODD_NUMBERS))
numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([number for number in bodies.ODD_NUMBERS if number is not True])
)
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
values: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
seeds = st.integers(0, 2**32 - 1)
json_bodies = st.dictionaries(st.sampled_from(bodies.FIELDS) | texts, values, max_size=8)
raw_bodies = st.one_of(
    seeds.map(lambda seed: bodies.body(random.Random(seed))),
    json_bodies.map(lambda body: json.dumps(body).encode("utf-8", "surrogatepass")),
    st.binary(max_size=200),
)
any_fields = st.dictionaries(st.sampled_from(sorted(KNOWN_FIELDS)) | raw, raw | raw_bodies, max_size=12)
raw_entries = seeds.map(lambda seed: Entries(random.Random(seed), "h", lambda: NOW_MS).next())
descriptions = st.one_of(
    seeds.map(lambda seed: garbage.description(random.Random(seed))),
    values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("seen_ms", "models", "slots", "state", "engine", "running"), values)
    ).map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
)

deep_json = st.builds(
    lambda depth, start: start + b"[" * depth + b"]" * depth + b"}",
    st.sampled_from([900, 1_100, 2_500]),
    st.sampled_from([b'{"choices":', b'{"error":', b'{"usage":', b'{"x":"abort","y":']),
)
choice = st.fixed_dictionaries({"finish_reason": texts | values}, optional={"message": values, "text": values})
error = st.dictionaries(st.sampled_from(("message", "type", "param", "code")), texts | values, min_size=1)
engine_replies = st.one_of(
    st.binary(max_size=100),
    values.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"choices": st.lists(choice, min_size=1, max_size=2)}, optional={"usage": values}).map(
        lambda value: json.dumps(value).encode()
    ),
    st.fixed_dictionaries({"error": error | values}, optional={"choices": values, "data": values}).map(
        lambda value: json.dumps(value).encode()
    ),
    deep_json,
)

patterns = st.one_of(
    st.text("()[]{}|*+?^$\\.,0123456789ab-:=!<>P", max_size=40),
    st.sampled_from(
        ["(a+)+$", "(.?){5000}x", "[", "(?P<a>x)(?P=a)", "\\", "a{1,99999}", "(" * 2_000, "(?=x)*", "[^\\p{L}]"]
    ),
    texts,
)
schemas: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([True, {}, {"type": "string"}, {"$ref": "#"}, {"$ref": "#/$defs/a"}, {"enum": [1, None]}])
    | st.builds(lambda pattern: {"type": "string", "pattern": pattern}, patterns)
    | values,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(texts, inner, max_size=3),
            "$defs": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            "items": inner,
            "anyOf": st.lists(inner, max_size=3),
            "allOf": st.lists(inner, max_size=3),
            "required": values,
            "minItems": numbers,
            "maxItems": numbers,
            "maxLength": numbers,
        },
    ),
    max_leaves=8,
)
grammars = st.one_of(
    texts, st.text('abc ::= root "x" | ( ) * + ? [ ] \n', max_size=60), st.just("root ::= root " * 500)
)
constraints = st.one_of(
    st.dictionaries(
        st.sampled_from(["regex", "json", "grammar", "choice", "json_object", "structural_tag"]),
        patterns | schemas | grammars | values,
        max_size=2,
    ).map(lambda value: {"structured_outputs": value}),
    schemas.map(
        lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    ),
    values.map(lambda value: {"response_format": value}),
    patterns.map(lambda pattern: {"guided_regex": pattern}),
    schemas.map(lambda schema: {"guided_json": schema}),
    schemas.map(lambda schema: {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}),
)  # fmt: skip
