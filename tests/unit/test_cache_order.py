"""The order of a batch's lines by the beginnings of their prompts."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from streamfleet.producer import cache_order
from streamfleet.producer.cache_order import beginning, in_cache_order


def chat(system: str, user: str, **more: Any) -> dict[str, Any]:
    return {"max_tokens": 5, **more, "messages": [{"role": "system", "content": system}, {"content": user}]}


def ordered(bodies: list[dict[str, Any]], most: int = 1_000, size: int = 1) -> list[dict[str, Any]]:
    return list(in_cache_order(bodies, most, body=lambda body: body, size=lambda _: size))


def test_prompts_that_begin_alike_come_together() -> None:
    bodies = [
        chat(f"You are {who}. " * 9, f"Question {n}") for n in range(20) for who in ("a cook", "a judge", "a cat")
    ]
    random.Random(7).shuffle(bodies)
    found = [body["messages"][0]["content"] for body in ordered(bodies)]
    assert sum(one != other for one, other in pairwise(found)) == 2


def test_other_fields_decide_nothing_and_models_and_tools_stand_first() -> None:
    one, other = chat("s", "a", temperature=1, n=2), chat("s", "b", max_tokens=9, logprobs=True)
    assert beginning(one)[:-20] == beginning(other)[:-20]
    mixed = [chat("s", "a", model="m"), chat("s", "b"), chat("s", "c", model="m"), chat("s", "d", tools=[{"x": 1}])]
    assert [body["messages"][1]["content"] for body in ordered(mixed)] == ["a", "c", "d", "b"]


def test_every_line_comes_once_and_equal_prompts_stay_in_order() -> None:
    bodies = [{"prompt": f"p{n % 7}", "n": n} for n in range(100)]
    found = ordered(bodies, most=30)
    assert sorted(body["n"] for body in found) == list(range(100))
    for block in (found[:30], found[30:60], found[60:90], found[90:]):
        assert [(body["prompt"], body["n"]) for body in block] == sorted((body["prompt"], body["n"]) for body in block)
    assert {body["n"] for body in found[:30]} == set(range(30)), "no line waits longer than its block"


def test_memory_is_bounded_by_bytes_too() -> None:
    read: list[int] = []

    def lines() -> Any:
        for number in range(10):
            read.append(number)
            yield {"prompt": str(-number)}

    size = cache_order.MOST_BYTES // 3 + 1
    first = next(in_cache_order(lines(), 1_000, body=lambda body: body, size=lambda _: size))
    assert first == {"prompt": "-1"}
    assert read == [0, 1, 2]


def test_nothing_is_nothing() -> None:
    assert ordered([]) == []
