"""A queue as JSON values: how it moves, what is due soon, hostile bytes as text."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.protocol import LANES, Lane
from streamfleet.operator.fleet import worker_views
from streamfleet.operator.json_view import pressure, queue_object
from streamfleet.operator.rates import KEPT_MS, RateMeter
from streamfleet.operator.snapshot import LaneView, Snapshot
from streamfleet.operator.texts import MOST_CHARS, error_of, line, passage, reason_of, usage_of

NOW = 1_790_000_000_000


def lane(name: Lane, running: int = 0, ready: int = 0, due: list[tuple[int, float]] | None = None) -> LaneView:
    return LaneView(name, running + ready, ready, running, 0, None, None, due or [])


def snapshot(at_ms: int, finished: int = 0, running: int = 0, ready: int = 0, **more: Any) -> Snapshot:
    lanes = [lane(name, running if name == "high" else 0, ready if name == "high" else 0) for name in LANES]
    ended = {"succeeded": finished, "failed": 0}
    return Snapshot("q", NOW + at_ms, lanes, [], 0, 0, finished + running + ready, ended, **more)


def test_movement_needs_two_readings_and_tells_mean_times_by_littles_law() -> None:
    meter = RateMeter()
    assert meter.add(snapshot(0, 0, running=2, ready=8)) is None
    queue_rates = meter.add(snapshot(1000, 5, running=2, ready=8))
    assert queue_rates is not None
    told = queue_rates.to_json()
    assert (told["over_s"], told["enqueued_per_s"], told["finished_per_s"]) == (1.0, 5.0, 5.0)
    assert told["ended_per_s"] == {"succeeded": 5.0, "failed": 0.0}
    assert told["latency"] == {"total_s": 2.0, "waiting_s": 1.6, "running_s": 0.4}
    still = meter.add(snapshot(2000, 5, running=2, ready=8))
    assert still is not None
    assert still.to_json()["finished_per_s"] == 2.5


def test_movement_is_over_about_ten_seconds_and_nothing_older_than_a_minute() -> None:
    meter = RateMeter()
    queue_rates = [meter.add(snapshot(second * 1000, second)) for second in range(31)][-1]
    assert queue_rates is not None
    assert queue_rates.seconds == 10.0
    assert meter.add(snapshot(30_000 + KEPT_MS + 1, 40)) is None


def test_readings_that_are_far_apart_are_kept_where_asked() -> None:
    meter = RateMeter(3 * KEPT_MS)
    meter.add(snapshot(0, 0))
    moved = meter.add(snapshot(2 * KEPT_MS, 120))
    assert moved is not None
    assert moved.finished == 1.0


def test_movement_without_endings_has_no_times_and_clocks_may_jump_back() -> None:
    meter = RateMeter()
    meter.add(snapshot(5000, 7, running=1))
    queue_rates = meter.add(snapshot(6000, 7, running=1))
    assert queue_rates is not None
    assert queue_rates.to_json()["latency"] is None
    assert meter.add(snapshot(1000, 0)) is None, "another server's clock"


@pytest.mark.parametrize(
    ("ready", "due", "counts", "exact"),
    [
        (0, [], [0, 0, 0, 0], True),
        (3, [(0, -1.0), (1, 5.0), (2, 400.0)], [1, 2, 2, 2], True),
        (100, [(0, 0.5), (50, 50.5), (99, 99.5)], [0, 10, 60, 100], False),
        (100, [(0, -50.0), (99, -1.0)], [100, 100, 100, 100], False),
        (5, [(0, 1.0)], [0, 1, 1, 1], False),
    ],
)
def test_pressure(ready: int, due: list[tuple[int, float]], counts: list[int], exact: bool) -> None:
    found, known = pressure(lane(Lane.HIGH, ready=ready, due=due))
    assert ([each["count"] for each in found], known) == (counts, exact)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.integers(0, 1000))
def test_pressure_never_falls_and_never_exceeds_what_is_there(lefts: list[float], more: int) -> None:
    due = list(enumerate(sorted(lefts)))
    counts = [each["count"] for each in pressure(lane(Lane.HIGH, ready=len(due) + more, due=due))[0]]
    assert counts == sorted(counts)
    assert 0 <= counts[0] <= counts[-1] <= len(due) + more


def test_workers_that_say_odd_things_are_shown_as_text() -> None:
    words = {
        "fields": b64encode(zlib.compress(b'{"/v1/completions": "prompt seed"}')).decode(),
        "state": "\ud800<b>",
        "models": ["<script>\x00", 7],
        "unready": "\ud800" * 9,
        "slots": 1e308,
        "seen_ms": NOW,
    }
    looked = replace(snapshot(0, ready=1), workers=worker_views({"w\x00": words}, {}, NOW))
    shown = queue_object(looked, None)
    assert json.dumps(shown, ensure_ascii=False, allow_nan=False).encode()
    assert shown["workers"][0]["models"] == ["<script>\\x00", ""]
    assert "\\ud800" in shown["lanes"][1]["why"]


@pytest.mark.parametrize(
    ("raw", "is_json", "text"),
    [
        (b'{"a":1}', True, '{\n  "a": 1\n}'),
        (b"<script>alert(1)</script>\x00\x1b[2J", False, "<script>alert(1)</script>\\x00\\x1b[2J"),
        (b"\xff\xfe", False, "\\xff\\xfe"),
        (b'{"a":"\\ud800"}', True, '{\n  "a": "\\ud800"\n}'),
        (b'{"a":"\\u0000"}', True, '{\n  "a": "\\u0000"\n}'),
        (b'{"a":NaN}', False, '{"a":NaN}'),
        (b"", False, ""),
        (b'{"a":', False, '{"a":'),
    ],
    ids=["json", "markup", "no_utf8", "surrogate", "nul", "nan", "empty", "half"],
)
def test_a_body_is_text(raw: bytes, is_json: bool, text: str) -> None:
    assert passage(raw) == {"text": text, "json": is_json, "bytes": len(raw), "cut": False}


@pytest.mark.parametrize(
    "raw",
    [
        b"x" * 10 * MOST_CHARS,
        b"\x00" * MOST_CHARS,
        b'"' + b"x" * 2 * MOST_CHARS + b'"',
        b"[" * 400 + b"1," * 50_000 + b"1" + b"]" * 400,
        b"\xff" * 4 * MOST_CHARS,
    ],
    ids=["long", "controls", "long_json", "deep_and_long", "no_utf8"],
)
def test_a_body_is_cut(raw: bytes) -> None:
    shown = passage(raw)
    assert shown is not None
    assert (shown["cut"], shown["bytes"], len(shown["text"]) <= MOST_CHARS) == (True, len(raw), True)


def test_indenting_stops_where_it_is_long_enough() -> None:
    """Indented to its end, this one would be 400 times as long."""
    raw = b"[" * 400 + b"1," * 50_000 + b"1" + b"]" * 400
    tracemalloc.start()
    try:
        passage(raw)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_a_body_that_is_nested_too_deeply_stays_as_it_is() -> None:
    shown = passage(b"[" * 5000 + b"]" * 5000)
    assert shown is not None
    assert (shown["json"], shown["text"][:3]) == (False, "[[[")


@given(st.binary(max_size=300))
def test_any_bytes_can_be_shown(raw: bytes) -> None:
    json.dumps([passage(raw), passage(raw, 10), line(raw)], ensure_ascii=False, allow_nan=False).encode()


@given(st.recursive(st.none() | st.floats() | st.integers() | st.text(), lambda some: st.dictionaries(st.text(), some)))
def test_any_error_and_usage_can_be_shown(value: Any) -> None:
    found = value if isinstance(value, dict) else {"message": value, "param": value, "total_tokens": value}
    json.dumps([error_of(found), reason_of(found), usage_of(found)], ensure_ascii=False, allow_nan=False).encode()


def test_of_errors_and_usage_only_what_they_should_have_is_shown() -> None:
    odd = {"message": "\ud800<b>", "type": float("nan"), "param": {"a": 1}, "code": 7, "more": "x"}
    assert error_of(odd) == {"message": "\\ud800<b>", "type": None, "param": None, "code": None}
    assert reason_of({"message": ["x"]}) == reason_of(None) == "no message"
    assert reason_of({"message": "is wrong", "param": "body"}) == "body: is wrong"
    assert usage_of({"a": float("nan"), "b": 2**60, "c": 3, "d": True, "\ud800": 1}) == {"c": 3, "\\ud800": 1}
    assert usage_of({"x": "y"}) is usage_of(None) is None
    cached = {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 16}}
    assert usage_of(cached) == {"prompt_tokens": 20, "cached_tokens": 16}
