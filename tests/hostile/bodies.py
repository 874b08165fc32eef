"""Bodies that mean harm, or were made by a broken program: families with a named idea each, from a seed.

A family is a function of a random generator; each call makes one more variant. What it makes is whatever may stand in
a lane's entry: not only bodies, and not only JSON.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MEBIBYTE = 1_000_000


@dataclass(frozen=True)
class Entry:
    """The fields of one entry, without its id."""

    body: bytes
    more: dict[str, bytes] = field(default_factory=dict)


Family = Callable[[random.Random], Entry]
FAMILIES: dict[str, Family] = {}


def family(maker: Family) -> Family:
    """Takes a family in, under its function's name."""
    FAMILIES[maker.__name__] = maker
    return maker


def hostile(count: int, seed: int, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Entry]]:
    """So many entries, each with its family's name, all families in turn, in an order of the seed's."""
    rng = random.Random(seed)
    chosen = [name for name in FAMILIES if not names or name in names]
    named = list(itertools.islice(itertools.cycle(chosen), count))
    rng.shuffle(named)
    for name in named:
        yield name, FAMILIES[name](rng)


def entry(body: Any, endpoint: str = "", **more: str) -> Entry:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {name: value.encode() for name, value in more.items()}
    return Entry(text, {**fields, "endpoint": endpoint.encode()} if endpoint else fields)


def chat(content: Any = "Say hi.", **more: Any) -> dict[str, Any]:
    """A chat that would be harmless, and what makes it another one."""
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}


def shaped(rng: random.Random, schema: Any) -> Entry:
    """A chat whose answer is to follow a schema, in one of the ways in which that can be asked for."""
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    named = {"type": "function", "function": {"name": "f"}}
    asked: list[dict[str, Any]] = [
        {"response_format": wrapped},
        {"structured_outputs": {"json": schema}},
        {"structured_outputs": {"json": json.dumps(schema)}},
        {"guided_json": schema},
        {"tools": [tool], "tool_choice": named},
    ]
    return entry(chat(**rng.choice(asked)))


