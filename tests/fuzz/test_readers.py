"""Readers of results, dead letters and workers say what they can of anything that stands in Redis, and go on."""

from __future__ import annotations

import json
import random
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from streamfleet.cli.requests.show import result_json
from streamfleet.common import replies
from streamfleet.common.broker.types import Claim, Lease
from streamfleet.common.protocol import LANES, Status
from streamfleet.common.results import decode_result
from streamfleet.operator.broker.audit import Audit, LaneAudit, Sample, lane_audit
from streamfleet.operator.commands import backlog_view, dead_view, workers_view
from streamfleet.operator.dead_letters import NotRequeued, read_letter, requeued_entry
from streamfleet.operator.fleet import worker_views
from streamfleet.operator.json_view import queue_object
from streamfleet.operator.snapshot import Snapshot, lane_views
from streamfleet.producer.status import ended_view
from tests.fuzz import garbage
from tests.fuzz import strategies as some
from tests.fuzz.budget import examples

RESULT_FIELDS = tuple(
    b"status response error http_status finish_reason usage worker attempt queued_ms total_ms lane entry".split()
)
hashes = st.dictionaries(
    st.sampled_from(RESULT_FIELDS) | some.raw, some.raw | some.raw_bodies | some.engine_replies, max_size=12
)
LETTER_FIELDS = (b"_id", b"_status", b"_error", b"_entry", b"_attempts", b"_workers", b"_truncated", b"body", b"ttl")
letters = st.one_of(
    st.dictionaries(st.sampled_from(LETTER_FIELDS) | some.raw, some.raw | some.engine_replies, max_size=12),
    some.seeds.map(lambda seed: letter_of(random.Random(seed))),
)


def letter_of(chance: random.Random) -> dict[bytes, bytes]:
    """The fields of a dead letter that somebody made up."""
    flat = garbage.letter(chance, b"x")
    return dict(zip(flat[::2], flat[1::2], strict=True))


def shown(renderable: Any) -> str:
    """As a terminal gets it, which must not get anything to obey."""
    out = StringIO()
    Console(file=out, width=100, color_system=None).print(renderable)
    text = out.getvalue()
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\r"}, text
    return text


@given(hashes, st.sampled_from([b"succeeded", b"failed", b"cancelled", b"odd", b"\xff", b""]))
@examples(300)
def test_any_hash_is_a_result(fields: dict[bytes, bytes], status: bytes) -> None:
    result = decode_result("x", {**fields, b"status": status})
    assert result is not None
    assert result.status is (
        Status(status.decode()) if status.decode(errors="replace") in set(Status) else Status.FAILED
    )
    assert isinstance(result.text, str)
    assert ended_view(result).ended
    json.dumps(result_json(result))
    assert decode_result("x", {name: value for name, value in fields.items() if name != b"status"}) is None


@given(letters, st.integers(0, 2**63))
@examples(300)
def test_any_dead_letter_is_listed_shown_and_requeued_or_not(fields: dict[bytes, bytes], now_ms: int) -> None:
    letter = read_letter("5-5", fields)
    shown(dead_view.table([letter], now_ms))
    assert not set(dead_view.page(letter)) & {"\x1b", "\x07", "\x9b"}
    json.dumps(dead_view.as_json_value(letter, now_ms)).encode()
    try:
        entry = requeued_entry(letter, now_ms)
    except NotRequeued:
        return
    assert entry.lane in LANES
    assert len(entry.fields) % 2 == 0


@given(
    st.dictionaries(some.raw, some.descriptions, max_size=4), st.dictionaries(some.raw, st.integers(1, 9), max_size=2)
)
@examples(300)
def test_any_workers_are_shown(described: dict[bytes, bytes], holding: dict[bytes, int]) -> None:
    held = {replies.consumer_name(name): {"high": count} for name, count in holding.items()}
    known = {replies.consumer_name(name): replies.description(text) for name, text in described.items()}
    views = worker_views(known, held, some.NOW_MS)
    assert len(views) == len({*known, *held})
    audit = Audit({}, 0, 0, 0, [LaneAudit(LANES[0], 0, 0, 0, 0, None, None)])
    lanes = lane_views(audit, Sample(some.NOW_MS, known), 300_000)
    snapshot = Snapshot("q", some.NOW_MS, lanes, views, 0, 0, 0, {})
    shown(backlog_view.render(snapshot, None))
    shown(workers_view.render(views))
    json.dumps(queue_object(snapshot, None), ensure_ascii=False, allow_nan=False).encode()


@given(st.lists(st.tuples(some.raw, some.raw), max_size=5), some.raw)
@examples(200)
def test_raw_replies_are_read(pairs: list[tuple[bytes, bytes]], name: bytes) -> None:
    flat = [part for pair in pairs for part in pair]
    assert replies.mapping(flat) == dict(pairs)
    assert replies.entries([[b"1-1", flat], [b"2-2", None]]) == [("1-1", dict(pairs)), ("2-2", {})]
    assert replies.entries(None) == []
    assert replies.streams(None) == []
    assert replies.streams([[b"key", [[b"1-1", flat]]]]) == [("key", [("1-1", dict(pairs))])]
    assert replies.pending_row([b"1-1", name, 5, 2])[2:] == (5, 2)
    assert replies.first_score([b"m", b"1e+300"]) == replies.first_score([b"m", b"inf"]) == 9 * 10**15
    assert replies.first_score([b"m", b"-inf"]) == -9 * 10**15
    assert replies.number(b"9" * 5_000) == 0
    claim = Claim(Lease(LANES[0], "1-1", 1, "x"), dict(pairs) | {b"reply": name})
    assert len(claim.reply) <= 256


@given(st.dictionaries(st.text(max_size=5) | st.sampled_from([*Status, "staged"]), st.integers()), st.integers(-1, 5))
@examples(100)
def test_any_counts_are_audited(counts: dict[str, int], undelivered: int) -> None:
    lane = lane_audit(LANES[0], [3, 1, 1, 0, undelivered, undelivered])
    audit = Audit(counts, 0, 0, 0, [lane])
    assert audit.line().startswith(f"accepted={audit.accepted}")
    assert isinstance(audit.problems(), list)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"seen_ms":NaN}', b'{"seen_ms":1e999}', b'{"seen_ms":' + b"9" * 400 + b"}"]
)
def test_a_description_from_hell(text: bytes) -> None:
    (view,) = worker_views({"w": replies.description(text)}, {}, some.NOW_MS)
    assert view.silent_s is None
