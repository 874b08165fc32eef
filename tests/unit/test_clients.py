"""`make clients` judges: each call as it is expected, also where it is to fail; its engine for agents does as told."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from streamfleet.common.message_events import MessageAssembly
from streamfleet.common.protocol import MESSAGES, RESPONSES, Lane
from streamfleet.worker.engine.base import EngineRequest
from tests.clients.__main__ import BEGIN, END, PAGE, Family, Row, families, table
from tests.support import told_calls

FAMILY = Family("a", "a.py", ("a==1",), False, False, "", {"streamed": "until then"})


@pytest.mark.parametrize(
    ("call", "error", "wrong"),
    [("chat", "", False), ("chat", "400", True), ("streamed", "400", False), ("streamed", "", True)],
)
def test_what_is_expected_to_fail_has_to(call: str, error: str, wrong: bool) -> None:
    assert Row(FAMILY, call, error).wrong is wrong


def test_each_version_is_pinned() -> None:
    for family in families([]):
        assert all(re.search(r".(==|@)\d", package) for package in family.packages), family.name


def test_the_page_has_a_row_for_each_family() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    expected = table([Row(family, "", "") for family in families([])]).splitlines()[2:]
    assert [line.split(" | ")[0] for line in shown] == [line.split(" | ")[0] for line in expected]
    assert "a fault" not in "".join(shown)


ASKS: Any = {"role": "user", "content": [{"type": "input_text", "text": 'Do it:\ncall f {"a": 1}\ncall g {}'}]}
ONE, TWO = ({"type": "function_call_output", "call_id": "c", "output": text} for text in ("one", "two"))
AND: Any = {"role": "user", "content": "And?"}


@pytest.mark.parametrize(
    ("said", "functions", "expected"),
    [
        ([ASKS], "fg", ("f", '{"a": 1}')),
        ([ASKS, ONE], "fg", ("g", "{}")),
        ([ASKS, ONE, TWO], "fg", "[simulated] two"),
        ([ASKS, ONE, TWO, AND], "fg", "[simulated] two"),
        ([ASKS, ONE, TWO, ASKS], "fg", ("f", '{"a": 1}')),
        ([ASKS], "g", ("g", "{}")),
        ("Say hi", "fg", "[simulated] no call"),
    ],
)
async def test_the_engine_for_agents_makes_the_calls_that_it_is_told(
    said: Any, functions: str, expected: tuple[str, str] | str
) -> None:
    events: list[Any] = []
    body = {"input": said, "tools": [{"type": "function", "name": name} for name in functions]}
    request = EngineRequest("1", RESPONSES, body, Lane.NORMAL, on_chunk=events.append)
    answer = json.loads((await told_calls.run(None, request)).body)
    found = [json.loads(event) for event in events]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[-1]["response"] == answer
    (item,) = answer["output"]
    text = "".join(event.get("delta", "") for event in found)
    if isinstance(expected, tuple):
        assert (item["name"], item["arguments"], text) == (*expected, expected[1])
    else:
        assert (item["content"][0]["text"], text) == (expected, expected)


RESULT: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "one"}]}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([{"role": "user", "content": 'call f {"a": 1}'}], ("f", {"a": 1})),
        ([{"role": "user", "content": 'call f {"a": 1}'}, RESULT], "[simulated] one"),
    ],
)
async def test_so_it_does_in_messages(said: Any, expected: tuple[str, Any] | str) -> None:
    events: list[Any] = []
    body = {"messages": said, "tools": [{"name": "f"}], "max_tokens": 9}
    answer = json.loads(
        (await told_calls.run(None, EngineRequest("1", MESSAGES, body, Lane.NORMAL, on_chunk=events.append))).body
    )
    assembly = MessageAssembly()
    for event in events:
        assembly.add(json.loads(event))
    assert assembly.answer() == answer
    (block,) = answer["content"]
    assert expected in (block.get("text"), (block.get("name"), block.get("input")))
