"""Families that are broken, or try to get somewhere else."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.hostile.bodies import Entry, chat, entry, family


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
        ({"messages": [{"role": "user", "content": "word " * count}], "max_tokens": 10**9}, "/v1/messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": 5}]}]}, "/v1/messages/count_tokens"),
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
