"""Events that a reader gets from the entries of one request's tokens."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Status
from streamfleet.common.results import decode_result
from streamfleet.producer.events import Chunk, Event, Missed, Restarted, text_of
from streamfleet.producer.follower import (
    MOST_SEQ,
    Ending,
    Follower,
    Newest,
    ending_of,
    newest_run,
    place_of,
)


def group(attempt: int, run: str, seq: int, *texts: str) -> dict[bytes, bytes]:
    """Chunks of one word each."""
    chunks = [json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]
    fields = {"attempt": str(attempt), "run": run, "seq": str(seq), "chunks": "\n".join(chunks)}
    return {name.encode(): value.encode() for name, value in fields.items()}


def resumed(attempt: int, run: str, seq: int, *texts: str) -> dict[bytes, bytes]:
    """A group of a run that goes on with an earlier one."""
    return {**group(attempt, run, seq, *texts), b"resumed": b"2"}


def read(follower: Follower, *entries: dict[bytes, bytes], first: int = 1) -> list[Event]:
    """Returns the events from entries at the stream ids 1-0, 2-0, …."""
    return [event for at, fields in enumerate(entries, first) for event in follower.read(f"{at}-0", fields)]


def words(events: list[Event]) -> list[Any]:
    """Chunks by their text."""
    return [event.text if isinstance(event, Chunk) else event for event in events]


def test_chunks_come_in_order_each_with_its_place() -> None:
    events = read(Follower(), group(1, "a", 0, "x", "y"), group(1, "a", 2, "z"))
    assert [(event.id, event.text, event.attempt) for event in events if isinstance(event, Chunk)] == [
        ("1-0/0", "x", 1),
        ("1-0/1", "y", 1),
        ("2-0/0", "z", 1),
    ]


def test_another_run_is_a_restart() -> None:
    events = read(Follower(), group(1, "a", 0, "x"), group(2, "b", 0, "y"), group(2, "c", 0, "z"))
    assert words(events) == ["x", Restarted(2), "y", Restarted(2), "z"]


@pytest.mark.parametrize("told", ["x", "xy", "z"])
def test_a_response_that_goes_on_is_a_restart_all_the_same(told: str) -> None:
    """Its events have numbers and ids of their own run, also where the text is the same."""

    def events(attempt: int, *texts: str) -> dict[bytes, bytes]:
        said = [
            {"type": "response.created"},
            *({"type": "response.output_text.delta", "delta": text} for text in texts),
        ]
        chunks = "\n".join(map(json.dumps, said)).encode()
        return {**group(attempt, str(attempt), 0), b"chunks": chunks, **({b"resumed": b"1"} if attempt > 1 else {})}

    assert words(read(Follower(), events(1, "x", "y"), events(2, told, "u"))) == [
        *("", "x", "y"),
        *(Restarted(2), "", told, "u"),
    ]


def test_a_run_that_goes_on_is_no_restart() -> None:
    events = read(
        Follower(), group(1, "a", 0, "", "x", "y"), resumed(1, "b", 0, "", "xyz", "u"), resumed(1, "b", 3, "v")
    )
    assert words(events) == ["", "x", "y", "z", "u", "v"]
    assert [event.id for event in events if isinstance(event, Chunk)][3:] == ["2-0/1", "2-0/2", "3-0/0"]
    assert json.loads(events[3].raw) == events[3].data  # type: ignore[union-attr]


def test_a_reader_that_goes_on_has_lost_nothing_of_what_was_handed_over_directly() -> None:
    follower = Follower()
    assert words(read(follower, group(1, "a", 0, "x"))) == ["x"]
    assert follower.goes_on(group(1, "a", 1, "y")) is not None
    assert words(read(follower, resumed(2, "b", 0, "x"), first=3)) == []
    assert follower.goes_on(resumed(2, "b", 1, "y", "z")) is None, "only a part of it is new"
    assert words(read(follower, resumed(2, "b", 1, "y", "z"), first=4)) == ["z"]
    assert follower.goes_on(resumed(2, "b", 3, "u")) is not None


def test_a_run_is_interrupted_before_it_told_what_the_reader_has() -> None:
    events = read(Follower(), group(1, "a", 0, "xy"), resumed(1, "b", 0, "x"), resumed(1, "c", 0, "xyz"))
    assert words(events) == ["xy", "z"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param([resumed(2, "b", 0, "x", "z", "u")], ["x", "z", "u"], id="it tells something else"),
        pytest.param([resumed(2, "b", 1, "y")], [Missed(1, 2), "y"], id="its beginning is missing"),
        pytest.param([group(2, "b", 0, "xyz")], ["xyz"], id="it does not say that it goes on"),
    ],
)
def test_a_run_that_goes_on_with_something_else_is_a_restart(
    told: list[dict[bytes, bytes]], expected: list[Any]
) -> None:
    assert words(read(Follower(), group(1, "a", 0, "x", "y"), *told)) == ["x", "y", Restarted(2), *expected]


def test_after_a_restart_the_text_of_the_new_run_counts() -> None:
    later = [resumed(2, "b", 0, "x", "z"), resumed(2, "c", 0, "xz", "u")]
    assert words(read(Follower(), group(1, "a", 0, "x", "y"), *later)) == ["x", "y", Restarted(2), "x", "z", "u"]


def test_after_a_gap_at_its_beginning_the_next_run_is_a_restart_too() -> None:
    later = [resumed(2, "b", 0, "x"), resumed(2, "b", 5, "w"), resumed(2, "c", 0, "xyzw")]
    events = words(read(Follower(), group(1, "a", 0, "xyz"), *later))
    assert events == ["xyz", Restarted(2), "x", Missed(4, 2), "w", Restarted(2), "xyzw"]


@pytest.mark.parametrize(
    "more",
    [{"logprobs": {"content": [1]}}, {"token_ids": [1]}, {"delta": {"content": "xyz", "reasoning": "r"}}],
    ids=["logprobs", "token_ids", "reasoning"],
)
def test_what_belongs_to_the_tokens_is_not_told_twice(more: dict[str, Any]) -> None:
    choice = {"index": 0, "delta": {"content": "xyz"}, **more}
    cut = {**resumed(2, "b", 0), b"chunks": json.dumps({"choices": [choice]}).encode()}
    assert words(read(Follower(), group(1, "a", 0, "xy"), cut)) == ["xy", Restarted(2), "xyz"]


def test_an_answer_that_ends_before_what_the_reader_has_is_a_restart() -> None:
    follower = Follower()
    assert words(read(follower, group(1, "a", 0, "xyz"), resumed(2, "b", 0, "xy"))) == ["xyz"]
    assert words(follower.end(Ending(Status.SUCCEEDED, 2, 1))) == [Restarted(2), "xy"]


@pytest.mark.parametrize(("status", "told"), [(Status.SUCCEEDED, [Restarted(2), "xy"]), (Status.FAILED, [])])
def test_an_end_that_tells_nothing_more_gives_out_what_was_held(status: Status, told: list[Any]) -> None:
    follower = Follower()
    read(follower, group(1, "a", 0, "xyz"), resumed(2, "b", 0, "xy"))
    assert words(follower.end(Ending(status))) == told


def test_chunks_of_a_run_that_goes_on_may_be_odd() -> None:
    odd = b'{"choices": 5}\n{"choices": [5]}\n{"choices": [{"index": 0, "text": 5}]}'
    follower = Follower()
    assert words(read(follower, group(1, "a", 0, "x"), {**resumed(2, "b", 0), b"chunks": odd})) == ["x"]
    assert words(read(follower, resumed(2, "b", 3, "xy"), first=3)) == ["y"]


def test_a_reader_keeps_little_of_a_long_answer() -> None:
    follower = Follower()
    read(follower, group(1, "a", 0, "x"))
    tracemalloc.start()
    try:
        for seq in range(1, 1_000):
            assert follower.goes_on(group(1, "a", seq, "x" * 1_000)) is not None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


def test_a_reader_that_came_back_gets_a_restart() -> None:
    """It has text that is not known here."""
    events = read(Follower(place_of("1-0/0")), group(1, "a", 0, "x", "y"), resumed(2, "b", 0, "xy", "z"))
    assert words(events) == ["y", Restarted(2), "xy", "z"]


def test_what_a_worker_without_its_lease_adds_is_passed_over() -> None:
    late = group(1, "a", 1, "old")
    events = read(Follower(), group(1, "a", 0, "x"), group(2, "b", 0, "y"), late, group(2, "b", 1, "z"))
    assert words(events) == ["x", Restarted(2), "y", "z"]


def test_an_earlier_attempt_that_was_never_seen_is_passed_over_too() -> None:
    events = read(Follower(), group(2, "b", 0, "y"), group(1, "a", 0, "old"), group(2, "b", 1, "z"))
    assert words(events) == ["y", "z"]


def test_a_run_that_another_one_followed_never_comes_back() -> None:
    """Handed back, and so of the same attempt."""
    events = read(Follower(), group(1, "a", 0, "x"), group(1, "b", 0, "y"), group(1, "a", 1, "old"))
    assert words(events) == ["x", Restarted(1), "y"]


def test_a_group_that_was_added_twice_counts_once() -> None:
    events = read(Follower(), group(1, "a", 0, "x"), group(1, "a", 0, "x"), group(1, "a", 0, "x", "y"))
    assert words(events) == ["x", "y"]


def test_gaps_are_told() -> None:
    events = read(Follower(), group(1, "a", 2, "x"), group(1, "a", 5, "y"))
    assert words(events) == [Missed(2, 1), "x", Missed(2, 1), "y"]


def test_a_reader_that_comes_late_is_given_the_run_that_counts() -> None:
    entries = [group(1, "a", 0, "x"), group(2, "b", 0, "y"), group(1, "a", 1, "old")]
    tail = [(f"{at}-0", fields) for at, fields in reversed([*enumerate(entries, 1)])]
    newest = newest_run(tail)
    assert newest == Newest(b"b", "3-0")
    assert words(read(Follower(newest=newest), *entries, group(2, "b", 1, "z"))) == ["y", "z"]


def test_beyond_what_a_late_reader_saw_every_run_counts() -> None:
    """The run that it was to begin with may have been trimmed meanwhile."""
    follower = Follower(newest=Newest(b"b", "3-0"))
    assert words(read(follower, group(2, "c", 0, "z"), first=4)) == ["z"]


def test_nothing_counts_after_the_end() -> None:
    follower = Follower()
    events = read(follower, group(1, "a", 0, "x"), {b"end": b"failed"}, group(1, "a", 1, "y"), {b"end": b"dead"})
    assert words(events) == ["x"]
    assert follower.ending == Ending("failed")


@pytest.mark.parametrize(
    ("attempt", "chunks", "expected"),
    [(1, 2, []), (1, 5, [Missed(3, 1)]), (2, 3, [Restarted(2), Missed(3, 2)]), (2, 0, [])],
    ids=["all", "a gap at the end", "nothing of the attempt that counts", "without chunks"],
)
def test_the_end_tells_what_is_missing(attempt: int, chunks: int, expected: list[Event]) -> None:
    end = {b"end": b"succeeded", b"attempt": b"%d" % attempt, b"chunks": b"%d" % chunks}
    assert words(read(Follower(), group(1, "a", 0, "x", "y"), end)) == ["x", "y", *expected]


def test_of_a_request_that_failed_nothing_is_missing() -> None:
    end = {b"end": b"failed", b"attempt": b"1", b"chunks": b"9"}
    assert words(read(Follower(), group(1, "a", 0, "x"), end)) == ["x"]


def test_a_result_says_the_same_as_the_end() -> None:
    fields = {b"status": b"succeeded", b"attempt": b"2", b"streamed": b"7"}
    result = decode_result("r", fields)
    assert result is not None
    assert ending_of(result) == Ending(Status.SUCCEEDED, 2, 7)
    plain = decode_result("r", {b"status": b"succeeded"})
    assert plain is not None
    assert ending_of(plain).chunks is None


TEXTS = [["a", "b"], ["c"], ["d", "e", "f"]]


@given(st.integers(0, 5))
def test_whoever_goes_on_behind_a_chunk_misses_nothing_and_gets_nothing_twice(had: int) -> None:
    seqs = (0, 2, 3)
    entries = [group(1, "a", seq, *texts) for seq, texts in zip(seqs, TEXTS, strict=True)]
    whole = read(Follower(), *entries)
    last = whole[had]
    assert isinstance(last, Chunk)
    place = place_of(last.id)
    assert place.before < place.stream_id
    rest = [entry for at, entry in enumerate(entries, 1) if f"{at}-0" > place.before]
    events = read(Follower(place), *rest, first=len(entries) - len(rest) + 1)
    assert events == whole[had + 1 :]


def test_whoever_goes_on_is_told_of_a_restart() -> None:
    follower = Follower(place_of("1-0/0"))
    assert words(read(follower, group(1, "a", 0, "x", "y"), group(2, "b", 0, "z"))) == ["y", Restarted(2), "z"]


def test_a_place_that_is_not_kept_any_more_is_a_new_beginning() -> None:
    assert words(read(Follower(place_of("1-0/0")), group(1, "a", 4, "y"), first=3)) == [Restarted(1), Missed(4, 1), "y"]


@pytest.mark.parametrize("had", [1, 2, 3])
def test_whoever_has_a_number_of_chunks_goes_on_behind_those_of_the_first_run(had: int) -> None:
    entries = [group(1, "a", 0, "x", "y"), group(1, "a", 2, "z", "u"), group(2, "b", 0, "v")]
    assert words(read(Follower(had), *entries)) == [*"xyzu"[had:], Restarted(2), "v"]


@pytest.mark.parametrize(
    ("entries", "newest", "told"),
    [
        ([group(2, "b", 0, "x", "y")], Newest(), [Restarted(2), "x", "y"]),
        ([group(1, "a", 1, "y")], Newest(), [Restarted(1), Missed(1, 1), "y"]),
        ([{b"requeued": b"1-0"}, group(1, "a", 0, "x", "y")], Newest(), [Restarted(1), "x", "y"]),
        ([group(1, "a", 0, "x", "y"), group(1, "b", 0, "z")], Newest(b"b", "2-0"), [Restarted(1), "z"]),
        ([{b"end": b"succeeded", b"attempt": b"1", b"chunks": b"2"}], Newest(), [Restarted(1), Missed(2, 1)]),
        ([{b"end": b"succeeded"}], Newest(), []),
    ],
    ids=["another run", "no beginning", "another life", "two runs", "nothing", "never streamed"],
)
def test_a_number_of_chunks_that_may_be_of_another_run_is_a_restart(
    entries: list[dict[bytes, bytes]], newest: Newest, told: list[Any]
) -> None:
    assert words(read(Follower(1, newest), *entries)) == told


@pytest.mark.parametrize(
    ("chunk_id", "before"), [("5-3/0", "5-2"), ("5-0/2", f"4-{MOST_SEQ}"), ("0-1/0", "0-0"), ("0-0/0", "0-0")]
)
def test_one_reads_on_from_before_the_entry(chunk_id: str, before: str) -> None:
    assert place_of(chunk_id).before == before


@pytest.mark.parametrize("odd", ["", "5-0", "x/0", "5-0/x", "5-0/-1", "5/0", 7, None, "5-0/0\n"])
def test_what_is_no_id_of_a_chunk_is_refused(odd: object) -> None:
    with pytest.raises(InvalidRequest, match="after: must be the id of a chunk"):
        place_of(odd)


SOME_GROUPS = st.lists(
    st.tuples(
        st.integers(1, 2), st.sampled_from("ab"), st.integers(0, 4), st.lists(st.sampled_from("xyz"), max_size=2)
    ),
    max_size=12,
)


@given(SOME_GROUPS, st.integers(0, 12))
def test_what_simply_goes_on_is_read_all_the_same(groups: list[tuple[int, str, int, list[str]]], end_at: int) -> None:
    """Entries that `goes_on` takes, always whole ones, are those that `read` would have told as chunks alone."""
    entries = [group(attempt, run, seq, *texts) for attempt, run, seq, texts in groups]
    entries.insert(end_at, {b"end": b"succeeded"})
    reference, mixed = Follower(), Follower()
    for at, fields in enumerate(entries, 1):
        told = reference.read(f"{at}-0", fields)
        chunks = mixed.goes_on(fields)
        if chunks is None:
            assert mixed.read(f"{at}-0", fields) == told
        else:
            assert [event.raw for event in told if isinstance(event, Chunk)] == chunks
            assert len(told) == len(chunks)


def test_the_next_group_of_a_run_goes_on_and_no_other_does() -> None:
    follower = Follower()
    assert follower.goes_on(group(1, "a", 0, "x")) is None  # nothing was read that it could go on
    read(follower, group(1, "a", 0, "x"))
    for other in (group(1, "a", 0, "x"), group(1, "a", 2, "z"), group(1, "b", 1, "y"), group(2, "a", 1, "y")):
        assert follower.goes_on(other) is None
    assert follower.goes_on({**group(1, "a", 1, "y"), b"chunks": b"{oops"}) is None
    assert len(follower.goes_on(group(1, "a", 1, "y")) or ()) == 1
    read(follower, {b"end": b"succeeded"})
    assert follower.goes_on(group(1, "a", 2, "z")) is None


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {b"x": b"y"},
        {b"attempt": b"1", b"run": b"a", b"seq": b"-1", b"chunks": b"{}"},
        {b"attempt": b"1", b"run": b"", b"seq": b"0", b"chunks": b"{}"},
        {b"attempt": b"\xff", b"run": b"a", b"seq": b"0", b"chunks": b"{}"},
        {b"attempt": b"1", b"run": b"a", b"seq": b"0"},
    ],
    ids=["empty", "others", "negative", "no run", "no number", "no chunks"],
)
def test_entries_of_others_are_passed_over(odd: dict[bytes, bytes]) -> None:
    assert words(read(Follower(), group(1, "a", 0, "x"), odd, group(1, "a", 1, "y"))) == ["x", "y"]


def test_a_chunk_that_cannot_be_read_is_passed_over() -> None:
    fields = group(1, "a", 0, "x")
    fields[b"chunks"] += b"\n{oops\n7\n\xff\n" + fields[b"chunks"]
    assert words(read(Follower(), fields)) == ["x", "x"]


@given(st.dictionaries(st.sampled_from([b"attempt", b"run", b"seq", b"chunks", b"end"]), st.binary(max_size=12)))
def test_whatever_stands_there_never_raises(fields: dict[bytes, bytes]) -> None:
    follower = Follower()
    follower.goes_on(fields)
    follower.read("1-0", fields)
    follower.goes_on(fields)
    newest_run([("1-0", fields)])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"choices": [{"index": 0, "text": "a"}]}, "a"),
        ({"choices": [{"index": 1, "delta": {"content": "b"}}]}, ""),
        ({"choices": [{"delta": {"content": None}}]}, ""),
        ({"choices": []}, ""),
        ({"choices": "x"}, ""),
        ({"choices": [7]}, ""),
        ({}, ""),
    ],
)
def test_the_text_is_what_the_first_choice_gets(data: dict[str, Any], text: str) -> None:
    assert text_of(data) == text
