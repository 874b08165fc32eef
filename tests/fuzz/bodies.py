"""Request bodies of any kind from a seeded source: valid, nearly valid, and none at all."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

MEBIBYTE = 1 << 20
ODD_TEXTS = ("", "\x00", "x" * 300, "😀", "١٢٣", "\u202e", "</script>", "%s%n", "{q}:dead", "NaN", "\n\r\t", "a b")
ODD_NUMBERS: tuple[Any, ...] = (0, -1, -0.0, 1.5, 2**31, 2**53 + 1, 2**64, 10**30, 10**400, 1e308, 5e-324, True)
ODD_VALUES: tuple[Any, ...] = (None, [], {}, [None], [[]], [[], [[]]], {"": ""}, {"a": {"b": {"c": []}}}, ["x"] * 40)
VALID: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 2, "ignore_eos": True},
    {"messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "hi"}], "max_tokens": 1},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_completion_tokens": 1, "n": 2},
    {"prompt": "Once", "max_tokens": 3, "temperature": 0.5, "seed": 7, "stop": ["\n"], "logprobs": 1},
    {"prompt": ["a", "b"], "max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}},
    {"prompt": [1, 2, 3], "max_tokens": 1, "priority": -5, "request_id": "mine"},
    {"prompt": [[1, 2], [3]], "max_tokens": 1, "best_of": 2},
    {"input": "embed me", "dimensions": 4},
    {"input": ["a", "b"], "dimensions": 2, "encoding_format": "base64"},
    {"input": "hi", "model": "simulated", "max_output_tokens": 1, "background": True},
    {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        "structured_outputs": {"regex": "a+"},
        "logit_bias": {"50256": -100},
    },
    {"query": "q", "documents": ["a", "b"], "text_1": "x", "text_2": ["y"]},
)
# JSON text that no tree of Python values can express.
RAW_VALUES = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "0x10", "01", "+1", "1.", ".5", "1" * 5_000, '"\\ud800"',
    '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\x01"', "'single'", "undefined", '"\\x41"', "[1,]", "{,}",
)  # fmt: skip


def body(chance: random.Random) -> bytes:
    """One body; most are small, about one in a thousand is large."""
    return chance.choices(_KINDS, _WEIGHTS)[0](chance)


def valid(chance: random.Random) -> bytes:
    """Returns a body that the simulated engine answers, or refuses for its endpoint alone."""
    return json.dumps(chance.choice(VALID)).encode()


def mutated(chance: random.Random) -> bytes:
    """A valid one with a few of its values, names or types changed."""
    tree = copy.deepcopy(chance.choice(VALID))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        _change(chance, tree)
    return json.dumps(tree, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


def rewritten(chance: random.Random) -> bytes:
    """A valid one whose text was changed: what no JSON writer writes."""
    text = valid(chance).decode()
    places = [index for index, char in enumerate(text) if char == ":"]
    at = chance.choice(places) + 1
    match chance.randrange(6):
        case 0:
            return (text[:at] + chance.choice(RAW_VALUES) + "," + text[at:]).encode()
        case 1:  # a value in place of one
            return f'{{"messages":{chance.choice(RAW_VALUES)},"prompt":"x","n":{chance.choice(RAW_VALUES)}}}'.encode()
        case 2:  # the same name again, with something else
            return f'{text[:-1]},"max_tokens":{chance.choice(RAW_VALUES)},"messages":[],"prompt":7}}'.encode()
        case 3:
            return text[: chance.randrange(len(text))].encode()
        case 4:
            return (
                chance.choice(("\ufeff", " " * 500, "\n", "\x00", "[")) + text + chance.choice(("", "x", "{}"))
            ).encode()
        case _:
            return text.encode(chance.choice(("utf-16", "utf-16-le", "utf-32", "utf-7", "utf-8-sig")))


def flipped(chance: random.Random) -> bytes:
    """A valid one with some bytes changed."""
    text = bytearray(valid(chance))
    for _ in range(chance.choice((1, 2, 10))):
        text[chance.randrange(len(text))] = chance.randrange(256)
    return bytes(text)


def noise(chance: random.Random) -> bytes:
    """Random bytes, mostly few."""
    return chance.randbytes(chance.choice((0, 1, 2, 10, 100, 1000)))


def other_json(chance: random.Random) -> bytes:
    """JSON that is no object, or an object without anything in it that counts."""
    return chance.choice(
        (b"[]", b"null", b"true", b"7", b'"messages"', b"{}", b'{"":""}', b'{"model":"x"}', b"[[[]]]", b'{"a":1,"a":2}')
    )


def deep(chance: random.Random) -> bytes:
    """Nested up to and beyond what a parser's stack takes."""
    depth = chance.choice((10, 100, 500, 990, 1_100, 5_000, 60_000))
    around = chance.choice((("[", "]"), ('{"a":', "}"), ('[{"a":[', "]}]")))
    inner = around[0] * depth + chance.choice(("1", "", '"x"')) + around[1] * chance.choice((depth, 0))
    field = chance.choice(("messages", "prompt", "input", "response_format", "structured_outputs", "x"))
    return f'{{"prompt":"x","{field}":{inner}}}'.encode()


def large(chance: random.Random) -> bytes:
    """Large, around what may stand outside of strings, much of it the same: what compresses to nothing."""
    size = chance.choice((20_000, 300_000, MEBIBYTE - 40, MEBIBYTE, MEBIBYTE + 1, 2 * MEBIBYTE))
    match chance.randrange(5):
        case 0:
            return b'{"prompt":"' + b"x" * size + b'"}'
        case 1:
            return b'{"prompt":[' + b",".join([b'"x"'] * (size // 4)) + b"]}"
        case 2:
            return b'{"input":[' + b"7," * (size // 2) + b"7]}"
        case 3:
            return b"{" + b",".join(b'"f%d":0' % number for number in range(size // 12)) + b',"prompt":"x"}'
        case _:
            return b'{"prompt":"x","response_format":"' + b"\\ud83d\\ude00" * (size // 12) + b'"}'


_KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    valid, mutated, rewritten, flipped, noise, other_json, deep, large,
)  # fmt: skip
_WEIGHTS = (250, 350, 150, 100, 80, 50, 19, 1)


def _change(chance: random.Random, tree: Any) -> None:
    holder, key = chance.choice(list(_places(tree)) or [({"": 0}, "")])
    match chance.randrange(6):
        case 0 | 1:
            holder[key] = copy.deepcopy(chance.choice(ODD_NUMBERS + ODD_VALUES + ODD_TEXTS))
        case 2:
            del holder[key]
        case 3 if isinstance(holder, dict):
            holder[chance.choice(ODD_TEXTS) or key + "s"] = holder.pop(key)
        case 4:  # of another type
            holder[key] = chance.choice(([holder[key]], {"value": holder[key]}, str(holder[key]), [holder[key]] * 20))
        case _:
            tree[chance.choice(FIELDS)] = copy.deepcopy(chance.choice(ODD_NUMBERS + ODD_VALUES))


FIELDS = (
    "n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens", "model", "seed", "stop", "logprobs",
    "top_logprobs", "temperature", "top_p", "dimensions", "encoding_format", "tools", "tool_choice", "response_format",
    "guided_json", "guided_regex", "guided_grammar", "guided_choice", "structured_outputs", "text",
    "messages", "prompt",
    "input", "documents", "text_1", "queries", "stream", "priority", "ignore_eos", "echo", "suffix", "user", "metadata",
)  # fmt: skip


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key in a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from _places(value)