def properties(count: int, make: Callable[[int], Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": make(number) for number in range(count)}}


@family
def many_sequences(rng: random.Random) -> Entry:
    much = rng.choice([17, 3_000, 10**9, 10**400, "5000", 1e300, 99.5])
    bodies = [
        chat(n=much),
        chat(best_of=much, n=2),
        {"prompt": ["a"] * rng.choice([9, 500, 20_000]), "n": 16, "max_tokens": 99},
    ]
    return entry(rng.choice(bodies))


@family
def endless_output(rng: random.Random) -> Entry:
    much = rng.choice([2_049, 10**6, 10**18, 10**400, "999999", 1e308, 900])
    name = rng.choice(["max_tokens", "max_completion_tokens", "min_tokens"])
    return entry({**chat(n=rng.choice([3, 16]), ignore_eos=True), "max_tokens": None, name: much})


@family
def long_answers(rng: random.Random) -> Entry:
    """Within all limits, and dear: as much output as one request may have."""
    n = rng.choice([1, 1, 4, 16])
    tokens = rng.choice([256, 512, 1_024]) // n
    return entry({**chat("Tell a long story.", n=n, ignore_eos=True, temperature=1.0), "max_tokens": tokens})


@family
def log_probabilities(rng: random.Random) -> Entry:
    much = rng.choice([21, 1_000, 49_152, 10**9, -1, "-1"])
    bodies = [
        chat(logprobs=True, top_logprobs=much, ignore_eos=True),
        chat("word " * 700, prompt_logprobs=rng.choice([much, 1, 20])),
        {"prompt": "word " * 700, "echo": True, "logprobs": rng.choice([much, 5]), "max_tokens": 1},
        {"prompt": "a", "logprobs": much, "max_tokens": 9},
        chat(logprobs=True, logprob_token_ids=list(range(rng.choice([200, 40_000])))),
    ]
    return entry(rng.choice(bodies))


@family
def deep_json(rng: random.Random) -> Entry:
    depth = rng.choice([65, 200, 900, 5_000, 200_000])
    opened, closed = rng.choice([("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
    deep = (opened * depth + "1" + closed * depth)[: 2 * MEBIBYTE]
    name = rng.choice(["metadata", "messages", "response_format", "chat_template_kwargs", "tools", "input"])
    return entry(f'{{"messages":[],"{name}":{deep}}}'.encode())


@family
def wide_json(rng: random.Random) -> Entry:
    """Many small values: checking each takes the front end half a minute."""
    small: Any = rng.choice([{}, [], 1, "a", None, {"role": "user"}, {"role": "user", "content": "a"}])
    count = min(rng.choice([1_000, 15_000, 340_000]), MEBIBYTE // (len(json.dumps(small)) + 2))
    many = [small] * count
    bodies: list[tuple[Any, str]] = [
        ({"messages": many, "max_tokens": 5}, ""),
        ({"messages": [{"role": "user", "content": many}], "max_tokens": 5}, ""),
        (chat(tools=many), ""),
        (chat(documents=many), ""),
        ({"input": many, "max_output_tokens": 5}, "/v1/responses"),
        ({"prompt": ["a", *many], "max_tokens": 5}, ""),
        (chat(tools=[{"function": {"name": "f", "parameters": {"a": many}}}]), ""),
    ]
    return entry(*rng.choice(bodies))


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


@family
def long_option_lists(rng: random.Random) -> Entry:
    count = rng.choice([900, 2_000, 60_000])
    options: list[dict[str, Any]] = [
        {"stop": [f"s{number}" for number in range(count)]},
        {"stop": ["x" * 100_000] * 4},
        {"stop_token_ids": list(range(count))},
        {"bad_words": [f"bad {number}" for number in range(count)]},
        {"allowed_token_ids": list(range(count))},
        {"logit_bias": {str(number): 100 for number in range(count)}},
        {"logit_bias": {"x" * 1_000: "y"}},
        {"vllm_xargs": {str(number): 1 for number in range(count)}},
        {"chat_template_kwargs": {f"k{number}": "v" for number in range(count)}},
    ]
    return entry(chat(**rng.choice(options)))


@family
def unknown_places(rng: random.Random) -> Entry:
    endpoint = rng.choice(
        ["/v1/models", "/metrics", "/../etc/passwd", "/sleep", "/v1/load_lora_adapter", "/tokenize", "x" * 5_000]
    )
    return entry(chat(), endpoint)


@family
def other_endpoints(rng: random.Random) -> Entry:
    """Served by other models, with inputs that would be too much for them as well."""
    count = rng.choice([1, 2_000, 100_000])
    bodies: list[tuple[Any, str]] = [
        ({"input": ["a"] * count}, "/v1/embeddings"),
        ({"input": [[1, 2, 3]] * min(count, 60_000)}, "/v1/embeddings"),
        ({"query": "a", "documents": ["b"] * count}, "/v1/rerank"),
        ({"text_1": ["a"] * count, "text_2": ["b"] * count}, "/v1/score"),
        ({"queries": "a", "items": ["b"] * count}, "/v1/score"),
        ({"input": "a" * 900_000}, "/pooling"),
        ({"input": "hi", "tools": [{"type": "mcp", "server_url": "http://127.0.0.1:9/"}]}, "/v1/responses"),
        ({"input": "hi", "previous_response_id": "resp_1", "background": True}, "/v1/responses"),
    ]
    return entry(*rng.choice(bodies))


@family
def unknown_models_and_roles(rng: random.Random) -> Entry:
    bodies: list[Any] = [
        chat(model=rng.choice(["gpt-17", "", "../../x", "x" * 100_000, 7, None, ["a"]])),
        {"messages": [{"role": rng.choice(["root", "", None, 5, "tool"]), "content": "hi"}], "max_tokens": 5},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], "max_tokens": 5},
        {"messages": [{"role": "user"}], "max_tokens": 5},
    ]
    return entry(rng.choice(bodies))


@family
def wrong_types(rng: random.Random) -> Entry:
    wrong: Any = rng.choice([None, True, "x", -1, 1.5, [], {}, [[]], {"a": {}}, "", 0, [None]])
    fields = ["messages", "max_tokens", "n", "temperature", "stop", "seed", "logit_bias", "response_format", "tools"]
    fields += ["top_p", "stream", "user", "logprobs", "top_logprobs", "structured_outputs", "tool_choice", "ignore_eos"]
    if rng.random() < 0.2:
        return entry(wrong)
    return entry({**chat(), **dict.fromkeys(rng.sample(fields, rng.choice([1, 1, 3, 9])), wrong)})


@family
def broken_encodings(rng: random.Random) -> Entry:
    bodies = [
        b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"a\\u0000b"}],"max_tokens":5}',
        b'\xef\xbb\xbf{"messages":[]}',
        b"\x00" * rng.choice([1, 1_000]),
        b"\xff" * rng.choice([1, 100_000]),
        json.dumps(chat("\u202e\u0300" * 300)).encode("utf-16"),
        json.dumps(chat(structured_outputs={"regex": "a\0b"})).encode(),
    ]
    return Entry(rng.choice(bodies))


@family
def broken_json(rng: random.Random) -> Entry:
    good = json.dumps(chat()).encode()
    bodies = [
        good[: rng.randrange(len(good))],
        good + good,
        b'{"messages":[],"temperature":NaN}',
        b'{"messages":[],"temperature":-Infinity}',
        b'{"max_tokens":5,"n":99,"n":1,"messages":[{"role":"user","content":"hi"}],"n":1}',
        b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":' + b"9" * rng.choice([5_000, 900_000]) + b"}",
        b'{"messages":[{"role":"user","content":"hi"}],"temperature":1e' + b"9" * 50 + b"}",
        b"[" * 100_000,
        b'"' + b"a" * 1_000,
        b"",
        b"// no comment\n{}",
        b'{"messages": [], }',
    ]
    return Entry(rng.choice(bodies))


