"""The judge of resumed answers notices what must not be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from streamfleet.common.results import Result, decode_result
from tests.fault.resuming import SECRET, Found, look, published

BODY = {"max_tokens": 3}


class Letters:
    """A tokenizer whose tokens are characters."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def result(text: str = "abc", ids: str = "abc", resumed: int = 1, **fields: str) -> Result:
    response = {"choices": [{"text": text, "token_ids": [*map(ord, ids)]}]}
    given = {
        "status": "succeeded",
        "response": json.dumps(response),
        "usage": json.dumps({"completion_tokens": len(ids)}),
    }
    given |= {"resumed_tokens": str(resumed), **fields}
    decoded = decode_result("r", {name.encode(): value.encode() for name, value in given.items()})
    assert decoded is not None
    return decoded


def group(run: str, attempt: int, ids: str) -> Mapping[str, str]:
    chunk = {"choices": [{"text": ids, "token_ids": [*map(ord, ids)]}]}
    return {"run": run, "attempt": str(attempt), "seq": "0", "chunks": json.dumps(chunk)}


END = {"end": "succeeded"}
RUNS = [group("1", 1, "ab"), group("2", 2, "a"), group("2", 2, "bc"), END]


def wrong(answer: Result | None, entries: list[Mapping[str, str]], found: Found | None = None) -> list[str]:
    tokenizer: Any = Letters()
    return look("r", BODY, answer, entries, found or Found(), tokenizer)


def test_an_answer_that_went_on_is_right() -> None:
    found = Found()
    assert wrong(result(), RUNS, found) == []
    assert (found.resumed, found.repeated) == (1, [1])
    assert published(RUNS) == [(1, [97, 98]), (2, [97, 98, 99])]


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_chunks_are_split_by_line_feed_alone(end: str) -> None:
    chunks = "\n".join(json.dumps({"choices": [{"text": end, "token_ids": [n]}]}, ensure_ascii=False) for n in (1, 2))
    assert published([{"run": "1", "attempt": "1", "seq": "0", "chunks": chunks}]) == [(1, [1, 2])]


@pytest.mark.parametrize(
    ("answer", "entries", "said"),
    [
        pytest.param(None, RUNS, "no result", id="lost"),
        pytest.param(result(status="dead"), RUNS, "dead", id="failed"),
        pytest.param(result(text=SECRET), RUNS, "prompt", id="secret in the result"),
        pytest.param(result(), [{"chunks": SECRET}, *RUNS], "prompt", id="secret in the stream"),
        pytest.param(result("ab", "ab"), RUNS, "asked for 3", id="too short"),
        pytest.param(result("abd"), RUNS, "not that of its tokens", id="text of other tokens"),
        pytest.param(result(), RUNS[:-1], "one end", id="no end"),
        pytest.param(result(), [group("1", 1, "xb"), *RUNS[1:]], "has changed", id="changed"),
        pytest.param(result(), [*RUNS[:2], END], "other tokens", id="published something else"),
    ],
)
def test_what_is_wrong_is_said(answer: Result | None, entries: list[Mapping[str, str]], said: str) -> None:
    assert any(said in line for line in wrong(answer, entries))
