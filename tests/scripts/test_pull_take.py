"""pull.lua, third part: what is taken, in which order, and what is dropped because it must not run."""

from __future__ import annotations

import json

import pytest

from streamfleet.common.broker.types import Retry, Role
from streamfleet.common.connection import Connection
from streamfleet.common.errors import NotPermitted
from tests.scripts.harness import BODY, BODY_DIGEST, ERROR, NOW, Queue, entry, ids
from tests.scripts.keyspace import beside_tenants, changed, id_key
from tests.scripts.mutants import fails_without


async def test_a_claim_is_pending_under_its_worker_and_nowhere_else(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", reply="me")
    pulled = await queue.pull()
    (claim,) = pulled.claims
    assert (claim.lease.lane, claim.lease.stream_id, claim.lease.attempt, claim.lease.request_id) == (
        "high",
        "1000-0",
        1,
        "r1",
    )
    assert claim.fields == {b"body": BODY.encode(), b"id": b"r1", b"reply": b"me"}
    assert (pulled.ready, pulled.role, pulled.now_ms, pulled.dropped) == (0, Role.NONE, NOW, 0)
    assert await queue.dump() == {
        "lane:high": {"entries": {"1000-0": entry(id="r1", reply="me")}, "pending": {"1000-0": ("w1", 1)}},
        "counts": {"staged": "1"},
    }


async def test_equal_deadlines_go_first_in_first_out_across_digit_lengths(queue: Queue) -> None:
    added = ["8-9", "9-0", "9-9", "9-10", "9-11", "9-100", "10-0", "11-2", "99-0", "100-0", "1000-0", "1000-1"]
    for stream_id in added:
        await queue.add("high", stream_id, deadline=NOW + 5)
    assert added == sorted(added, key=id_key)
    assert ids((await queue.pull("w1", len(added))).claims) == added


async def test_ids_that_collide_across_lanes_are_two_requests(queue: Queue) -> None:
    for lane in ("high", "low"):
        await queue.add(lane, "1000-0")
    claims = (await queue.pull("w1", 2)).claims
    assert [claim.lease.request_id for claim in claims] == ["high:1000-0", "low:1000-0"]
    high, low = (claim.lease for claim in claims)
    assert await queue.retry("w1", high, 50) == 1
    assert (await queue.dump())["tries"] == {"2|1000-0": "1"}
    assert await queue.complete("w1", low) == [1]
    after = await queue.dump()
    assert (after["tries"], after["delayed"]) == ({"2|1000-0": "1"}, [("2|1000-0", NOW + 50)])
    assert after["result:low:1000-0"]["status"] == "succeeded"
    assert "result:high:1000-0" not in after


@fails_without("unfit: a deadline in seconds is one before the year 2001", "read and read < 978307200000", "read")
async def test_a_deadline_after_2001_is_in_milliseconds(queue: Queue) -> None:
    await queue.at(1_790_000_000_000).add("high", "1789999999999-0", id="late", deadline=978_307_200_000)
    await queue.at(1_790_000_000_000).pull()
    error = json.loads((await queue.dump())["result:late"]["error"])["error"]
    assert error["message"] == "the deadline passed while the request was queued"


@fails_without("unfit: a deadline in seconds is told from one that passed", "read and read < 978307200000", "false")
async def test_an_expired_request_ends_at_the_pick(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="late", deadline=NOW, reply="me", tenant="t1", meta="m1")
    await queue.at(NOW - 1).pull(wanted=0)
    pulled = await queue.pull()
    assert (pulled.claims, pulled.dropped) == ([], 1)
    error = {
        "error": {
            "message": "the deadline passed while the request was queued: it was read as 1000000, before "
            "the year 2001: epoch milliseconds are meant, not seconds",
            "type": "timeout",
            "param": "deadline",
            "code": "deadline_exceeded",
        }
    }
    after = beside_tenants(await queue.dump())
    written = after["result:late"].pop("error")
    assert json.loads(written) == error
    letter = {"_id": "late", "_status": "expired", "_error": written, "_entry": "high:1000-0", "_attempts": "0"}
    assert after == {
        "result:late": {
            "status": "expired",
            "http_status": "504",
            "lane": "high",
            "entry": "high:1000-0",
            "attempt": "0",
            "enqueued_ms": "1000",
            "finished_ms": str(NOW),
            "tenant": "t1",
            "meta": "m1",
            "notified:me": "1",
        },
        "request:late": f"{BODY_DIGEST} high:1000-0 me",
        "dead": [letter | entry(id="late", deadline=NOW, reply="me", tenant="t1", meta="m1")],
        "reply:me": [{"id": "late", "status": "expired"}],
        "counts": {"staged": "1", "expired": "1"},
        "waiting": [("w1", 0)],
        "watch": [("w1", NOW + 7000)],
    }


@fails_without("take: drops are bounded", " and dropped < arg.n + 64 and", " and")
async def test_drops_of_one_call_are_bounded_and_the_rest_is_not_forgotten(queue: Queue) -> None:
    for number in range(300):
        await queue.add("high", f"1000-{number}", deadline=NOW - 1)
    while (await queue.at(NOW - 2).pull("w1", 0)).staged:
        pass
    await queue.command("ZADD", queue.keys.waiting, 0, "idle")
    pulled = await queue.pull("w1", 1)
    assert 64 < pulled.dropped < 200
    assert (pulled.ready, pulled.role) == (300 - pulled.dropped, Role.NONE)
    assert await queue.command("LLEN", queue.keys.wake_up("idle")) == 1


@fails_without("dead letter: cut short", "string.sub(fields[i + 1], 1, math.max(0, room))", "fields[i + 1]")
@fails_without("dead letter: names cut short", "string.sub(fields[i], 1, 256)", "fields[i]")
async def test_an_oversized_entry_fails_and_its_dead_letter_is_cut_short(queue: Queue) -> None:
    await queue.add_flat("high", "1000-0", "id", "big", "x" * 300, "y", "body", "b" * 3000, "meta", "m")
    pulled = await queue.pull()
    assert (pulled.claims, pulled.dropped) == ([], 1)
    after = await queue.dump()
    error = json.loads(after["result:big"]["error"])["error"]
    assert (error["param"], error["code"]) == ("body", "request_too_large")
    assert error["message"] == "the body of the request is 3315 bytes with its envelope; at most 2000 are allowed"
    assert after["counts"] == {"staged": "1", "failed": "1"}
    assert "lane:high" not in after
    (letter,) = after["dead"]
    # The rest of 2000 bytes after the id and the field before it; then nothing is left for meta.
    assert list(letter)[-6:] == [
        ("id", "big"),
        ("x" * 256, "y"),
        ("body", "b" * 1996),
        ("_truncated", "3000"),
        ("meta", ""),
        ("_truncated", "1"),
    ]


async def test_an_entry_of_the_largest_size_runs(queue: Queue) -> None:
    await queue.add("high", "1000-0", body="b" * 1996)
    await queue.add("high", "1000-1", body="b" * 1997)
    pulled = await queue.pull("w1", 2)
    assert (ids(pulled.claims), pulled.dropped) == (["1000-0"], 1)


@fails_without("dead letter: a bounded number of fields", "math.min(#fields, 512)", "#fields")
async def test_an_entry_of_many_fields_is_buried_all_the_same(queue: Queue) -> None:
    await queue.add_flat("high", "1000-0", *[part for i in range(5000) for part in (f"f{i}", "v")])
    assert (await queue.pull()).dropped == 1
    after = await queue.dump()
    assert after["result:high:1000-0"]["status"] == "failed"
    assert len(after["dead"][0]) == 5 + 256


@fails_without(
    "dead letter: others' fields cannot pass as ours", "string.sub(name, 1, 1) == '_' and '_' .. name or name", "name"
)
async def test_fields_of_others_cannot_pass_as_ours_in_a_dead_letter(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="mine", _id="yours", _status="succeeded", deadline=1)
    await queue.pull()
    (letter,) = map(dict, (await queue.dump())["dead"])
    assert (letter["_id"], letter["_status"]) == ("mine", "expired")
    assert (letter["__id"], letter["__status"]) == ("yours", "succeeded")


@fails_without("entry: names are printable", " and not string.find(text, '[^\\33-\\126]')", "", argument="a b")
@fails_without("entry: names are short", "#text <= cfg.name_chars", "true", argument="x" * 257)
@fails_without(
    "entry: names do not look like fallback names",
    "      and not string.find(text, '^%a+:%d+%-%d+$') then",
    " then",
    argument="high:1-1",
)
@pytest.mark.parametrize(
    "odd",
    ["", "a b", "x" * 257, "x" * 1_000_000, "é", "a\nb", "\0", b"\xff\xfe", "high:1-1", "A:0-0"],
    ids=lambda value: repr(value)[:20],
)
async def test_an_unusable_id_or_reply_is_none(queue: Queue, odd: str | bytes) -> None:
    queue = queue.with_limits(max_entry_bytes=10**7)
    await queue.add("high", "1000-0", id=odd, reply=odd, deadline=5)
    await queue.pull()
    after = await queue.dump()
    assert after["result:high:1000-0"]["status"] == "expired"
    assert set(after) == {"result:high:1000-0", "dead", "counts", "waiting", "watch"}


@pytest.mark.parametrize("odd", ["}:x", "{other}:result:y", "a:b", "*", "high:1-", "~", "x" * 256])
async def test_ids_that_look_like_keys_stay_within_the_queue(queue: Queue, odd: str) -> None:
    await queue.add("high", "1000-0", id=odd, reply=odd, deadline=5)
    await queue.pull()
    after = await queue.dump()
    assert after[f"result:{odd}"]["status"] == "expired"
    assert after[f"reply:{odd}"] == [{"id": odd, "status": "expired"}]


async def test_odd_bytes_reach_the_worker_as_they_are(queue: Queue) -> None:
    everything = bytes(range(256))
    await queue.add_flat("high", "1000-0", everything, everything, "", "")
    ((claim),) = (await queue.pull()).claims
    assert claim.fields == {everything: everything, b"": b""}


async def test_a_cancelled_request_is_dropped_at_the_pick_and_counted_as_cancelled(queue: Queue) -> None:
    await queue.broker.cancel("r1", before_ms=60_000)
    await queue.add("high", "1000-0", id="r1", reply="me")
    before = await queue.dump()
    assert (await queue.pull()).dropped == 1
    place = {"entry": "high:1000-0", "lane": "high", "enqueued_ms": "1000"}
    assert await queue.dump() == changed(
        before,
        {
            "lane:high": None,
            "result:r1": before["result:r1"] | place | {"notified:me": "1"},
            "request:r1": f"{BODY_DIGEST} high:1000-0 me",
            "reply:me": [{"id": "r1", "status": "cancelled"}],
            "counts": {"staged": "1", "cancelled": "1"},
            "waiting": [("w1", 0)],
            "watch": [("w1", NOW + 7000)],
        },
    )


@fails_without(
    "take: deleted entries are counted as vanished",
    "    if not row then\n      remove_entry(lane, id)\n      count('vanished')\n",
    "    if not row then\n",
)
async def test_entries_deleted_by_hand_are_counted_as_vanished(queue: Queue) -> None:
    for number in range(3):
        await queue.add("high", f"1000-{number}")
    await queue.pull("w1", 0)
    await queue.command("XDEL", queue.keys.lane("high"), "1000-0", "1000-2")
    pulled = await queue.pull("w1", 3)
    assert (ids(pulled.claims), pulled.dropped) == (["1000-1"], 2)
    after = await queue.dump()
    assert after["lane:high"] == {"entries": {"1000-1": entry()}, "pending": {"1000-1": ("w1", 1)}}
    assert after["counts"] == {"staged": "3", "vanished": "2"}
    assert "ready:high" not in after
    assert (await queue.broker.audit()).problems() == []


async def test_a_claim_says_how_many_of_its_attempts_were_lost_with_their_workers(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    await queue.add("high", "1000-1")
    for worker, lost in (("w1", True), ("w2", False), ("w3", True)):
        (claim,) = (await queue.pull(worker)).claims
        await queue.broker.retry_later(worker, [Retry(claim.lease, 0, ERROR, worker_lost=lost)], 9)
    claims = (await queue.pull("w4", 2)).claims
    assert [(claim.lease.attempt, claim.lost) for claim in claims] == [(4, 2), (1, 0)]


@fails_without("take: bytes are bounded", " and bytes < cfg.taken_bytes do", " do")
async def test_one_reply_carries_a_bounded_number_of_bytes(queue: Queue) -> None:
    queue = queue.with_limits(max_entry_bytes=10**6)
    for number in range(12):
        await queue.add("high", f"1000-{number}", body="b" * 900_000)
    while (await queue.pull("w1", 0)).staged:
        pass
    pulled = await queue.pull("w1", 12)
    assert 5 <= len(pulled.claims) <= 8
    assert (pulled.ready, pulled.role) == (12 - len(pulled.claims), Role.NONE)


async def test_a_notification_that_was_refused_is_told_at_the_next_try(queue: Queue, any_redis_url: str) -> None:
    """As the reply stream of a duplicate is while a cluster moves its slot: here a user may not add to streams."""
    await queue.broker.cancel("r1", before_ms=60_000)
    await queue.add("high", "1000-0", id="r1", reply="me")
    await queue.command("ACL", "SETUSER", "mute", "reset", "on", ">pw", "~*", "+@all", "-xadd")
    connection = Connection(any_redis_url.replace("redis://", "redis://mute:pw@"))
    try:
        with pytest.raises(NotPermitted):
            await Queue(connection, queue.limits).pull()
    finally:
        await connection.close()
        await queue.command("ACL", "DELUSER", "mute")
    assert "reply:me" not in await queue.dump()
    await queue.age("high", "1000-0", "w1")
    await queue.broker.reclaim(1_000, 3)
    assert (await queue.dump())["reply:me"] == [{"id": "r1", "status": "cancelled"}]


@pytest.mark.parametrize(
    "odd", ["W99999999999999999999999-A0", "T18446744073709551616-A0", "A1-W99999999999999999999999"]
)
async def test_a_number_too_large_for_a_stream_id_spoils_nothing(queue: Queue, odd: str) -> None:
    await queue.add("high", "1000-0")
    await queue.command("ZADD", queue.keys.ready("high"), 0, odd)
    assert ids((await queue.pull(wanted=2)).claims) == ["1000-0"]
    assert "ready:high" not in await queue.dump()


@fails_without("take: fields are those of its lane", "arrived[lane]", "arrived[1]")
async def test_entries_with_one_stream_id_in_two_lanes_keep_their_own_fields(queue: Queue) -> None:
    for lane in ("high", "low"):
        await queue.add(lane, "1000-0", id=f"in-{lane}", body=lane)
    claims = (await queue.pull("w1", 2)).claims  # staged and taken in one call
    assert [(claim.lease.request_id, claim.fields[b"body"]) for claim in claims] == [
        ("in-high", b"high"),
        ("in-low", b"low"),
    ]
