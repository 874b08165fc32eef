"""expire.lua: what is too late ends when it is too late, however full the engines are."""

from __future__ import annotations

import json

import pytest

from streamfleet.common.broker.housekeeping import ExpiryScan
from streamfleet.common.broker.types import Role
from tests.scripts.harness import BODY_DIGEST, NOW, PATIENCE, Queue, entry
from tests.scripts.keyspace import beside_tenants, changed
from tests.scripts.mutants import fails_without
from tests.scripts.test_affinity import meet, pull


async def staged(queue: Queue, **fields: object) -> None:
    await queue.add("high", "1000-0", **fields)
    await queue.pull(wanted=0)


async def test_a_queued_request_ends_when_its_deadline_passes(queue: Queue) -> None:
    await staged(queue, id="r1", deadline=NOW + 10, reply="me", tenant="t1")
    before = await queue.dump()
    assert (await queue.at(NOW + 9).broker.expire())[0] == 0
    assert await queue.dump() == before
    assert (await queue.at(NOW + 10).broker.expire())[0] == 1
    after = beside_tenants(await queue.dump())
    error = after["result:r1"].pop("error")
    assert json.loads(error)["error"]["code"] == "deadline_exceeded"
    assert after == changed(
        beside_tenants(before),
        {
            "lane:high": None,
            "ready:high": None,
            "result:r1": {
                "status": "expired",
                "http_status": "504",
                "lane": "high",
                "entry": "high:1000-0",
                "attempt": "0",
                "enqueued_ms": "1000",
                "finished_ms": str(NOW + 10),
                "tenant": "t1",
                "notified:me": "1",
            },
            "request:r1": f"{BODY_DIGEST} high:1000-0 me",
            "reply:me": [{"id": "r1", "status": "expired"}],
            "dead": [
                {"_id": "r1", "_status": "expired", "_error": error, "_entry": "high:1000-0", "_attempts": "0"}
                | entry(id="r1", deadline=NOW + 10, reply="me", tenant="t1")
            ],
            "counts": {"staged": "1", "expired": "1"},
        },
    )


@fails_without("expire: attempts are told", "attempts_in(attempts_record(lane, id))", "0")
async def test_attempts_so_far_are_told_and_forgotten(queue: Queue) -> None:
    await queue.retry("w1", await queue.running("high", "1000-0", deadline=NOW + 10))
    assert (await queue.at(NOW + 10).broker.expire())[0] == 1
    after = await queue.dump()
    assert (after["dead"][0]["_attempts"], "tries" in after) == ("1", False)


@fails_without(
    "expire: the backlog is not read again and again",
    "return enqueued_ms(lane, id) + cfg.patience_ms == tonumber(rank)",
    "return false",
)
async def test_what_has_no_deadline_is_not_read(queue: Queue) -> None:
    await staged(queue)
    await queue.command("CONFIG", "RESETSTAT")
    assert (await queue.at(NOW + PATIENCE).broker.expire())[0] == 0
    assert b"cmdstat_xrange" not in await queue.command("INFO", "commandstats")


@fails_without("rank: only what has no deadline ranks by the default one")
@pytest.mark.parametrize("tenant", ["", "t1"])
async def test_a_request_with_a_deadline_of_just_the_patience_ends(queue: Queue, tenant: str) -> None:
    await queue.add("high", "1000-0", ttl=PATIENCE, tenant=tenant)
    await queue.at(1_000).pull("w1", 0)
    ended, seen = await queue.at(1_000 + PATIENCE).broker.expire()
    assert ended == 0
    assert (await queue.at(1_001 + PATIENCE).broker.expire(seen))[0] == 1


