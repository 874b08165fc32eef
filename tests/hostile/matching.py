"""Families whose answers are to match what is dear to match."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.hostile.bodies import Entry, chat, entry, family, properties, shaped


@family
def giant_schemas(rng: random.Random) -> Entry:
    size = rng.choice([300, 3_000, 15_000])
    makers: list[Callable[[int], Any]] = [
        lambda _: {"type": "string"},
        lambda number: {"enum": [f"v{number}-{each}" for each in range(5)]},
        lambda number: {"type": "integer", "minimum": -number, "maximum": 10**9 + number},
    ]
    return shaped(rng, properties(size, rng.choice(makers)))


@family
def nested_schemas(rng: random.Random) -> Entry:
    schema: Any = {"type": "string"}
    for _ in range(rng.choice([25, 28, 60, 200])):
        schema = rng.choice([{"type": "object", "properties": {"a": schema}}, {"type": "array", "items": schema}])
    return shaped(rng, schema)


@family
def reference_bombs(rng: random.Random) -> Entry:
    depth, width = rng.choice([(10, 10), (30, 8), (40, 2), (300, 1)])

    def level(number: int) -> Any:
        below = {"$ref": f"#/$defs/a{number + 1}"}
        kind = rng.choice(["properties", "anyOf", "allOf", "items"])
        if kind == "properties":
            return {"type": "object", "properties": {f"p{each}": below for each in range(width)}}
        return {"type": "array", "items": below, "minItems": 9} if kind == "items" else {kind: [below] * width}

    defs = {f"a{number}": level(number) for number in range(depth)}
    around = {"$ref": "#/$defs/a0"} if rng.random() < 0.7 else {"anyOf": [{"$ref": "#"}, {"type": "array"}]}
    return shaped(rng, {"$defs": {**defs, f"a{depth}": {"type": "string"}}, **around})


@family
def pattern_bombs(rng: random.Random) -> Entry:
    n = rng.choice([12, 100, 1_000, 5_000, 10**9])
    patterns = [
        f"(.?){{{n}}}x",
        f"(.{{1,5}}){{{n}}}",
        f".{{0,{n}}}.{{0,{n}}}x",
        "(.?.?.?.?)*x",
        "a?" * min(n, 2_000) + "b",
        ".?" * min(n, 2_000),
        f"(.|..|...){{{n}}}",
        "((((a{99}){99}){99}){99}){99}",
        "(" * min(n, 5_000) + "a" + ")" * min(n, 5_000),
        "(.*)(.*)" * 50 + r"\1",
        "".join(f"[^x]{{1,{100 + each}}}x" for each in range(50)),
        f"[a-z]{{{n}}}",
    ]
    name = rng.choice(["regex", "guided_regex", "pattern"])
    pattern = rng.choice(patterns)
    if name == "pattern":
        return shaped(rng, {"type": "string", "pattern": pattern})
    return entry(chat(guided_regex=pattern) if name == "guided_regex" else chat(structured_outputs={"regex": pattern}))


@family
def bounded_everything(rng: random.Random) -> Entry:
    count = rng.choice([3, 60, 250])
    makers: list[Callable[[int], Any]] = [
        lambda number: {"type": "string", "maxLength": 200 + number},
        lambda number: {"type": "string", "minLength": number, "maxLength": 10**9},
        lambda number: {"type": "string", "pattern": f"^[a-z]{{1,{100 + number}}}$"},
        lambda number: {"type": "array", "items": {}, "minItems": number, "maxItems": 10**9},
        lambda number: {"type": "number", "minimum": -number - 1e99, "exclusiveMaximum": number + 0.123456789},
    ]
    schema = properties(count, rng.choice(makers))
    if rng.random() < 0.5:
        schema |= {"minProperties": count // 2, "maxProperties": rng.choice([count, 10**9])}
    return shaped(rng, schema)


@family
def choice_bombs(rng: random.Random) -> Entry:
    choices = rng.choice(
        [
            [f"word{number}" for number in range(30_000)],
            ["ab" * 1_900 + str(number) for number in range(4)],
            ["a" * 500_000],
            [],
            [1, None],
            "no list",
            ["", "\0", '"\\'],
        ]
    )
    name = rng.choice(["guided_choice", "structured_outputs"])
    return entry(chat(**{name: choices if name == "guided_choice" else {"choice": choices}}))


@family
def ambiguous_grammars(rng: random.Random) -> Entry:
    grammar = rng.choice(
        [
            "root ::= s\ns ::= s s | s s s | [^x]",
            'root ::= ([^x]?){100} "x"',
            "root ::= root root",
            "root ::= a0\n" + "\n".join(f"a{n} ::= a{n + 1} a{n + 1}" for n in range(60)) + '\na60 ::= "x"',
            "start: start start | /.*/",
            "root ::= " + "(" * 4_000,
            "\0",
        ]
    )
    fields: list[dict[str, Any]] = [{"guided_grammar": grammar}, {"structured_outputs": {"grammar": grammar}}]
    return entry(chat(**rng.choice(fields)))


@family
def structural_tags(rng: random.Random) -> Entry:
    bomb = {"type": "regex", "pattern": f"(.?){{{rng.choice([20, 300, 5_000])}}}x"}
    formats: list[Any] = [
        {"format": bomb},
        {"format": {"type": "or", "elements": [bomb] * 20}},
        {"format": {"type": "grammar", "grammar": "root ::= root root"}},
        {"structures": [{"begin": "<", "schema": {"pattern": "(.?){900}x"}, "end": ">"}], "triggers": ["<"]},
        {"format": {"type": "sequence", "elements": [{"type": "any_text"}] * 3_000}},
    ]
    tag = rng.choice(formats)
    if rng.random() < 0.5:
        return entry(chat(response_format={"type": "structural_tag", **tag}))
    return entry(chat(structured_outputs={"structural_tag": json.dumps(tag)}))
