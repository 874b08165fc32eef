"""Raw replies of Redis as plain values, odd ones included."""

from __future__ import annotations

import pytest

from streamfleet.common.replies import consumer_name, description, entries, pending_row


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
