"""The OpenAI Batch file format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest, openai_error
from streamfleet.common.results import Result, decode_result
from streamfleet.producer.batch_lines import (
    MAX_LINE_BYTES,
    BadLine,
    BatchLine,
    Written,
    answer_line,
    parse_line,
    parse_written,
    refusal_line,
    request_id,
)

LINE: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}


def text(**changes: Any) -> bytes:
    return json.dumps(LINE | changes).encode()


def result(**fields: str) -> Result:
    found = decode_result("r-1", {name.encode(): value.encode() for name, value in fields.items()})
    assert found is not None
    return found


def test_reads_a_line() -> None:
    assert parse_line(text() + b"\r\n", 3) == BatchLine(3, "a", "/v1/chat/completions", {"messages": []})


def test_a_byte_order_mark_is_no_part_of_it() -> None:
    assert parse_line(b"\xef\xbb\xbf" + text(), 1).custom_id == "a"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (text().decode().encode("utf-16"), "line 7: the line is not UTF-8: it holds zero bytes, as UTF-16 does"),
        (b"\xff" + text(), "line 7: the line is not UTF-8: byte 0 is 0xff"),
        (text().decode().encode("utf-16-le"), "line 7: the line is not UTF-8: it holds zero bytes, as UTF-16 does"),
        (b"[" + text() + b"]", "line 7: the line must be a JSON object, not an array"),
        (b'{"messages": []}', "line 7: custom_id: is missing: a line has custom_id, method, url and body"),
    ],
)
def test_a_line_of_another_format_is_told_what_is_wrong(line: bytes, said: str) -> None:
    with pytest.raises(BadLine) as raised:
        parse_line(line, 7)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("line", "param", "custom_id"),
    [
        (b'{"custom_id": "a"', None, None),
        (b"[]", None, None),
        (b"\xff{}", None, None),
        (b'{"custom_id": "a", "body": {"temperature": NaN}}', None, None),
        (b"{}", "custom_id", None),
        (text(custom_id=""), "custom_id", None),
        (text(custom_id=7), "custom_id", None),
        (text(method="GET"), "method", "a"),
        (text(method=None), "method", "a"),
        (text(url=None), "url", "a"),
        (text(url="/v1/models"), "url", "a"),
        (text(body=None), "body", "a"),
        (text(body="hi"), "body", "a"),
    ],
)
def test_bad_lines_say_where_and_what(line: bytes, param: str | None, custom_id: str | None) -> None:
    with pytest.raises(BadLine) as raised:
        parse_line(line, 7)
    assert (raised.value.number, raised.value.param, raised.value.custom_id) == (7, param, custom_id)
    assert str(raised.value).startswith("line 7: ")


@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_a_line_is_one_line_for_every_reader(end: str) -> None:
    """Also for those that split by all line ends of Unicode, as Python's `splitlines` does."""
    said = f"ü{end}{end}ü"
    response = json.dumps({"choices": [{"message": {"content": said}}]}, ensure_ascii=False)
    answer = answer_line(said, result(status="succeeded", response=response)).decode()
    failure = answer_line(said, result(status="failed", error=openai_error(said, "t", said, None))).decode()
    refusal = refusal_line(BadLine(7, said, said, said)).decode()
    for line in (answer, failure, refusal):
        assert line.splitlines(keepends=True) == [line]
        assert json.loads(line)["custom_id"] == said
    assert json.loads(answer)["response"]["body"]["choices"][0]["message"]["content"] == said


def test_request_ids_follow_from_job_and_custom_id() -> None:
    assert request_id("job", "a") == request_id("job", "a")
    assert len({request_id(job, custom_id) for job in ("j1", "j2") for custom_id in ("a", "b", "\ud800", "ü")}) == 8


def test_an_answer_is_as_openai_writes_it() -> None:
    line = json.loads(answer_line("a", result(status="succeeded", response='{"choices": []}')))
    assert line == {
        "id": "r-1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r-1", "body": {"choices": []}},
        "error": None,
    }


def test_a_failure_has_the_response_and_a_short_error() -> None:
    error = openai_error("is too long", "invalid_request_error", "messages", "context_length_exceeded")
    line = json.loads(answer_line("a", result(status="failed", error=error, http_status="400")))
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"] == json.loads(error)
    assert line["error"] == {"code": "context_length_exceeded", "message": "is too long"}


def test_a_refusal_names_line_and_field() -> None:
    line = json.loads(refusal_line(BadLine(7, "a", "must be POST", "method")))
    assert line["custom_id"] == "a"
    assert line["response"] is None
    assert (line["error"]["line"], line["error"]["param"]) == (7, "method")
    assert line["error"]["message"] == "line 7: method: must be POST"


def test_half_a_surrogate_pair_survives_the_way_out_and_back() -> None:
    line = answer_line("\ud800", result(status="succeeded", response="{}"))
    assert parse_written(line) == Written("\ud800", None)


@pytest.mark.parametrize(
    ("line", "about"),
    [
        (answer_line("a", result(status="succeeded", response="{}")), Written("a", None)),
        (answer_line("a", result(status="expired", error="{}")), Written("a", None)),
        (refusal_line(BadLine(7, "a", "no", "url")), Written("a", 7)),
        (refusal_line(BadLine(7, None, "no", None)), Written(None, 7)),
        (b'{"custom_id": "a", "resp', None),
        (b'{"custom_id": "a"}', None),
        (b'{"custom_id": 1, "response": null}', None),
        (b"7", None),
        (text(), None),
    ],
)
def test_reads_its_own_lines_only(line: bytes, about: Written | None) -> None:
    assert parse_written(line) == about


def test_bad_lines_are_no_invalid_requests() -> None:
    """A bad line ends in the error file; an InvalidRequest would end the whole command."""
    assert not issubclass(BadLine, InvalidRequest)


def test_the_example_is_a_batch(repository: Path) -> None:
    lines = (repository / "examples" / "prompts.jsonl").read_bytes().splitlines()
    parsed = [parse_line(text, number) for number, text in enumerate(lines, 1)]
    assert len({line.custom_id for line in parsed}) == len(parsed) == 20
    assert all(line.body["max_tokens"] <= 64 and "model" not in line.body for line in parsed)


def test_a_line_that_was_too_long_to_be_read_is_named() -> None:
    with pytest.raises(BadLine, match=r"^line 3: the line is longer than \d+ bytes$"):
        parse_line(b"x" * (MAX_LINE_BYTES + 1), 3)
