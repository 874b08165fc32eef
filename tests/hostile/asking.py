"""Families that ask for too much."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.hostile.bodies import MEGABYTE, Entry, chat, entry, family


@family
def many_sequences(rng: random.Random) -> Entry:
    much = rng.choice([33, 3_000, 10**9, 10**400, "5000", 1e300, 99.5])
    bodies = [
        chat(n=much),
        chat(best_of=much, n=2),
        {"prompt": ["a"] * rng.choice([9, 500, 20_000]), "n": 16, "max_tokens": 99},
    ]
    return entry(rng.choice(bodies))


@family
def endless_output(rng: random.Random) -> Entry:
    much = rng.choice([2_049, 10**6, 10**18, 10**400, "999999", 1e308])
    name = rng.choice(["max_tokens", "max_completion_tokens", "min_tokens"])
    return entry({**chat(n=rng.choice([3, 16]), ignore_eos=True), "max_tokens": None, name: much})


@family
def long_answers(rng: random.Random) -> Entry:
    """Within all limits, and dear: as much output as one sequence may have."""
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
    deep = (opened * depth + "1" + closed * depth)[: 2 * MEGABYTE]
    name = rng.choice(["metadata", "messages", "response_format", "chat_template_kwargs", "tools", "input"])
    return entry(f'{{"messages":[],"{name}":{deep}}}'.encode())


@family
def wide_json(rng: random.Random) -> Entry:
    """Many small values: checking each takes the front end half a minute."""
    small: Any = rng.choice([{}, [], 1, "a", None, {"role": "user"}, {"role": "user", "content": "a"}])
    count = min(rng.choice([1_000, 15_000, 340_000]), MEGABYTE // (len(json.dumps(small)) + 2))
    many = [small] * count
    bodies: list[tuple[Any, str]] = [
        ({"messages": many, "max_tokens": 5}, ""),
        ({"messages": [{"role": "user", "content": many}], "max_tokens": 5}, ""),
        (chat(tools=many), ""),
        (chat(documents=many), ""),
        ({"input": many, "max_output_tokens": 5}, "/v1/responses"),
        ({"messages": [{"role": "user", "content": many}], "max_tokens": 5}, "/v1/messages"),
        ({"prompt": ["a", *many], "max_tokens": 5}, ""),
        (chat(tools=[{"function": {"name": "f", "parameters": {"a": many}}}]), ""),
    ]
    return entry(*rng.choice(bodies))
