"""Raw replies of Redis as plain values, odd ones included."""

from __future__ import annotations

import pytest

from streamfleet.common.replies import consumer_name, description, entries, pace_per_s, pending_row, recorded


def test_an_entry_that_was_deleted_meanwhile_has_no_fields() -> None:
    assert entries([[b"1-0", [b"a", b"b"]], [b"2-0", None]]) == [("1-0", {b"a": b"b"}), ("2-0", {})]


def test_a_consumer_made_by_hand_may_be_called_anything() -> None:
    assert pending_row([b"1-0", b"w\xff", 5, 2]) == ("1-0", "w\\xff", 5, 2)
    assert consumer_name(b"w1") == "w1"


@pytest.mark.parametrize(
    "text", [b"", b"[[[", b"[]", b"null", b"\xff", b"[" * 100_000, b"1" * 5_000], ids=lambda text: repr(text[:9])
)
def test_a_description_that_is_none_says_nothing(text: bytes) -> None:
    assert description(text) == {}


def test_a_description() -> None:
    assert description(b'{"state":"ready"}') == {"state": "ready"}


def test_a_record_of_a_request() -> None:
    assert recorded(b"abc high:1-0 me") == ("high:1-0", "me")
    assert recorded(b"- low:12-3 ") == ("low:12-3", "")


@pytest.mark.parametrize(
    "record",
    [None, b"", b"x", b"a b", b"a b c", b"\xff \xff \xff", b"a high:1-0", b"a high:1-0 two names", b"a high:x-0 me"],
)
def test_a_record_that_is_none_names_nothing(record: bytes | None) -> None:
    assert recorded(record) == ("", "")


@pytest.mark.parametrize(
    ("pace", "per_second"),
    [
        (b'{"took": 10000, "left": 50}', 5.0),
        (b'{"took": 10000, "left": 0}', 0.1),
        (b'{"took": 999, "left": 5}', None),
        (b'{"took": 1e999, "left": 1}', None),
        (b'{"took": NaN, "left": NaN}', None),
        (b'{"took": [], "left": 1}', None),
        (b"[" * 100_000, None),
        (b"\xff", None),
        (None, None),
    ],
)
def test_the_pace_is_read_whatever_stands_there(pace: bytes | None, per_second: float | None) -> None:
    assert pace_per_s(pace) == per_second
