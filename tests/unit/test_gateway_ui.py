"""The page's pure parts: one look for all, how a queue moves, hostile bytes as text, who may ask, what may be asked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from streamfleet.common.errors import BrokerUnavailable, InvalidRequest, SettingsError
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.replies import ready_entries
from streamfleet.common.settings import QueueSettings, load
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.api_keys import digest_of, make_record, read_record
from streamfleet.gateway.authentication import check_own_site
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.ui import parameters
from streamfleet.gateway.ui.routes import INDEX, POLICY, check_json, is_known, page_file
from streamfleet.gateway.ui.session import MOST_SEARCHES, REUSE_S, CachedReading, UiSession, ui_settings
from tests.clocks import HandClock

DIGEST = digest_of("sf-x")
NOW = 1_790_000_000_000


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
