"""Readers of streams under kills, `python -m tests.fault.readers`: what their judge notices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.results import Result, decode_result
from tests.fault.reader_mutants import MUTANTS, gateway_with
from tests.fault.readers import KINDS, MessageReader, Reader, ResponseReader, look, measure


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_guard_of_the_gateway_that_is_missing_is_noticed(mutant: str) -> None:
    _, kinds, expected = MUTANTS[mutant]
    said: list[str] = []
    for seed in range(1, 4):  # whose run a kill interrupts is chance
        said += (await measure(40, seed, kinds, gateway_with(mutant))).violations
        if any(expected in line for line in said):
            return
    pytest.fail(f"{said} has no {expected!r}")


def stored(text: str = "ab", attempt: int = 1, status: str = "succeeded") -> Result:
    fields = {"status": status, "response": json.dumps({"choices": [{"message": {"content": text}}]})}
    decoded = decode_result(
        "r", {name.encode(): value.encode() for name, value in fields.items()} | {b"attempt": b"%d" % attempt}
    )
    assert decoded is not None
    return decoded


def chat_that_got(*texts: str, told: str = "") -> Reader:
    reader = Reader(0)
    for text in texts:
        reader.take({"data": json.dumps({"choices": [{"delta": {"content": text}}]})})
    reader.told = told
    return reader


def response_that_got(*numbers: int) -> Reader:
    reader = ResponseReader(0)
    for number in numbers:
        reader.take({"data": json.dumps({"type": "response.in_progress", "sequence_number": number})})
    return reader


def message_that_got(*kinds: str) -> Reader:
    reader = MessageReader(0)
    for kind in kinds:
        reader.take({"data": json.dumps({"type": kind})})
    return reader


@pytest.mark.parametrize(
    ("reader", "result", "wrong"),
    [
        (chat_that_got("a", "b"), stored(), ""),
        (chat_that_got("a", told="stream_restarted"), stored(attempt=2), ""),
        (chat_that_got("a", told="stream_restarted"), stored(), "no worker was lost"),
        (chat_that_got("a"), stored(), "the result 'ab'"),
        (chat_that_got("a", "b"), None, "no result"),
        (chat_that_got("a", "b"), stored(status="dead"), "dead"),
        (response_that_got(0, 2), None, "number 2 came after 0"),
        (response_that_got(1), None, "number 1 came after -1"),
        (message_that_got(*KINDS[:2], KINDS[2], *KINDS[2:5]), None, "no result"),
        (message_that_got("message_start", "message_start"), None, "events came as"),
        (message_that_got("content_block_start"), None, "events came as"),
    ],
)
def test_the_judge_of_readers(reader: Reader, result: Any, wrong: str) -> None:
    lines = look(reader, result)
    assert any(wrong in line for line in lines) if wrong else lines == []
