"""Results as callers get them, out of whatever stands in the hash."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from streamfleet.common import envelope
from streamfleet.common.errors import RequestFailed, openai_error
from streamfleet.common.protocol import Status
from streamfleet.common.results import Result, Timings, decode_result, tokens_used
from streamfleet.common.scripts import VERBS, pieces
from streamfleet.worker.complete import Completer

FIELDS = {
    b"status": b"succeeded",
    b"response": b'{"choices":[{"message":{"content":"Paris"}}]}',
    b"usage": b'{"total_tokens":5}',
    b"http_status": b"200",
    b"finish_reason": b"stop",
    b"worker": b"w1",
    b"attempt": b"2",
    b"queued_ms": b"1.5",
    b"total_ms": b"20",
}


def result_of(**fields: bytes) -> Result:
    """A result with some fields changed."""
    found = decode_result("r-1", FIELDS | {name.encode(): value for name, value in fields.items()})
    assert found is not None
    return found


def test_no_result_yet_is_none() -> None:
    assert decode_result("r-1", {}) is None
    assert decode_result("r-1", {b"entry": b"high:1-1"}) is None


def test_every_part_is_there() -> None:
    result = result_of()
    assert (result.id, result.status, result.ok, result.text) == ("r-1", Status.SUCCEEDED, True, "Paris")
    assert (result.http_status, result.finish_reason, result.usage) == (200, "stop", {"total_tokens": 5})
    assert (result.worker, result.attempt) == ("w1", 2)
    assert result.timings == Timings(queued_ms=1.5, waited_ms=None, first_token_ms=None, total_ms=20.0)
    assert result.fields["finish_reason"] == "stop"
    assert result.raise_for_status() is result


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        (b'{"prompt_tokens_details": {"cached_tokens": 48}}', 48),
        (b'{"input_tokens_details": {"cached_tokens": 16}}', 16),
        (b'{"prompt_tokens_details": {"cached_tokens": true}}', 0),
        (b'{"prompt_tokens_details": {"cached_tokens": -1}}', 0),
        (b'{"prompt_tokens_details": {"cached_tokens": 1000000001}}', 0),
        (b'{"prompt_tokens_details": null}', 0),
        (b"[]", 0),
        (b"", 0),
    ],
)
def test_cached_tokens_are_what_the_engine_tells(usage: bytes, cached: int) -> None:
    assert result_of(usage=usage).cached_tokens == cached


@pytest.mark.parametrize(
    ("usage", "used"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, (5, 2)),
        ({"input_tokens": 5, "output_tokens": 2}, (5, 2)),
        ({"prompt_tokens": None, "input_tokens": 5}, (5, None)),
        ({"prompt_tokens": "5", "completion_tokens": -1}, (None, None)),
        ({"prompt_tokens": 10**9, "completion_tokens": 10**9 + 1}, (10**9, None)),
        ({}, (None, None)),
    ],
    ids=str,
)
def test_tokens_used_have_two_names(usage: dict[str, object], used: tuple[int | None, int | None]) -> None:
    assert (tokens_used(usage, "prompt_tokens"), tokens_used(usage, "completion_tokens")) == used


@pytest.mark.parametrize(
    ("status", "http_status"), [("failed", 400), ("expired", 504), ("cancelled", 499), ("dead", 500)]
)
def test_an_unsuccessful_one_has_an_error_and_raises_it(status: str, http_status: int) -> None:
    error = openai_error("too long", "invalid_request_error", "messages", "context_length")
    result = decode_result("r-1", {b"status": status.encode(), b"error": error.encode()})
    assert result is not None
    assert (result.ok, result.http_status, result.worker, result.attempt) == (False, http_status, None, 0)
    assert result.error == json.loads(error)["error"]
    with pytest.raises(RequestFailed, match=f"request r-1 {status}: too long") as caught:
        result.raise_for_status()
    assert (caught.value.status, caught.value.error) == (status, result.error)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (b'{"choices":[{"text":"Paris"}]}', "Paris"),
        (b'{"choices":[]}', ""),
        (b'{"choices":[{"message":{"content":null}}]}', ""),
        (b'{"choices":[{"message":null}]}', ""),
        (b'{"choices":[null]}', ""),
        (b'{"choices":{"a":1}}', ""),
        (b'{"choices":[{"message":{"content":[{"type":"text"}]}}]}', ""),
        (b'{"data":[{"embedding":[0.1]}]}', ""),
        (b"", ""),
    ],
    ids=repr,
)
def test_the_text_is_that_of_the_first_choice(response: bytes, text: str) -> None:
    assert result_of(response=response).text == text


@pytest.mark.parametrize(
    "odd", [b"no JSON", b"\xff", b"[1]", b'"text"', b"1" * 5000, b"[" * 100_000], ids=lambda odd: repr(odd[:9])
)
def test_what_is_no_object_does_not_stop_anybody_from_reading_the_rest(odd: bytes) -> None:
    result = result_of(response=odd, usage=odd)
    assert isinstance(result.response, dict)
    assert result.finish_reason == "stop"
    failed = result_of(status=b"failed", error=odd)
    with pytest.raises(RequestFailed):
        failed.raise_for_status()


@pytest.mark.parametrize("error", [b'{"error":"boom"}', b'"boom"', b'{"detail":"boom"}'])
def test_errors_of_another_shape_are_still_objects(error: bytes) -> None:
    found = result_of(status=b"failed", error=error).error
    assert isinstance(found, dict)
    assert "boom" in str(found)
    with pytest.raises(RequestFailed):
        result_of(status=b"failed", error=error).raise_for_status()


def test_odd_numbers_are_none() -> None:
    result = result_of(queued_ms=b"soon", http_status=b"?", attempt=b"")
    assert (result.timings.queued_ms, result.http_status, result.attempt) == (None, 200, 0)


def test_a_status_that_is_none_reads_as_failed_and_says_why() -> None:
    result = result_of(status=b"done?")
    assert (result.status, result.ok) == (Status.FAILED, False)
    assert result.error is not None
    assert "'done?' is no status" in result.error["message"]


@pytest.fixture
def page(repository: Path) -> Callable[[str], list[str]]:
    """Returns the names in the first column of the table with this head, in docs/protocol.md."""
    text = (repository / "docs/protocol.md").read_text(encoding="utf-8")

    def names(head: str) -> list[str]:
        rows = text.partition(f"| {head} |\n|---|---|---|\n")[2].partition("\n\n")[0]
        return [name for row in rows.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])]

    return names


@pytest.fixture
def table(page: Callable[[str], list[str]]) -> list[str]:
    """Names of a result's fields."""
    return page("field | when | meaning")


