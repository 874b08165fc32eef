"""Key names: one hash tag for all, and no name that leads out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.keys import EACH_LANE, ORIGINS, Keys
from streamfleet.common.protocol import LANES

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
SHARED = [
    "wake",
    "lane_states",
    "entries",
    "dead",
    "tries",
    "delayed",
    "waiting",
    "watch",
    "counts",
    "cancels",
    "workers",
]
SHARED += ["dead_parts", "tickets", "served", "tenants", "sessions", "loads"]
FIXED = [*SHARED, "maintain", "cancel_requests", "clock", "pace"]
names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=256)


def tag(key: str) -> str:
    """Returns the part that Redis Cluster hashes: between the first brace and the next one that closes it."""
    opened = key.index("{")
    return key[opened + 1 : key.index("}", opened)]


def test_names_are_as_documented() -> None:
    keys = Keys("default")
    assert keys.lane("high") == "{default}:lane:high"
    assert keys.ready("high") == "{default}:ready:high"
    assert keys.turns("high") == "{default}:turns:high"
    assert (keys.result("r-1"), keys.request("r-1")) == ("{default}:result:r-1", "{default}:request:r-1")
    assert (keys.reply("me"), keys.tokens("r-1")) == ("{default}:reply:me", "{default}:tokens:r-1")
    assert (keys.wake, keys.wake_up("w1")) == ("{default}:wake", "{default}:wake:w1")
    assert [getattr(keys, name) for name in FIXED] == [
        f"{{default}}:{'lanes' if name == 'lane_states' else name}" for name in FIXED
    ]
    assert keys.lanes == [f"{{default}}:lane:{lane}" for lane in ("critical", "high", "normal", "low")]


def test_a_prefix_stands_before_every_key() -> None:
    keys = Keys("q", prefix="app:")
    assert keys.base == "app:{q}:"
    assert all(key.startswith("app:{q}:") for key in keys.shared())


def test_the_shared_keys_are_those_that_the_scripts_count_on() -> None:
    keys = Keys("q")
    expected = [*keys.lanes, *map(keys.ready, LANES), *map(keys.turns, LANES)]
    expected += [getattr(keys, name) for name in SHARED]
    assert keys.shared() == expected
    assert len(set(keys.shared())) == 29


@given(names, names)
def test_every_key_of_a_request_has_the_queues_hash_tag(request_id: str, queue: str) -> None:
    try:
        keys = Keys(queue)
    except InvalidRequest:
        return
    made = [keys.result(request_id), keys.request(request_id), keys.reply(request_id), keys.tokens(request_id)]
    assert {tag(key) for key in [*made, *keys.shared()]} == {queue}
    assert len({*made, *keys.shared()}) == 33


@pytest.mark.parametrize("queue", ["", "a b", "a{b", "}", "é", "x" * 257, "high:1-1"])
def test_an_unusable_queue_name_is_refused(queue: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Keys(queue)
    assert caught.value.param == "queue"


@pytest.mark.parametrize("prefix", ["{", "}", "{}", "{app}"])
def test_a_prefix_with_braces_would_take_the_hash_tag_over(prefix: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Keys("q", prefix)
    assert caught.value.param == "key_prefix"


def test_the_page_tells_what_each_key_is_made_of() -> None:
    rows = ["| key | made anew from | what is lost with it | left when all has ended, at most |", "|---|---|---|---|"]
    for name, origin in ORIGINS.items():
        known = getattr(Keys("q"), name)
        key = known if isinstance(known, str) else known("<lane>" if name in EACH_LANE else "…")
        rows.append(f"| `{key.removeprefix('{q}:')}` | {origin.truth or '—'} | {origin.lost} | {origin.left or '—'} |")
    told = PAGE.read_text("utf-8").partition("<!-- keys -->\n")[2].partition("<!-- /keys -->")[0]
    assert told == "\n".join([*rows, ""])