@fails_without("expire: endings of one call are bounded", ".copied_bytes or endings >= most then", ".copied_bytes then")
@fails_without("expire: bytes are bounded", "if bytes >= cfg.copied_bytes or endings >= most", "if endings >= most")
async def test_one_call_is_bounded_in_entries_and_bytes(queue: Queue) -> None:
    queue = queue.with_limits(max_entry_bytes=200_000)
    for number in range(5):
        await queue.add("high", f"1000-{number}", deadline=NOW)
        await queue.add("low", f"1000-{number}", deadline=NOW, body="b" * 150_000)
    while (await queue.at(NOW - 1).pull("w1", 0)).staged:
        pass
    ended, seen = await queue.broker.expire(most=3)
    assert (ended, seen.more) == (3 + 2, True)
    ended, seen = await queue.broker.expire(seen, most=3)
    assert (ended, seen.more) == (2 + 2, True)
    ended, seen = await queue.broker.expire(seen, most=3)
    assert (ended, seen.more) == (1, False)


@fails_without("unfit: what may run is not ended")
async def test_another_patience_makes_no_deadline(queue: Queue) -> None:
    await staged(queue)
    async with queue.unchanged():
        assert (await queue.with_limits(patience_ms=5).broker.expire())[0] == 0


@fails_without("expire: a backlog without deadlines hides none")
async def test_a_deadline_behind_a_backlog_without_any_is_found(queue: Queue) -> None:
    for number in range(160):
        await queue.add("low", f"{1000 + number}-0")
    await queue.add("low", f"{PATIENCE}-0", ttl=1500)
    while (await queue.at(PATIENCE).pull("w1", 0)).staged:
        pass
    later, ended, calls = queue.at(PATIENCE + 2000), 0, 0
    seen: ExpiryScan | None = None
    while not ended and calls < 9:
        ended, seen = await later.broker.expire(seen, limit=50)
        calls += 1
    assert (ended, calls) == (1, 4)


async def test_what_was_looked_at_is_not_looked_at_again(queue: Queue) -> None:
    for number in range(120):
        await queue.add("high", f"1000-{number}")
    while (await queue.at(NOW).pull("w1", 0)).staged:
        pass
    overdue = queue.at(NOW + PATIENCE).with_limits(patience_ms=5)  # so that no rank tells that there is no deadline
    _, seen = await overdue.broker.expire()
    await queue.command("CONFIG", "RESETSTAT")
    ended, seen = await overdue.broker.expire(seen)
    assert (ended, seen.more) == (0, False)
    assert b"cmdstat_xrange" not in await queue.command("INFO", "commandstats")


