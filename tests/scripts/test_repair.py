"""The scripts that compare and mend: what hands did to a queue is found and mended, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from streamfleet.common.broker.reconciling import ENTRIES, PARTS, Damage, KeyCheck
from streamfleet.common.broker.types import Hint, Home, Retry
from streamfleet.common.errors import BrokerUnavailable
from streamfleet.common.keys import GROUP
from streamfleet.common.protocol import Lane
from streamfleet.common.replies import ready_member
from streamfleet.operator.repair import Inspection
from tests.scripts.breaking import KEPT, LABELLED, LOST, Scene, build, build_labelled, drained, finish, mended
from tests.scripts.conftest import open_queue
from tests.scripts.harness import NOW, Queue, ids, submission
from tests.scripts.mutants import fails_without
from tests.scripts.test_affinity import meet

NAMES = ("done", "running", "delayed", "ready", "ready-too", "handed-out", "undelivered", "undelivered-too")
ALL_DONE = dict.fromkeys(NAMES, "succeeded")
LEASE_LOST = {"group destroyed", "consumer deleted", "acknowledged", "results by hand"}
"""Breaks that take w1's lease away, or its result's place, before any repair."""


async def tells_entries_added(queue: Queue) -> bool:
    """Redis 6.2 does not: what was deleted before anybody saw it leaves no trace there."""
    return b"redis_version:6." not in await queue.command("INFO", "server")


@fails_without("reconcile: what runs stays", "and not (row or due or rank) or", "and not (due or rank) or")
@fails_without("reconcile: what is delayed stays", "and not (row or due or rank) or", "and not (row or rank) or")
@fails_without("vanish: not what has ended", "or answered(request_id) or is_tracked", "or is_tracked")
async def test_a_sound_queue_is_left_as_it_is(queue: Queue) -> None:
    scene = await build(queue)
    async with queue.unchanged():
        assert not (await mended(scene)).found
    assert await finish(scene.queue, "w1", scene.lease) == [1]
    assert await drained(scene) == ALL_DONE


@fails_without(
    "stage: what comes again is not counted again", "= seen and member <= seen", "= false", argument="group destroyed"
)
@fails_without("compare: a group beyond the end", argument="group set beyond the end")
@fails_without("compare: a group set back", "if back then note", "if false then note", argument="group set back")
@pytest.mark.parametrize("name", KEPT)
async def test_what_loses_no_body_is_mended_and_every_request_has_one_result(queue: Queue, name: str) -> None:
    kinds, spoil = KEPT[name]
    scene = await build(queue)
    await spoil(scene)
    report = await mended(scene)
    assert {found.kind for found in report.found} == kinds
    assert report.audit is not None
    assert report.audit.counts.get("vanished", 0) == 0
    # A worker that runs a request keeps it.
    assert await finish(scene.queue, "w1", scene.lease) == [0 if name in LEASE_LOST - {"results by hand"} else 1]
    assert await drained(scene) == ALL_DONE


@fails_without(
    "compare: what the streams know of",
    "truth = math.max(truth, added + forgotten)",
    "truth = truth",
    argument="undelivered entry deleted",
)
@fails_without(
    "compare: a deleted lane is remembered", "added and truth - added - forgotten or 0", "0", argument="lane deleted"
)
@fails_without("reconcile: what is known of one that is gone goes", argument="running entry deleted")
@pytest.mark.every_release
@pytest.mark.parametrize("name", LOST)
async def test_what_lost_its_body_is_counted_and_answered(queue: Queue, name: str) -> None:
    kinds, lost, spoil = LOST[name]
    scene = await build(queue)
    await spoil(scene)
    report = await mended(scene)
    # Entries that no worker had staged are known of while their stream exists, from Redis 7.0 on.
    unseen = lost & {"undelivered", "undelivered-too", "handed-out"}
    if not name.startswith("lane") and await tells_entries_added(queue):
        unseen = set()
    elif not await tells_entries_added(queue):
        kinds = kinds - {"miscounted"}
    assert {found.kind for found in report.found} == kinds
    assert report.audit is not None
    assert report.audit.counts.get("vanished", 0) == len(lost - unseen)
    assert await finish(scene.queue, "w1", scene.lease) == [0 if "running" in lost else 1]
    assert await drained(scene) == ALL_DONE | dict.fromkeys(lost, "vanished")


@pytest.mark.parametrize("name", LABELLED)
async def test_what_waits_with_a_label_is_put_in_order(queue: Queue, name: str) -> None:
    kinds, spoil = LABELLED[name]
    scene = await build_labelled(queue)
    before = await queue.dump()
    await spoil(scene)
    report = await mended(scene)
    assert {found.kind for found in report.found} == kinds
    after = await queue.dump()  # raises where the sets contradict each other
    assert name != "nothing" or after == before
    assert {tenant for tenant, tokens in after["turns:high"] if tokens >= 0} - {"x"} == {"", "t1", "t2"}
    assert await queue.command("HMGET", queue.keys.lane_states, "tenants", "sessions") == [b"1", b"1"]
    assert await finish(scene.queue, "w1", scene.lease) == [1]
    lost = {name.partition(" ")[0]} if "vanished" in kinds else set()
    assert await drained(scene) == dict.fromkeys(scene.entries, "succeeded") | dict.fromkeys(lost, "vanished")
    left = [key for key in await queue.dump() if key.startswith(("ready:", "tickets")) and "broken" not in key]
    assert left == []
    assert await queue.command("HMGET", queue.keys.lane_states, "labelled", "interrupted") == [None, None]


@pytest.fixture
async def newest(redis_url: str) -> AsyncIterator[Queue]:
    """An empty queue on the newest release alone."""
    async with open_queue(redis_url) as opened:
        yield opened


async def test_a_set_of_another_type_stops_workers_until_it_is_mended(queue: Queue) -> None:
    queue.connection._patience_s = 0
    scene = await build_labelled(queue)
    await scene.command("DEL", f"{scene.ready}:t:t1")
    await scene.command("SET", f"{scene.ready}:t:t1", "by hand")
    await scene.add("later", tenant="t1")
    assert await refused(lambda: scene.queue.pull("w2", 4))
    await mended(scene)
    assert await finish(scene.queue, "w1", scene.lease) == [1]
    assert await drained(scene) == dict.fromkeys(scene.entries, "succeeded")


NAMES_OF_TENANTS = ("ä ö", "t:t1", ":held", "15 16 2", "th:x:broken:12", " ", "other", "~", "*", "x" * 256)


async def test_tenants_are_named_by_anybody(queue: Queue) -> None:
    """Names stand in keys and members."""
    await meet(queue, "w1")
    scene = Scene(queue, NOW, {}, None)  # type: ignore[arg-type]
    for number, tenant in enumerate(NAMES_OF_TENANTS):
        await queue.add("high", f"1000-{number}", tenant=tenant, **({"session": "s"} if number % 2 else {}))
    await queue.pull("w1", 0, home=Home("a", 0))
    before = await queue.dump()
    assert sum(key.startswith("ready:high:th:") for key in before) == len(NAMES_OF_TENANTS) // 2
    assert (await mended(scene)).found == []
    assert await queue.dump() == before
    await queue.command("DEL", queue.keys.turns("high"), queue.keys.tickets, queue.keys.lane_states)
    await mended(scene)
    assert len((await queue.pull("w1", 64, home=Home("a", 0))).claims) == len(NAMES_OF_TENANTS)


LOOKED_AT = KEPT | LOST | {f"labelled, {name}": found for name, found in LABELLED.items()}


@fails_without(
    "compare: looking sets no group",
    "      if mend then call('XGROUP', 'SETID'",
    "      if true then call('XGROUP', 'SETID'",
    argument="group set beyond the end",
)
@fails_without(
    "reconcile: looking makes nothing ready",
    "if mend then place(lane, id, fields, rank) end",
    "place(lane, id, fields, rank)",
    argument="ready set deleted",
)
@fails_without(
    "reconcile: looking forgets nothing",
    "if mend then forget(lane, id, field) end",
    "forget(lane, id, field)",
    argument="running entry deleted",
)
@pytest.mark.parametrize("name", LOOKED_AT)
async def test_looking_changes_nothing_and_says_what_a_repair_would_find(newest: Queue, name: str) -> None:
    kinds, *_, spoil = LOOKED_AT[name]
    scene = await (build_labelled if name.startswith("labelled") else build)(newest)
    await spoil(scene)
    before = await raw_dump(scene)
    report = await Inspection(scene.queue.broker, mend=False).run()
    assert await raw_dump(scene) == before
    found = {found.kind for found in report.found}
    assert found <= kinds | {"differs", "gone", "labels_off", "misplaced", "nowhere", "odd", "twice", "vanished"}
    assert bool(report.problems) == bool(kinds) or name == "undelivered entry deleted"


async def raw_dump(scene: Scene) -> dict[bytes, tuple[bytes, bool]]:
    """Every key as it is kept, whatever its type, and whether it expires."""
    keys = sorted(await scene.queue.command("KEYS", "*"))
    command = scene.queue.command
    return {key: (await command("DUMP", key), await command("PTTL", key) > 0) for key in keys}


async def test_a_ready_set_comes_back_in_its_order(queue: Queue) -> None:
    """By deadline or patience, ties in the order in which they came; whatever was lost, nobody jumps the queue."""
    deadlines = [NOW + 900, 0, NOW + 100, NOW + 900, 0, NOW + 500, 0, NOW + 100]
    for number, deadline in enumerate(deadlines):
        await queue.add("high", f"1000-{number}", **({"deadline": deadline} if deadline else {"ttl": 10**6}))
    await queue.pull("w1", 0)
    before = await queue.command("ZRANGE", queue.keys.ready("high"), 0, -1, "WITHSCORES")
    await queue.command("ZREM", queue.keys.ready("high"), *before[4:8:2])
    await mended(Scene(queue, NOW, {}, None))  # type: ignore[arg-type]
    assert await queue.command("ZRANGE", queue.keys.ready("high"), 0, -1, "WITHSCORES") == before
    await queue.command("DEL", queue.keys.ready("high"))
    await mended(Scene(queue, NOW, {}, None))  # type: ignore[arg-type]
    assert await queue.command("ZRANGE", queue.keys.ready("high"), 0, -1, "WITHSCORES") == before
    assert ids((await queue.pull("w1", 3)).claims) == ["1000-2", "1000-7", "1000-5"]


@fails_without("reconcile: somebody is woken")
async def test_an_idle_worker_is_woken_for_what_was_made_ready(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    await queue.pull("w1", 0)
    await queue.command("DEL", queue.keys.ready("high"))
    await queue.broker.ensure_groups()
    await queue.pull("idle")
    _, found = await queue.broker.examine(Lane.HIGH, "", mend=True)
    assert [finding.kind for finding in found] == ["nowhere"]
    assert (await queue.dump())["wake"] == {"undelivered": 1}


async def test_a_full_redis_is_mended_all_the_same(queue: Queue) -> None:
    scene = await build(queue)
    await scene.command("DEL", scene.ready)
    await scene.command("XDEL", scene.lane, scene.entries["delayed"])
    async with scene.queue.full_memory():
        report = await Inspection(scene.queue.broker, mend=True).run()
    assert {found.kind for found in report.found} == {"gone", "nowhere", "vanished"}
    assert report.problems == []


@fails_without("reconcile: a lane in bounded calls", "looked < most and bytes < most_bytes do", "looked < most do")
async def test_one_look_is_bounded_in_entries_and_bytes(queue: Queue) -> None:
    big = queue.with_limits(max_entry_bytes=10**6, lane_limit=1_000)
    for number in range(ENTRIES + 10):
        await big.add("high", f"1000-{number}")
    for number in range(20):
        await big.add("low", f"1000-{number}", body="b" * 100_000)
    while (await big.pull("w1", 0)).staged:
        pass
    after, _ = await big.broker.examine(Lane.HIGH, "", mend=False)
    assert after == f"1000-{ENTRIES - 1}"
    after, _ = await big.broker.examine(Lane.LOW, "", mend=False)
    assert after == "1000-2"


@fails_without("reconcile: names in bounded calls")
async def test_one_sweep_is_bounded_in_bytes(queue: Queue) -> None:
    big = queue.with_limits(max_entry_bytes=10**6)
    for number in range(20):
        await big.add("low", f"1000-{number}", body="b" * 100_000)
    while (await big.pull("w1", 20)).claims:
        pass
    verbs = big.note_calls()
    assert await big.broker.sweep(Lane.LOW, "", mend=False) == ("", [])
    assert verbs == ["reconcile"] * 7


@fails_without("reconcile: listed, and gone since")
async def test_what_changed_since_it_was_listed_is_left_alone(queue: Queue) -> None:
    """Entries are listed first and looked at in another call: in between, a worker may have taken and ended them."""
    await queue.add("high", "1000-0")
    await queue.complete("w1", await queue.claim())
    async with queue.unchanged():
        assert await queue.broker._reconcile(None, "names", True, [b"2|1000-0"]) == ("", [])


async def test_what_is_known_of_an_entry_goes_with_it(queue: Queue) -> None:
    """Attempts, a delay, a ticket and an interruption of one that is gone; a ticket and a delay of one that waits."""
    keys = queue.keys
    await queue.add("high", "1000-0")
    await queue.add("low", "1000-0")
    await queue.pull("w1", 0)
    async with queue.unchanged():
        await queue.add("low", "1000-1")  # nobody has read it
        for field in ("1|1-1", "2|1000-0", "nonsense"):
            await queue.command("HSET", keys.tickets, field, "1 0  ")
        for field in ("1|1-1", "4|1000-1", "nonsense"):
            await queue.command("ZADD", keys.delayed, 1, field)
        await queue.command("HSET", keys.tries, "1|1-1", 1, "nonsense", 1)
        await queue.command("HSET", keys.entries, "interrupted:1|1-1", "1 run 3", "kept_bytes", 3)
        await queue.command("HSET", keys.lane_states, "interrupted", 1)
        found = [await queue.broker.sweep(part, "", mend=True) for part in PARTS]
        assert {damage.kind for _, damages in found for damage in damages} == {"gone", "odd"}
        await queue.command("XDEL", keys.lane("low"), "1000-1")
        await queue.command("HDEL", keys.entries, "kept_bytes")


@fails_without("vanish: not what stands", "or is_tracked(lane, id, request_id) then return 0 end", "then return 0 end")
@fails_without("vanish: not what runs", "  return not pending.err and pending[1]\n", "  return false\n")
@fails_without("vanish: looking ends nothing", "if ARGV[2] == '1' then\n    local", "if true then\n    local")
async def test_a_request_is_given_up_as_vanished_only_when_it_can_never_run(queue: Queue) -> None:
    scene = await build(queue)
    assert await scene.queue.broker.end_vanished([*scene.entries, "nobody"], mend=True) == []
    await scene.command("XDEL", scene.lane, scene.entries["running"])
    assert await scene.queue.broker.end_vanished(["running"], mend=True) == []
    await scene.command("XACK", scene.lane, GROUP, scene.entries["running"])
    assert await scene.queue.broker.end_vanished(["running"], mend=False) == ["running"]
    assert await scene.queue.broker.result("running") is None
    assert await scene.queue.broker.end_vanished(["running"], mend=True) == ["running"]
    assert await scene.queue.broker.end_vanished(["running"], mend=True) == []
    result = await scene.queue.broker.result("running")
    assert result is not None
    assert result.error is not None
    assert (result.status, result.http_status, result.error["code"]) == ("dead", 500, "vanished")
    assert result.fields["entry"] == f"high:{scene.entries['running']}"


async def test_a_worker_that_finishes_what_was_given_up_changes_nothing(queue: Queue) -> None:
    scene = await build(queue)
    await scene.command("XDEL", scene.lane, scene.entries["running"])
    await mended(scene)
    async with queue.unchanged():
        assert await finish(scene.queue, "w1", scene.lease) == [0]


async def test_a_key_set_aside_keeps_what_it_held(queue: Queue) -> None:
    await queue.command("DEL", queue.keys.ready("high"))
    await queue.command("SET", queue.keys.ready("high"), "mine")
    now = await queue.broker.now_ms()
    report = await Inspection(queue.broker, mend=True).run()
    (aside,) = await queue.command("KEYS", "*:broken:*")
    assert now <= int(aside.decode().rpartition(":")[2]) <= now + 60_000
    assert await queue.command("GET", aside) == b"mine"
    assert [found.line(True) for found in report.found] == [
        f"1 of another type than streamfleet's (string) ({queue.keys.ready('high')}): renamed"
    ]
    assert not (await Inspection(queue.broker, mend=True).run()).found


@fails_without("set aside: what is gone, or right again, is left alone", "if not (kind == 'none' or right)", "if true")
async def test_a_key_that_is_right_again_is_not_set_aside(queue: Queue) -> None:
    """It is mended by hand just after its type was looked at; or it is gone by then."""
    lane, pipeline = queue.keys.lane("high"), queue.connection.pipeline
    for again in (True, False):
        await queue.command("DEL", lane)
        await queue.command("SET", lane, "mine")

        async def then_mended(commands: Sequence[Sequence[Any]], again: bool = again) -> list[Any]:
            replies = await pipeline(commands)
            if commands[0][0] == "TYPE":
                await queue.command("DEL", lane)
                if again:
                    await queue.add("high", "1000-0")
            return replies

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue.connection, "pipeline", then_mended)
            found = await queue.broker.set_aside([KeyCheck(lane, "stream")], mend=True)
        assert [each.kind for each in found] == ["wrong_type"]
        assert await queue.command("EXISTS", lane) == again
        assert await queue.command("KEYS", "*:broken:*") == []


async def test_consumers_of_workers_that_nobody_knows_are_found_once_they_are_silent(queue: Queue) -> None:
    lease = await queue.running()
    assert await queue.broker.deregister(silent_ms=0, look_only=True) == 0
    await queue.complete("w1", lease)
    async with queue.unchanged():
        assert await queue.broker.deregister(silent_ms=0, look_only=True) == 1
        assert await queue.broker.deregister(silent_ms=60_000) == 0
    assert await queue.broker.deregister(silent_ms=0) == 1
    assert await queue.broker.deregister(silent_ms=0) == 0


@pytest.mark.every_release
async def test_counters_are_right_after_several_kinds_of_damage_at_once(queue: Queue) -> None:
    """Otherwise entries that skipped the staging and entries that vanished unseen hide each other in a mere sum."""
    scene = await build(queue)
    await scene.command("XGROUP", "SETID", scene.lane, GROUP, "$")
    await scene.command("XDEL", scene.lane, scene.entries["undelivered"])
    await scene.command("ZREM", scene.ready, ready_member(scene.entries["ready"]))
    await scene.command("XDEL", scene.lane, scene.entries["ready"])
    report = await mended(scene)
    assert report.audit is not None
    told = await tells_entries_added(queue)
    assert report.audit.counts.get("vanished", 0) == (2 if told else 0)
    assert await finish(scene.queue, "w1", scene.lease) == [1]
    assert await drained(scene) == ALL_DONE | {"undelivered": "vanished", "ready": "vanished"}


@fails_without(
    "compare: a group set back before anything was staged", "held and encode_id(held) > encode_id(last) or ", ""
)
async def test_a_group_set_back_while_an_entry_is_on_its_way(queue: Queue) -> None:
    """Nothing was staged yet: only the pending entry tells that the group had been further."""
    await queue.add("high", "1000-0", id="r1")
    await queue.hand_out()
    await queue.command("XGROUP", "SETID", queue.keys.lane("high"), GROUP, "0")
    report = await mended(Scene(queue, NOW, {}, None))  # type: ignore[arg-type]
    assert {found.kind for found in report.found} == {"group_back", "twice"}
    assert await queue.complete("w1", await queue.claim()) == [1]
    assert (await queue.dump())["counts"] == {"staged": "1", "succeeded": "1"}


@fails_without("vanish: another request at its place is another", "return entry.id == request_id", "return true")
async def test_another_request_in_the_place_of_a_deleted_one_does_not_stand_for_it(queue: Queue) -> None:
    """A lane that was deleted may give the same stream id again within the same millisecond."""
    scene = await build(queue)
    await scene.command("XDEL", scene.lane, scene.entries["ready"])
    await scene.command("DEL", scene.lane)
    await queue.add("high", scene.entries["ready"], id="other")
    await mended(scene)
    assert (await drained(scene))["ready"] == "vanished"
    other = await queue.broker.result("other")
    assert other is not None
    assert other.ok


@fails_without("compare: not by counters that were deleted", "if staged >= mirror and added then", "if added then")
async def test_deleted_counters_make_nothing_vanish(queue: Queue) -> None:
    """Workers count on at once, so that the key is there again, and tells of a few endings out of many."""
    for number in range(20):
        await queue.complete("w1", await queue.running("high", f"1000-{number}"))
    await queue.running("high", "1001-0")
    await queue.command("DEL", queue.keys.counts)
    await queue.complete("w1", await queue.running("high", "1002-0"))
    report = await mended(Scene(queue, NOW, {}, None))  # type: ignore[arg-type]
    assert report.audit is not None
    assert (report.audit.counts.get("vanished", 0), report.audit.accepted) == (0, 2)


@fails_without("compare: not while it does not fit")
async def test_counters_are_left_alone_while_the_rest_does_not_fit(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    await queue.pull("w1", 0)
    await queue.command("XDEL", queue.keys.lane("high"), "1000-0")
    async with queue.unchanged():
        assert await queue.broker.compare(None, True, counters="all") == [Damage("differs", "high")]


@fails_without("compare: not by counters of an earlier time", "elseif staged < mirror then", "elseif false then")
async def test_counters_of_an_earlier_time_make_nothing_vanish(queue: Queue) -> None:
    first, *others = [await queue.running("high", f"1000-{number}") for number in range(3)]
    kept = await queue.command("DUMP", queue.keys.counts)
    await queue.complete("w1", *others)
    for number in range(5):
        await queue.complete("w1", await queue.running("high", f"1001-{number}"))
    await queue.command("RESTORE", queue.keys.counts, 0, kept, "REPLACE")
    assert {damage.kind for damage in await queue.broker.compare(None, True)} <= {"miscounted"}
    assert await queue.complete("w1", first) == [1]
    audit = await queue.broker.audit()
    assert (audit.counts.get("vanished", 0), audit.problems()) == (0, [])


@fails_without("vanish: in bounded calls")
async def test_looking_for_who_waits_in_vain_is_bounded_in_bytes(queue: Queue) -> None:
    names = [f"r{number}" for number in range(6)]
    await queue.broker.enqueue([submission(name, body="b" * 100_000) for name in names])
    assert await queue.broker._end_vanished(names, mend=True) == [0, 0]
    await queue.command("DEL", queue.keys.lane("high"))
    assert await queue.broker.end_vanished(names, mend=True) == names


ENDING_WRITES = ("tries", "counts", "dead")  # what complete.lua writes to, beside its lanes
RENEWAL_WRITES = ("tries", "counts", "lanes")


@fails_without(
    "types: ready:low of another type is noticed before a write",
    "do waiting[each] = call('ZCARD', ready_key(each)) end",
    "do waiting[each] = 0 end",
    argument="ready:low",
)
@fails_without("types: tries of another type is noticed before a write", argument="tries")
@fails_without("types: counts of another type is noticed before a write", argument="counts")
@fails_without(
    "types: lanes of another type is noticed before a write",
    "labelled = call('HGET'",
    "labelled = call_if_typed('HGET'",
    argument="lanes",
)
@fails_without("types: dead of another type is noticed before a write", argument="dead")
@fails_without("types: waiting of another type is noticed before a write", argument="waiting")
@fails_without("types: delayed of another type is noticed before a write", argument="delayed")
@fails_without("types: watch of another type is noticed before a write", argument="watch")
@fails_without("types: wake of another type is noticed before a write", argument="wake")
@fails_without("types: wake of another type is noticed before a write by its hints", argument="wake")
@fails_without("types: tries of another type is noticed before a write of renew", argument="tries")
@fails_without("types: counts of another type is noticed before a write of renew", argument="counts")
@fails_without("types: lanes of another type is noticed before a write of renew", argument="lanes")
@fails_without("types: tries of another type is noticed before a write of complete", argument="tries")
@fails_without("types: counts of another type is noticed before a write of complete", argument="counts")
@fails_without("types: dead of another type is noticed before a write of complete", argument="dead")
@pytest.mark.parametrize(
    "name", ["ready:low", "tries", "counts", "lanes", "delayed", "watch", "dead", "wake", "waiting"]
)
async def test_a_key_of_another_type_is_noticed_before_anything_is_written(queue: Queue, name: str) -> None:
    """Otherwise the script's first writes are never counted, and the rest of it is not done."""
    queue.connection._patience_s = 0
    scene = await build(queue)
    queue, broker = scene.queue, scene.queue.broker
    key = f"{queue.keys.base}{name}"
    await queue.command("DEL", key)
    await queue.command("SET", key, "by hand")
    before = await raw_dump(scene)
    again = [Retry(scene.lease, 0, "{}")]
    for attempt in (
        *([lambda: queue.pull("w2", 4, [Hint(None, "1-0")])] if name != "delayed" else []),
        *([lambda: finish(queue, "w1", scene.lease)] if name in ENDING_WRITES else []),
        *([lambda: broker.renew("w1", [scene.lease])] if name in RENEWAL_WRITES else []),
        lambda: broker.release("w1", [scene.lease]),
        lambda: broker.retry_later("w1", again, 3),
        lambda: broker.reclaim(0, 3),
        broker.return_delayed,
        broker.tend_waiting,
        lambda: broker.compare(None, True),
        lambda: broker.examine(Lane.HIGH, "", True),
        broker.expire,
        lambda: broker.deregister(silent_ms=0),
    ):
        assert await refused(attempt)
    assert await raw_dump(scene) == before


