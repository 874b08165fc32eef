"""The output of an interrupted run: where it is cut, and which run may go on from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamfleet.common.protocol import CHAT, COMPLETIONS, Lane
from streamfleet.worker.engine import partial
from streamfleet.worker.engine.base import EngineRequest, Partial


def decode(ids: Sequence[int]) -> str:
    """Text of tokens that are bytes, so that most characters end inside of a token's neighbour."""
    return bytes(ids).decode("utf-8", "replace")


def request(**body: Any) -> EngineRequest:
    return EngineRequest("r-1", CHAT, {"messages": [], **body}, Lane.LOW)


def cut(said: bytes, stops: Sequence[str] = (), text: str | None = None) -> bytes:
    """The kept part of these bytes."""
    given = said.decode("utf-8", "ignore") if text is None else text
    return said[: partial.cut(list(said), given, decode, stops)]


WORLD = "🌍".encode()


@pytest.mark.parametrize("inside", range(4))
def test_the_cut_is_where_a_character_ends(inside: int) -> None:
    assert cut(b"ok " + WORLD + WORLD[:inside]) == b"ok " + WORLD
    assert cut(b"ok" + WORLD[:inside], text="ok\ufffd") == b"ok"


@pytest.mark.parametrize(
    ("said", "stops", "kept"),
    [
        (b"one\nUse", ("\nUser:",), b"one"),
        (b"one User", ("User:", "User"), b"one "),
        (b"aab", ("aabc", "bd"), b""),
        (b"aa", ("aaa",), b""),
        (b"done.", ("?",), b"done."),
        (b"ab", ("ab",), b"ab"),  # whole: among the first `min_tokens`, where it ends nothing
    ],
)
def test_the_cut_is_before_what_may_be_a_stop_string(said: bytes, stops: Sequence[str], kept: bytes) -> None:
    assert cut(said, stops) == kept


def test_nothing_is_kept_beyond_the_text() -> None:
    assert cut(b"one two", text="one ") == b"one "
    assert cut(b"one two", text="One") == b""


def test_the_search_for_a_cut_ends() -> None:
    asked: list[int] = []

    def incomplete(ids: Sequence[int]) -> str:
        asked.append(len(ids))
        return "\ufffd"

    assert partial.cut([0] * 5000, "", incomplete, ()) == 0
    assert len(asked) < 50


@given(st.text(max_size=40), st.integers(0, 200), st.lists(st.text(min_size=1, max_size=6), max_size=3))
@example("🌍🎉日本語é", 5, ["日本"])
def test_a_cut_is_complete_and_no_shorter_than_it_must_be(said: str, at: int, stops: list[str]) -> None:
    ids = said.encode("utf-8", "ignore")[:at]
    text = ids.decode("utf-8", "ignore")
    kept = cut(ids, stops).decode()  # strictly: it ends with a whole character
    assert text.startswith(kept)
    begun = [stop[:n] for stop in stops for n in range(1, len(stop))]
    assert not kept.endswith(tuple(begun))
    for longer in range(len(kept) + 1, len(text) + 1):
        assert text[:longer].endswith((*begun, "\ufffd")) or len(text[longer:].encode()) > 24


def test_the_same_request_goes_on_and_no_other() -> None:
    one = partial.identity("vllm", "m", request(temperature=0, stop=["x"]))
    packed = partial.pack(one, 3, ids=[1, 2, 3])
    assert packed is not None
    assert packed.tokens == 3
    found = partial.unpack(packed, partial.identity("vllm", "m", request(stop=["x"], temperature=0)))
    assert found is not None
    assert found["ids"] == [1, 2, 3]
    others = [
        partial.identity("simulated", "m", request(temperature=0, stop=["x"])),
        partial.identity("vllm", "adapter", request(temperature=0, stop=["x"])),
        partial.identity("vllm", "m", request(temperature=1, stop=["x"])),
        partial.identity("vllm", "m", replace(request(temperature=0, stop=["x"]), endpoint=COMPLETIONS)),
        {**one, "format": partial.FORMAT + 1},
    ]
    assert [partial.unpack(packed, other) for other in others] == [None] * 5


def test_the_lane_and_the_id_do_not_matter() -> None:
    again = EngineRequest("r-2", CHAT, request().body, Lane.HIGH, 5)
    assert partial.identity("vllm", "m", request()) == partial.identity("vllm", "m", again)


def test_nothing_and_too_much_is_not_kept() -> None:
    own = partial.identity("vllm", "m", request())
    assert partial.pack(own, 0, ids=[]) is None
    assert partial.pack(own, 500_000, ids=[10_000] * 500_000) is None
    largest = Partial(1, json.dumps({**own, "ids": [1] * 500_000}).encode())
    assert partial.unpack(largest, own) is None


@given(st.one_of(st.binary(), st.text().map(str.encode), st.just(b"[" * 100_000), st.just(b"[]")))
def test_a_state_of_any_kind_is_read(state: bytes) -> None:
    own = partial.identity("vllm", "m", request())
    assert partial.unpack(Partial(1, state), own) is None


def test_no_state_is_none() -> None:
    assert partial.unpack(None, partial.identity("vllm", "m", request())) is None