def test_a_result_has_what_is_carried_from_its_request(table: list[str]) -> None:
    assert table[-1 - len(envelope.CARRIED) :] == [*envelope.CARRIED, "notified:<name>"]


def test_one_part_of_the_scripts_writes_results() -> None:
    for verb in VERBS:
        others = "".join(piece.text for piece in pieces(verb) if piece.path != "lib/result.lua")
        if "result_key(" in others:  # it has keys of results
            written = set(re.findall(r"'(?:HSET|HSETNX|HINCRBY)', ([\w\[\]]+)", others))
            assert written <= {
                "LANES",
                "ENTRIES",
                "CLOCK",
                "DEAD_PARTS",
                "COUNTS",
                "ATTEMPTS",
                "WORKERS",
                "SERVED",
                "SESSIONS",
                "TICKETS",
                "LISTENERS",
            }, verb


def test_a_worker_writes_no_other_fields(table: list[str]) -> None:
    names = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(Completer._completion)))):
        if isinstance(node, ast.Dict):
            names |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and ast.unparse(node.value) == "values"
        ):
            names.add(node.slice.value)
    assert {"http_status", "response", "streamed"} < names <= set(table)


def test_readers_know_no_other_fields(repository: Path, table: list[str]) -> None:
    read = set(re.findall(r"""\bget\("(\w+)"\)""", inspect.getsource(decode_result))) | set(Timings._fields)
    for package in ("producer", "gateway", "cli"):
        for path in (repository / package).rglob("*.py"):
            read |= set(re.findall(r"""result\.fields(?:\.get\(|\[)"(\w+)\"""", path.read_text(encoding="utf-8")))
    assert {"response", "queued_ms", "entry"} < read <= set(table)