@family
def too_large(rng: random.Random) -> Entry:
    size = rng.choice([1_048_577, 1_100_000, 3_000_000])
    return Entry(json.dumps(chat("a" * size)).encode(), {"meta": b"m" * rng.choice([1, 5_000])})


@family
def long_prompts(rng: random.Random) -> Entry:
    huge = ["word " * 200_000, "a" * 900_000, "中" * 100_000, "\n" * 500_000]
    text = rng.choice([*huge, "word " * 1_900, "word " * 700])
    bodies: list[Any] = [
        chat(text),
        chat(text, truncate_prompt_tokens=10),
        {"prompt": text, "max_tokens": 2},
        {"prompt": [text[:9_000]] * 9, "max_tokens": 2},
        {"messages": [{"role": "user", "content": text[:2_000]}] * 40, "max_tokens": 5},
    ]
    return entry(rng.choice(bodies))


@family
def token_prompts(rng: random.Random) -> Entry:
    bodies: list[Any] = [
        [10**9],
        [-1],
        [2**63],
        [1.5],
        [True, False],
        [[]],
        [1] * rng.choice([5_000, 500_000]),
        [[1, 2], "a"],
        [[1] * 3_000] * 2,
        [[number] * 2_000 for number in range(16)],
    ]
    return entry({"prompt": rng.choice(bodies), "max_tokens": 5})


@family
def empty_prompts(rng: random.Random) -> Entry:
    bodies: list[Any] = [
        {"messages": []},
        {"messages": [], "prompt": "", "input": []},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [""], "max_tokens": 5},
        {"prompt": None, "max_tokens": 5},
        {"input": ""},
        {"input": []},
        {},
        chat(""),
        chat([]),
        chat(None),
    ]
    return entry(rng.choice(bodies))


