"""The page's pure parts: one look for all, how a queue moves, hostile bytes as text, who may ask, what may be asked."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.errors import BrokerUnavailable, InvalidRequest, SettingsError
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.replies import ready_entries
from streamfleet.common.settings import QueueSettings, load
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.api_keys import digest_of, make_record, read_record
from streamfleet.gateway.authentication import check_own_site
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.ui import parameters
from streamfleet.gateway.ui.overview import KEPT_MS, RateMeter, overview, pressure
from streamfleet.gateway.ui.routes import INDEX, POLICY, check_json, is_known, page_file
from streamfleet.gateway.ui.session import MOST_SEARCHES, REUSE_S, CachedReading, UiSession, ui_settings
from streamfleet.gateway.ui.texts import MOST_CHARS, error_of, line, passage, reason_of, usage_of
from streamfleet.operator.fleet import worker_views
from streamfleet.operator.snapshot import LaneView, Snapshot
from tests.clocks import HandClock

DIGEST = digest_of("sf-x")
NOW = 1_790_000_000_000


# -- one look for all --------------------------------------------------------------------------------------


class Looks:
    """Counts looks; each waits until it is let go."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self) -> dict[str, Any]:
        self.count += 1
        mine = self.count
        await self.go_on.wait()
        if self.fails:
            raise BrokerUnavailable("away")
        return {"look": mine}


async def test_a_hundred_viewers_cost_one_look_a_second() -> None:
    looks, clock = Looks(), HandClock(NOW)
    reading = CachedReading(looks, clock)
    seen = await asyncio.gather(*(reading.get() for _ in range(100)))
    assert (looks.count, {each["look"] for each in seen}) == (1, {1})
    clock.seconds += REUSE_S
    await asyncio.gather(*(reading.get() for _ in range(100)))
    assert looks.count == 2


async def test_a_look_that_fails_fails_once_for_all() -> None:
    looks, clock = Looks(), HandClock(NOW)
    looks.fails = True
    reading = CachedReading(looks, clock)
    found = await asyncio.gather(*(reading.get() for _ in range(20)), return_exceptions=True)
    assert all(isinstance(each, BrokerUnavailable) for each in found)
    assert looks.count == 1
    clock.seconds, looks.fails = clock.seconds + REUSE_S, False
    assert await reading.get() == {"look": 2}


async def test_what_is_changed_while_somebody_looks_is_looked_at_again() -> None:
    looks = Looks()
    reading = CachedReading(looks, HandClock(NOW))
    looks.go_on.clear()
    looking = asyncio.ensure_future(reading.get())
    await asyncio.sleep(0)
    reading.invalidate()
    looks.go_on.set()
    await looking
    assert await reading.get() == {"look": 2}
    assert await reading.get() == {"look": 2}


# -- movement and pressure ---------------------------------------------------------------------------------


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
        "state": "\ud800<b>",
        "models": ["<script>\x00", 7],
        "unready": "\ud800" * 9,
        "slots": 1e308,
        "seen_ms": NOW,
    }
    looked = replace(snapshot(0, ready=1), workers=worker_views({"w\x00": words}, {}, NOW))
    shown = overview(looked, None, {})
    assert json.dumps(shown, ensure_ascii=False, allow_nan=False).encode()
    assert shown["workers"][0]["models"] == ["<script>\\x00", ""]
    assert "\\ud800" in shown["lanes"][1]["why"]


# -- hostile bytes -----------------------------------------------------------------------------------------


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