async def test_numbers_too_large_for_a_stream_id_are_found_and_removed(queue: Queue) -> None:
    huge = "99999999999999999999999"
    await queue.command("ZADD", queue.keys.delayed, 0, f"1|{huge}-0")
    await queue.command("ZADD", queue.keys.ready("high"), 0, f"W{huge}-A0")
    await queue.command("HSET", queue.keys.tries, f"1|{huge}-0", "1")
    report = await Inspection(queue.broker, mend=True).run()
    assert {found.kind for found in report.found} == {"differs", "odd"}
    assert (await Inspection(queue.broker, mend=False).run()).found == []


async def test_a_delayed_number_too_large_for_a_stream_id_does_not_stop_the_promotion(queue: Queue) -> None:
    await queue.command("ZADD", queue.keys.delayed, 0, "1|99999999999999999999999-0")
    assert await queue.broker.return_delayed() == (0, None)
    assert "delayed" not in await queue.dump()


async def refused(attempt: Callable[[], Awaitable[object]]) -> bool:
    """True if it was refused, with advice on what to do."""
    try:
        await attempt()
    except BrokerUnavailable as error:
        return "streamfleet audit --repair" in str(error)
    return False


async def test_progress_goes_on_to_its_end(queue: Queue) -> None:
    scene = await build(queue)
    told: list[tuple[int, int]] = []
    await Inspection(scene.queue.broker, mend=False, progress=lambda done, total: told.append((done, total))).run()
    assert told == sorted(told)
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 0


@fails_without("info: not behind the last stream id")
async def test_the_last_stream_id_that_there_can_be_is_looked_at_as_any(queue: Queue) -> None:
    """Redis refuses to look behind it."""
    last = "18446744073709551615-18446744073709551615"
    await queue.add("high", last, id="r1")
    await queue.pull("w1", 0)
    await queue.command("DEL", queue.keys.ready("high"))
    report = await mended(Scene(queue, NOW, {}, None))  # type: ignore[arg-type]
    assert {found.kind for found in report.found} == {"nowhere"}
    assert (await queue.claim()).stream_id == last
    assert not (await mended(Scene(queue, NOW, {}, None))).found  # type: ignore[arg-type]


async def test_a_place_in_a_lane_that_is_none_is_as_if_nothing_had_been_staged(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1")
    await queue.hand_out()
    await queue.command("HSET", queue.keys.lane_states, "staged:high", "soon")
    report = await mended(Scene(queue, NOW, {}, None))  # type: ignore[arg-type]
    assert report.found == []
