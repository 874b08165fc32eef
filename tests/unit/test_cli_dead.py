"""Display of a dead letter, and what of it is enqueued again."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from streamfleet.common.protocol import Lane
from streamfleet.operator.commands.dead_view import as_json_value, page, table
from streamfleet.operator.dead_letters import NotRequeued, read_letter, requeued_entry

ENQUEUED = 1_000_000
NOW = 2_000_000
LETTER = {
    b"_id": b"r-1",
    b"_status": b"expired",
    b"_error": b'{"error": {"message": "too late", "param": "deadline", "code": "deadline_exceeded"}}',
    b"_entry": b"high:1000000-3",
    b"_attempts": b"2",
    b"body": b'{"prompt":"hi"}',
    b"id": b"r-1",
}


def revived(**fields: bytes) -> tuple[dict[str, str], list[str]]:
    letter = read_letter("1-0", LETTER | {name.encode(): value for name, value in fields.items()})
    entry = requeued_entry(letter, NOW)
    assert entry.lane is Lane.HIGH
    texts = [part.decode() for part in entry.fields]
    return dict(zip(texts[::2], texts[1::2], strict=True)), entry.dropped


def test_the_original_comes_back_without_what_was_added() -> None:
    assert revived() == ({"body": '{"prompt":"hi"}', "id": "r-1"}, [])


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"deadline": b"2000000"}, ["deadline"]),
        ({"deadline": b"2000001"}, []),
        ({"ttl": b"1000000"}, ["ttl"]),
        ({"ttl": b"1000001"}, []),
        ({"deadline": b"5", "ttl": b"5"}, ["deadline", "ttl"]),
        ({"deadline": b"soon"}, []),
    ],
)
def test_time_limits_that_have_passed_are_left_out(fields: dict[str, bytes], dropped: list[str]) -> None:
    kept, found = revived(**fields)
    assert found == dropped
    assert set(kept) == {"body", "id", *fields} - set(dropped)


@pytest.mark.parametrize("changes", [{b"_truncated": b"50000000"}, {b"_entry": b"nowhere:1-0"}, {b"_entry": b""}])
def test_some_cannot_come_back(changes: dict[bytes, bytes]) -> None:
    with pytest.raises(NotRequeued, match="1-0"):
        requeued_entry(read_letter("1-0", LETTER | changes), NOW)


def test_one_without_fields_of_its_own_cannot_come_back() -> None:
    with pytest.raises(NotRequeued):
        requeued_entry(
            read_letter("1-0", {name: value for name, value in LETTER.items() if name.startswith(b"_")}), NOW
        )


def test_reasons() -> None:
    letter = read_letter("1-0", LETTER)
    assert letter.is_about("expired")
    assert letter.is_about("deadline_exceeded")
    assert not letter.is_about("failed")
    assert "deadline: too late" in page(letter)


@pytest.mark.parametrize(
    "error", [b"", b"{", b"[]", b'"x"', b'{"error": 1}', b'{"error": {"message": 5, "param": 1}}', b"\xff"]
)
def test_reads_whatever_stands_there(error: bytes) -> None:
    letter = read_letter("1-0", LETTER | {b"_error": error, b"_attempts": b"many", b"body": b"\xff\xfe"})
    assert letter.attempts == 0
    assert "body: \\xff\\xfe" in page(letter)
    json.dumps(as_json_value(letter, NOW))


def test_says_which_workers_it_took_along() -> None:
    letter = read_letter("1-0", LETTER | {b"_workers": b"w1 w2"})
    assert letter.workers == ("w1", "w2")
    assert "lost with    w1, w2" in page(letter)
    assert as_json_value(letter, NOW)["workers"] == ["w1", "w2"]


def test_a_terminal_shows_control_characters_and_does_not_obey_them() -> None:
    letter = read_letter("1-0", LETTER | {b"body": b"\x1b[2Jgone\x07"})
    assert "body: \\x1b[2Jgone\\x07" in page(letter)


@pytest.mark.parametrize("attempts", ["²".encode(), b"9" * 5_000, b"-1", b"x"])
def test_attempts_that_are_no_number_are_none(attempts: bytes) -> None:
    assert read_letter("1-0", LETTER | {b"_attempts": attempts}).attempts == 0


@pytest.mark.parametrize("entry", [b"high:x-y", b"high:", b"high:-", b"high:" + b"9" * 5_000 + b"-0"])
def test_an_entry_that_is_none_is_not_requeued(entry: bytes) -> None:
    with pytest.raises(NotRequeued):
        requeued_entry(read_letter("1-0", LETTER | {b"_entry": entry}), NOW)


def test_an_error_nested_beyond_the_stack_is_shown_as_text() -> None:
    assert read_letter("1-0", LETTER | {b"_error": b"[" * 100_000}).error["message"].startswith("[[[")


def test_a_terminal_is_not_told_what_to_do() -> None:
    """Messages of an engine quote the request: a model's name may hold anything."""
    error = json.dumps({"error": {"message": "no model \x1b]0;owned\x07 [/red]", "param": None, "code": "\x1b[2J"}})
    letter = read_letter("1-0", LETTER | {b"_error": error.encode(), b"_status": b"[/red]\x1b", b"_id": b"\x1b[31m"})
    written = StringIO()
    Console(file=written, width=200, color_system=None).print(table([letter], NOW))
    for text in (written.getvalue(), page(letter)):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\\x1b]0;owned\\x07 [/red]" in text