# -- who may ask -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"origin": "http://gateway:8080"}, False),
        ({"origin": "https://GATEWAY:8080"}, False),
        ({"origin": "http://gateway:8081"}, True),
        ({"origin": "http://evil.example"}, True),
        ({"origin": "http://gateway:8080@evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": "file://gateway:8080"}, True),
        ({"origin": "http://["}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://evil.example"}, True),
    ],
    ids=str,
)
def test_other_sites_are_refused(headers: dict[str, str], refused: bool) -> None:
    given = {"host": "gateway:8080", **headers}
    if not refused:
        check_own_site(given)
        return
    with pytest.raises(ApiError) as caught:
        check_own_site(given)
    assert (caught.value.status, caught.value.code) == (403, "cross_site")


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "text/json", "application/jsonx"]
)
def test_what_acts_has_to_say_that_it_is_json(kind: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_json({"content-type": kind})
    assert caught.value.status == 415
    check_json({"content-type": "Application/JSON; charset=utf-8"})


@pytest.mark.parametrize("said", [1, "true", "on", [True], None, {}])
def test_only_true_makes_an_operator(said: object) -> None:
    record = make_record(DIGEST, "ops", "ops", operator=True)
    again = read_record(DIGEST, record.encoded().encode())
    assert again == record
    other = read_record(DIGEST, json.dumps({**json.loads(record.encoded()), "operator": said}).encode())
    assert other is not None
    assert not other.operator


def test_keys_of_former_releases_are_no_operators() -> None:
    stored = json.loads(make_record(DIGEST, "old", "old").encoded())
    del stored["operator"]
    record = read_record(DIGEST, json.dumps(stored).encode())
    assert record is not None
    assert not record.operator


# -- files and settings ------------------------------------------------------------------------------------


def test_the_page_and_what_it_loads_are_packaged() -> None:
    found = page_file(INDEX)
    assert found is not None
    assert found.media_type == "text/html; charset=utf-8"
    assert "unsafe" not in POLICY
    assert is_known(found.etag, f'"x", W/{found.etag}')
    assert not is_known(found.etag, None)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../routes.py",
        "routes.py",
        "__init__.py",
        "x.js",
        "..%2fapp.js",
        "a/b.js",
        "../static/index.html",
        "./index.html",
        "../ui/static/index.html",
        "app.js\x00",
        "A.JS",
    ],
)
def test_nothing_else_is_served(name: str) -> None:
    assert page_file(name) is None


def test_the_pages_own_user() -> None:
    queue = load(QueueSettings, redis_url="redis://gateway:one@h:6379/0")
    assert ui_settings(queue, load(GatewaySettings)) is queue
    own = ui_settings(queue, load(GatewaySettings, gateway_ui_redis_url="redis://operator:two@h:6379/0"))
    assert own.redis_url.get_secret_value() == "redis://operator:two@h:6379/0"
    assert "two" not in repr(own)
    with pytest.raises(SettingsError, match="STREAMFLEET_GATEWAY_UI_REDIS_URL: "):
        ui_settings(queue, load(GatewaySettings, gateway_ui_redis_url="http://h"))


def test_only_some_search_at_once() -> None:
    session = UiSession(load(QueueSettings), load(GatewaySettings), HandClock(NOW))
    with session.search_slot(), session.search_slot(), session.search_slot(), session.search_slot():
        assert MOST_SEARCHES == 4
        with pytest.raises(ApiError) as caught, session.search_slot():
            pass
        assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "1")
    with session.search_slot():
        pass


# -- what may be asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"lane": "fast"}, "lane"),
        ({"state": "gone"}, "state"),
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "²"}, "limit"),
        ({"query": "x" * 257}, "query"),
        ({"tenant": "x" * 257}, "tenant"),
    ],
    ids=str,
)
def test_searches_that_make_no_sense(query: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parameters.read_criteria(query)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"ids": "1-0"},
        {"ids": []},
        {"ids": [1]},
        {"ids": ["x"]},
        {"ids": ["1"]},
        {"ids": ["1-0; FLUSHALL"]},
        {"ids": [f"{2**64}-0"]},
        {"ids": ["1-0"] * 101},
    ],
    ids=lambda asked: str(asked)[:40],
)
def test_ids_that_make_no_sense(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parameters.read_dead_letter_ids(asked)
    assert caught.value.param == "ids"


@pytest.mark.parametrize("lanes", [[], "low", ["fast"], [1], [["low"]], {}], ids=str)
def test_lanes_that_make_no_sense(lanes: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parameters.read_lanes({"lanes": lanes})
    assert caught.value.param == "lanes"


def test_what_makes_sense() -> None:
    assert parameters.read_lanes({}) == list(LANES)
    assert parameters.read_lanes({"lanes": ["low", "high", "low"]}) == [Lane.HIGH, Lane.LOW]
    assert parameters.read_dead_letter_ids({"ids": ["2-0", "1-0", "2-0"]}) == ["2-0", "1-0"]
    assert parameters.read_before({"before": "7-1"}) == "7-1"
    assert parameters.read_before({}) is None
    with pytest.raises(InvalidRequest):
        parameters.read_before({"before": "0-0"})  # nothing is behind it, and Redis refuses to look


def test_members_of_ready_sets_that_workers_did_not_put_there_are_left_out() -> None:
    large = b"A" + str(2**64).encode() + b"-A0"
    reply = [b"M1790000000000-A0", b"5", b"junk", b"1", large, b"2", b"M1790000000001-A3", b"inf"]
    assert ready_entries(reply) == [("1790000000000-0", 5), ("1790000000001-3", 9 * 10**15)]