@family
def media_to_fetch(rng: random.Random) -> Entry:
    url = rng.choice(
        [
            *("http://127.0.0.1:6379/", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "//x/y"),
            *("ftp://127.0.0.1/", "data:image/png;base64,AAAA", "data:image/png;base64," + "A" * 100_000, "gopher://x"),
        ]
    )
    kind = rng.choice(["image_url", "video_url", "audio_url"])
    part = {"type": kind, kind: rng.choice([{"url": url}, url])}
    return entry(chat([part] * rng.choice([1, 50, 2_000]) + [{"type": "text", "text": "what is it?"}]))


@family
def templates(rng: random.Random) -> Entry:
    template = rng.choice(
        [
            "{% for i in range(10**9) %}a{% endfor %}",
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ 'a' * 10**9 }}",
            "{% include '/etc/passwd' %}",
        ]
    )
    fields: list[dict[str, Any]] = [
        {"chat_template": template},
        {"chat_template_kwargs": {"chat_template": template}},
        {"chat_template_kwargs": {"messages": template, "add_generation_prompt": "x" * 3_000}},
        {"documents": [{"text": template}]},
    ]
    return entry(chat(template if rng.random() < 0.3 else "hi", **rng.choice(fields)))


@family
def beam_search(rng: random.Random) -> Entry:
    return entry(chat(use_beam_search=rng.choice([True, 1, "true"]), n=rng.choice([4, 8, 16]), max_tokens=60))


@family
def odd_numbers(rng: random.Random) -> Entry:
    odd = rng.choice([1e308, -1e308, 10**30, -(10**30), 2**63, -(2**63) - 1, 1e-320, -0.0, 99999, "1e5"])
    fields = ["temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"]
    fields += ["repetition_penalty", "length_penalty", "truncate_prompt_tokens", "thinking_token_budget", "priority"]
    return entry(chat(**dict.fromkeys(rng.sample(fields, rng.choice([1, 1, 4])), odd)))


@family
def tensors_and_loaders(rng: random.Random) -> Entry:
    bodies: list[Any] = [
        {"prompt_embeds": "gASVAAAAAAAAAA==", "max_tokens": 5, "prompt": None},
        {"prompt_embeds": ["A" * 100_000] * 5, "prompt": "a", "max_tokens": 5},
        chat([{"type": "image_embeds", "image_embeds": "gASV"}]),
        chat(mm_processor_kwargs={"num_crops": 10**9}),
        chat(media_io_kwargs={"video": {"num_frames": 10**9}}),
        chat(kv_transfer_params={"remote_host": "127.0.0.1", "remote_port": 1, "do_remote_prefill": True}),
        chat(ec_transfer_params={"a": 1}),
    ]
    return entry(rng.choice(bodies))


@family
def vllm_internals(rng: random.Random) -> Entry:
    fields: list[dict[str, Any]] = [
        {"cache_salt": "x" * 200_000},
        {"cache_salt": "../a"},
        {"request_id": "chatcmpl-1", "priority": -(10**9)},
        {"repetition_detection": {"max_pattern_size": 10**9, "min_count": 10**9}, "max_tokens": 50},
        {"add_special_tokens": "x", "echo": True, "continue_final_message": True},
        {"lora_request": {"lora_path": "/etc"}, "return_token_ids": True},
        {"stream": True, "stream_options": {"include_usage": "x"}},
        {"skip_special_tokens": False, "spaces_between_special_tokens": None},
        {"min_tokens": 8, "stop": ["a", "e", "i", "o"], "include_stop_str_in_output": True},
        {"thinking_token_budget": 10**9, "reasoning_effort": "max"},
    ]
    return entry(chat(**rng.choice(fields)))


@family
def hostile_envelopes(rng: random.Random) -> Entry:
    more = rng.choice(
        [
            *({"deadline": "nan"}, {"ttl": "-5"}, {"ttl": "9" * 16}, {"deadline": "1"}, {"tenant": "\x00\n"}),
            *(
                {"reply": "a b"},
                {"reply": "x" * 300},
                {"traceparent": "00-zz"},
                {"meta": "m" * 5_000},
                {"stream": "yes"},
            ),
            {"what": "x" * 9_000},
        ]
    )
    return entry(chat(), **more)
