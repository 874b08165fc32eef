"""Times and spans as people write them."""

from __future__ import annotations

import pytest

from streamfleet.common.durations import in_words, parse_deadline, parse_span
from streamfleet.common.errors import InvalidRequest

NOW = 1_790_000_000_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500ms", 500), ("30s", 30_000), ("1.5m", 90_000), ("2h", 7_200_000), ("1d", 86_400_000), (" 5s ", 5_000)],
)
def test_spans(text: str, milliseconds: int) -> None:
    assert parse_span(text) == milliseconds
    assert parse_deadline(text, NOW) == NOW + milliseconds


@pytest.mark.parametrize("text", ["", "5", "-5s", "5 s", "nan", "s", "1e3s", "9" * 400 + "s"])
def test_no_spans(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_span(text)
    assert raised.value.param == "ttl"


@pytest.mark.parametrize(
    ("text", "epoch_ms"),
    [
        ("2030-01-31T12:00:00Z", 1_896_091_200_000),
        ("2030-01-31T14:00:00+02:00", 1_896_091_200_000),
        ("1896091200000", 1_896_091_200_000),
    ],
)
def test_deadlines(text: str, epoch_ms: int) -> None:
    assert parse_deadline(text, NOW) == epoch_ms


@pytest.mark.parametrize("text", ["0", "1732700000", "1732700000.5", "978307199999"])
def test_a_deadline_in_seconds_is_none(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_deadline(text, NOW)
    assert raised.value.param == "deadline"
    assert text in raised.value.message
    assert "epoch m" in raised.value.message


@pytest.mark.parametrize("text", ["tomorrow", "2030-01-31T12:00:00", "2030-13-01", "1896091200", ""])
def test_no_deadlines(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_deadline(text, NOW)
    assert raised.value.param == "deadline"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (0.25, "250 ms"),
        (42.2, "42 s"),
        (60, "1 min"),
        (190, "3 min 10 s"),
        (7_500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
        (-5, "5 s ago"),
    ],
)
def test_words(seconds: float | None, words: str) -> None:
    assert in_words(seconds) == words