@fails_without("pull: what is late on arrival ends", "and unfit(size, deadline)", "and size > cfg.max_entry_bytes")
async def test_a_request_that_is_late_on_arrival_ends_as_it_is_staged(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", deadline=NOW)
    assert (await queue.pull("w1", 0)).dropped == 1
    after = await queue.dump()
    assert (after["result:r1"]["status"], after["counts"]) == ("expired", {"staged": "1", "expired": "1"})
    assert not {"lane:high", "ready:high"} & set(after)


@fails_without("pull: endings of one staging are bounded", " or ended >= most_ended then", " then")
async def test_endings_of_one_staging_are_bounded_and_the_next_pull_goes_on(queue: Queue) -> None:
    for number in range(400):
        await queue.add("high", f"1000-{number}", deadline=5)
    pulled = await queue.pull("w1", 1, stage_entries=1_000)
    assert 100 <= pulled.dropped < 200
    assert (pulled.ready, pulled.role) == (0, Role.NONE)
    while (await queue.pull("w1", 1)).dropped:
        pass
    assert (await queue.dump())["counts"] == {"staged": "400", "expired": "400"}


@fails_without("expire: each part has bounds of its own")
async def test_a_lane_of_large_entries_hides_no_other_lane(queue: Queue) -> None:
    """After a change of patience no rank tells that an entry has no deadline: all of them are read."""
    queue = queue.with_limits(max_entry_bytes=200_000)
    for number in range(8):
        await queue.add("critical", f"1000-{number}", body="b" * 150_000)
    await queue.add("normal", "1000-0", deadline=NOW + 10)
    while (await queue.pull("w1", 0)).staged:
        pass
    later = queue.at(NOW + PATIENCE).with_limits(patience_ms=5)
    assert (await later.broker.expire())[0] == 1


@fails_without("expire: the next call goes on where a bound cut this one", "return rows[i + 1]\n", "return '-inf'\n")
async def test_large_entries_without_a_deadline_are_passed_by(queue: Queue) -> None:
    queue = queue.with_limits(max_entry_bytes=200_000)
    for number in range(8):
        await queue.add("high", f"{1000 + number}-0", body="b" * 150_000)
    await queue.add("high", "1008-0", ttl=PATIENCE + 10)
    while (await queue.at(1_008).pull("w1", 0)).staged:
        pass
    later, ended, calls = queue.at(NOW + PATIENCE).with_limits(patience_ms=5), 0, 0
    seen: ExpiryScan | None = None
    while not ended and calls < 9:
        ended, seen = await later.broker.expire(seen)
        calls += 1
    assert (ended, calls) == (1, 5)


@fails_without("expire: many of one rank hold nothing up")
async def test_a_deadline_behind_many_of_one_rank_is_found(queue: Queue) -> None:
    for number in range(60):
        await queue.add("high", f"1000-{number}")
    await queue.add("high", "1001-0", ttl=PATIENCE + 10)
    await queue.at(1_001).pull("w1", 0)
    assert await expired_of(queue.at(NOW + PATIENCE), limit=20) == ["high:1001-0"]


async def test_a_clock_that_was_set_back_hides_no_deadline(queue: Queue) -> None:
    _, seen = await queue.at(NOW + 3_600_000).broker.expire()
    await staged(queue, deadline=NOW + 10)
    _, seen = await queue.broker.expire(seen)
    assert (await queue.at(NOW + 10).broker.expire(seen))[0] == 1


@fails_without(
    "entry: the time of staging is kept",
    "if id_ms(id) <= now_ms() or kept_enqueued_ms(lane, id) then return end",
    "if true then return end",
)
async def test_ttl_counts_from_staging_where_the_id_lies_ahead_of_the_clock(queue: Queue) -> None:
    """By hand, once: every later id of the lane lies ahead as well."""
    await queue.add("high", "4102444800000-0", id="r1", ttl=500)
    await queue.add("high", "4102444800000-1")
    await queue.add("high", "4102444800000-2", id="r3", deadline=NOW + PATIENCE - 1)
    await queue.pull("w1", 0)
    assert (await queue.dump())["ready:high"] == [
        ("4102444800000-0", NOW + 500),
        ("4102444800000-2", NOW + PATIENCE - 1),
        ("4102444800000-1", NOW + PATIENCE),
    ]
    assert (await queue.at(NOW + 499).broker.expire())[0] == 0
    assert (await queue.at(NOW + 500).broker.expire())[0] == 1
    assert (await queue.dump())["result:r1"]["enqueued_ms"] == str(NOW)


@fails_without(
    "entry: the time of staging does not slide with each return",
    "tonumber(call_if_typed('HGET', ENTRIES, ahead_field(lane, id)) or '') or nil",
    "nil",
)
@fails_without("entry: the time of staging goes with its entry")
async def test_such_a_time_does_not_slide_with_each_return_and_goes_with_its_entry(queue: Queue) -> None:
    lease = await queue.running("high", "4102444800000-0", ttl=500)
    later = queue.at(NOW + 100)
    await later.broker.release("w1", [lease])
    (claim,) = (await later.pull()).claims
    assert claim.enqueued_ms == NOW
    assert await later.retry("w1", claim.lease) == 1
    assert (await queue.dump())["ready:high"] == [("4102444800000-0", NOW + 500)]
    (claim,) = (await queue.at(NOW + 200).pull()).claims
    await queue.complete("w1", claim.lease)
    kept = await queue.command("HKEYS", queue.keys.entries)
    assert not [name for name in kept if name.startswith(b"enqueued:")]


@fails_without("reconcile: what was staged ahead of the clock is ranked anew")
async def test_what_was_staged_before_the_clock_was_set_back_counts_from_then(queue: Queue) -> None:
    ahead = NOW + 3_600_000
    await queue.add("high", f"{ahead}-0", ttl=500)
    await queue.add("high", f"{ahead}-1")
    await queue.at(ahead).pull("w1", 0)
    await queue.broker.reconcile()
    assert (await queue.dump())["ready:high"] == [(f"{ahead}-0", NOW + 500), (f"{ahead}-1", NOW + PATIENCE)]


LABELS = {"tenant": {"tenant": "t1"}, "session": {"session": "first"}, "both": {"tenant": "t1", "session": "first"}}
"""Labels of requests, by what they have; the session's home is w1."""


async def expired_of(queue: Queue, calls: int = 9, **bounds: int) -> list[str]:
    """Entries that such calls end, each going on where the one before has ended."""
    seen: ExpiryScan | None = None
    for _ in range(calls):
        _, seen = await queue.broker.expire(seen, **bounds)
        if not seen.more:
            break
    return [letter["_entry"] for letter in (await queue.dump()).get("dead", [])]


@fails_without(
    "expire: a tenant is looked through further at the next call",
    "call('ZADD', o.key(lane, kind), 'XX', string.format('%.0f', reached), name)",
    "cut = 1",
    argument="tenant",
)
@pytest.mark.parametrize("label", LABELS)
async def test_a_deadline_behind_others_of_its_label_is_found(queue: Queue, label: str) -> None:
    queue, labels = queue.at(PATIENCE), LABELS[label]
    await meet(queue, "w1", "w2")
    await queue.add("low", "999-0", ttl=PATIENCE + 1, **labels)
    for number in range(160):
        await queue.add("low", f"{1000 + number}-0", **labels)
    await queue.add("low", f"{PATIENCE}-0", ttl=1500, **labels)
    while (await queue.pull("w1", 0)).staged:
        pass
    assert await expired_of(queue.at(PATIENCE + 1499), limit=50) == ["low:999-0"]
    assert await expired_of(queue.at(PATIENCE + 1500), limit=50) == ["low:999-0", f"low:{PATIENCE}-0"]


@pytest.mark.parametrize("label", LABELS)
async def test_deadlines_of_a_label_and_a_backlog_without_any_hide_nothing_of_each_other(
    queue: Queue, label: str
) -> None:
    queue, labels = queue.at(PATIENCE), LABELS[label]
    await meet(queue, "w1", "w2")
    for number in range(100):
        await queue.add("low", f"{1000 + number}-0")
        await queue.add("low", f"{1000 + number}-1", **labels)
        await queue.add("high", f"{1000 + number}-0", ttl=PATIENCE, **labels)
    await queue.add("low", f"{PATIENCE}-0", ttl=9, **labels)
    await queue.add("high", f"{PATIENCE}-0", ttl=9)
    while (await queue.pull("w1", 0)).staged:
        pass
    assert (await queue.at(PATIENCE + 9).broker.expire(limit=150, most=1))[0] >= 2
    ended = {letter["_entry"] for letter in (await queue.dump())["dead"]}
    assert {f"low:{PATIENCE}-0", f"high:{PATIENCE}-0"} <= ended


@fails_without("order: deadlines that have passed are left to the housekeeping")
async def test_what_a_pull_passes_by_after_its_deadline_ends_all_the_same(queue: Queue) -> None:
    """Its tenant may run no more, and looks for who is nearly late look at later deadlines only."""
    await queue.command("HSET", queue.keys.tenants, "t1", "1 1")
    for number in range(3):
        await queue.add("high", f"{NOW}-{number}", tenant="t1", ttl=(5000, 10, 60_000)[number])
    await queue.add("high", f"{NOW}-3", tenant="t2", ttl=60_000)
    (claim,) = (await queue.pull("w1")).claims
    assert claim.lease.stream_id == f"{NOW}-1"
    later = queue.at(NOW + 5001)
    await later.pull("w1")
    assert [name for name, _ in (await later.dump())["ready:high:past"]] == ["t1"]
    assert await expired_of(later) == [f"high:{NOW}-0"]
    assert "ready:high:past" not in await later.dump()


async def test_what_is_held_for_its_worker_ends_at_its_deadline(queue: Queue) -> None:
    lease = await queue.running("high", f"{NOW}-0", ttl=500, tenant="t1")
    await queue.broker.release("w1", [lease], gave_way=True, kept={lease: ("run", 3)})
    assert "ready:high:held" in await queue.dump()
    assert await expired_of(queue.at(NOW + 499)) == []
    assert await expired_of(queue.at(NOW + 500)) == [f"high:{NOW}-0"]
    assert not [key for key in await queue.dump() if key.startswith("ready:high")]


@fails_without("expire: homes are looked through one after the other", "home == at and rank ~= '' and rank or ", "")
async def test_homes_are_looked_through_one_after_the_other(queue: Queue) -> None:
    """Each call goes on in the home, and at the rank, at which the one before has ended."""
    queue = queue.at(PATIENCE)
    await meet(queue, "w1", "w2", "w3")
    for number in range(180):
        await queue.add("low", f"{1000 + number}-0", session=f"s{number % 36}")
    for session in range(9):
        await queue.add("low", f"{PATIENCE}-{session}", session=f"s{session}", ttl=4000 + session)
    while (await pull(queue, "w1", 0)).staged:
        pass
    homes = [key for key in await queue.dump() if key.startswith("ready:low:h:")]
    assert len(homes) == 3
    later = queue.at(PATIENCE + 5000)
    assert sorted(await expired_of(later, 99, limit=10, most=2)) == [f"low:{PATIENCE}-{i}" for i in range(9)]


async def test_a_set_of_another_type_hides_no_other(queue: Queue) -> None:
    await queue.add("high", "1000-0", tenant="t1", deadline=NOW + 10)
    await queue.add("high", "1000-1", tenant="t2", deadline=NOW + 10)
    await queue.pull(wanted=0)
    for name in ("held", "firsts", "past", "t:t1"):
        await queue.command("DEL", f"{queue.keys.ready('high')}:{name}")
        await queue.command("SET", f"{queue.keys.ready('high')}:{name}", "by hand")
    assert (await queue.at(NOW + 10).broker.expire())[0] == 1


async def test_what_waits_with_a_label_counts_from_then_too(queue: Queue) -> None:
    await meet(queue, "w1")
    ahead = NOW + 3_600_000
    for number, labels in enumerate(LABELS.values()):
        await queue.add("high", f"{ahead}-{number}", ttl=500, **labels)
    await queue.at(ahead).pull("w1", 0)
    await queue.broker.reconcile()
    sets = {key: rows for key, rows in (await queue.dump()).items() if key.startswith("ready:high:")}
    assert {rank for rows in sets.values() for _, rank in rows} == {NOW + 500}
    assert sorted(await expired_of(queue.at(NOW + 500))) == [f"high:{ahead}-{number}" for number in range(3)]


@fails_without("expire: a call examines a bounded number of tenants' requests")
async def test_a_call_examines_a_bounded_number_of_tenants_requests(queue: Queue) -> None:
    for number in range(60):
        await queue.add("low", f"{1000 + number}-0", tenant=f"t{number % 20}", deadline=NOW)
    while (await queue.at(NOW - 1).pull("w1", 0)).staged:
        pass
    ended, seen = await queue.broker.expire(None, limit=5)
    assert (3 <= ended <= 10, seen.more) == (True, True)
    while seen.more:
        more, seen = await queue.broker.expire(seen, limit=5)
        ended += more
    assert ended == 60
