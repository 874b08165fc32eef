"""compare.lua and reconcile.lua, call by call: what each of them finds and mends. test_repair.py has whole repairs."""

from __future__ import annotations

import pytest

from streamfleet.common.broker.reconciling import ENTRIES, Damage
from streamfleet.common.broker.types import TenantRule
from streamfleet.common.keys import GROUP, ORIGINS, Keys
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.replies import ready_member
from tests.scripts.breaking import SIZE, Break, build_labelled, delete, in_sets, label_set, overwrite
from tests.scripts.harness import NOW, PATIENCE, Queue
from tests.scripts.mutants import fails_without

RUNNING_TOO = "what runs"
COMPARED: dict[str, tuple[str, Break]] = {
    "no place": ("differs", delete("ready:high")),
    "two places": ("differs", in_sets(("ZADD", "ready:high", 1, "@tenant"))),
    "half of what has two labels": ("differs", delete(label_set("ht:2"))),
    "numbers": ("labels_off", in_sets(("HSET", "lanes", "labelled", "0 0 0 0;9 1 2 1;0 0 0 0;0 0 0 0;"))),
    "no numbers": ("labels_off", in_sets(("HDEL", "lanes", "labelled"))),
    "first of nothing": ("labels_off", in_sets(("ZADD", ":firsts", 1, 77))),
    "tickets": ("odd", in_sets(("HSET", "tickets", "1|1-1", "1 0  "))),
    "interrupted": ("interrupted_off", in_sets(("HSET", "lanes", "interrupted", 7))),
    "kept": ("interrupted_off", in_sets(("HSET", "entries", "kept_bytes", "many"))),
    "counters": ("odd_count", in_sets(("HSET", "counts", "failed", "many"))),
    "staged": ("miscounted", in_sets(("HINCRBY", "counts", "staged", -1), ("HINCRBY", "lanes", "ever_staged", -1))),
    "type": ("wrong_type", overwrite(label_set("t:t1"))),
}
"""What a comparison finds: the kind, and how it was broken."""
MENDED = {"numbers", "no numbers", "first of nothing", "interrupted", "kept", "counters", "staged"}
"""What a comparison itself sets right."""

EXAMINED: dict[str, tuple[str, Break]] = {
    "ready": ("nowhere", delete("ready:high")),
    "of a tenant": ("nowhere", delete(label_set("t:t1"))),
    "held": ("nowhere", delete(label_set("held"))),
    "turns": ("turn_gone", delete("turns:high")),
    "firsts": ("misplaced", delete(label_set("firsts"))),
    "late": ("misplaced", delete(label_set("late"))),
    "loads": ("misplaced", delete("loads")),
    "of a home and a tenant": ("misplaced", delete(label_set("ht:2"))),
    "without its label": (
        "misplaced",
        in_sets(("ZREM", ":t:t1", f"@tenant {SIZE}"), ("ZADD", "ready:high", 1, "@tenant")),
    ),
    RUNNING_TOO: ("twice", in_sets(("ZADD", "ready:high", 1, "@running"))),
    "delayed too": ("twice", in_sets(("ZADD", "ready:high", 1, "@delayed"))),
    "running and delayed": ("twice", in_sets(("ZADD", "delayed", 1, "#running"))),
    "not delivered": ("odd", in_sets(("ZADD", "delayed", 1, "#undelivered"))),
    "ticket": ("odd", in_sets(("HSET", "tickets", "#plain", "1 0  "))),
}
"""What an examination finds, entry by entry, and mends."""


@fails_without("compare: each delivered entry has one place", argument="no place")
@fails_without("compare: what waits with a label is counted", argument="numbers")
@fails_without("compare: who waits for a home has a ticket", argument="tickets")
@fails_without("compare: a home for which nothing waits has no first", argument="first of nothing")
@fails_without("compare: a set of another type goes", argument="type")
@fails_without("compare: interrupted ones are counted", argument="interrupted")
@fails_without("compare: the bytes of what is kept are counted", argument="kept")
@fails_without("compare: counters are numbers", argument="counters")
@fails_without("compare: what skipped the staging", "truth = math.max(seen, known)", "truth = seen", argument="staged")
@pytest.mark.parametrize("name", COMPARED)
async def test_a_comparison_finds_what_contradicts_itself(queue: Queue, name: str) -> None:
    kind, spoil = COMPARED[name]
    scene = await build_labelled(queue)
    broker, before = scene.queue.broker, await queue.dump()
    lane = None if kind == "interrupted_off" else Lane.HIGH
    assert await broker.compare(lane, True, counters="all") == []
    assert await queue.dump() == before
    await spoil(scene)
    found = await broker.compare(lane, True)
    assert kind in {damage.kind for damage in found}
    if name in MENDED:
        assert await broker.compare(lane, False) == []
        assert await queue.dump() == before
    if kind == "wrong_type":
        assert not await queue.command("EXISTS", f"{scene.ready}:t:t1")


@fails_without("reconcile: what is nowhere waits", argument="ready")
@fails_without("reconcile: who waits is in turn", argument="turns")
@fails_without("reconcile: the first of a home is known", argument="firsts")
@fails_without("reconcile: what waits for a home waits for one that there is", argument="loads")
@fails_without("reconcile: what has a tenant and a home stands twice", argument="of a home and a tenant")
@fails_without("reconcile: what has a tenant stands in its sets", argument="without its label")
@fails_without("reconcile: what runs or is delayed does not wait", argument="what runs")
@fails_without("reconcile: what runs, or is not delivered, is not delayed", argument="running and delayed")
@fails_without("reconcile: tickets are of those that need one", argument="ticket")
@fails_without("reconcile: what is not delivered stays", "elseif delivered and not", "elseif not", argument="turns")
@pytest.mark.parametrize("name", EXAMINED)
async def test_an_examination_finds_what_has_not_its_one_place(queue: Queue, name: str) -> None:
    kind, spoil = EXAMINED[name]
    scene = await build_labelled(queue)
    broker, names = scene.queue.broker, [f"2|{each}".encode() for each in scene.entries.values()]
    async with queue.unchanged():
        assert await broker.examine(Lane.HIGH, "", True) == ("", [])
        assert await broker._reconcile(None, "names", True, names) == ("", [])
    await spoil(scene)
    for mend in (False, True):
        _, found = await broker._reconcile(None, "names", mend, names)
        assert kind in {damage.kind for damage in found}
    # What is placed anew may get another home.
    await broker._reconcile(None, "names", True, names)
    assert await broker._reconcile(None, "names", True, names) == ("", [])
    await broker.compare(Lane.HIGH, True)  # counts what waits with a label
    await queue.dump()  # raises where sets contradict each other


@fails_without("compare: it is known that tenants are there")
@fails_without("compare: it is known that homes are there")
async def test_a_queue_knows_again_that_it_has_tenants_and_homes(queue: Queue) -> None:
    scene = await build_labelled(queue)
    await queue.command("HDEL", queue.keys.lane_states, "tenants", "sessions")
    await scene.queue.broker.compare(None, True)
    assert await queue.command("HMGET", queue.keys.lane_states, "tenants", "sessions") == [b"1", b"1"]


@fails_without("reconcile: who has a limit is known")
async def test_a_tenant_at_its_limit_is_not_put_in_turn(queue: Queue) -> None:
    await queue.broker.set_tenant("t1", TenantRule(max_running=1))
    for each in range(2):
        await queue.add("high", f"1000-{each}", tenant="t1")
    assert len((await queue.pull("w1", 2)).claims) == 1
    async with queue.unchanged():
        assert await queue.broker.examine(Lane.HIGH, "", True) == ("", [])


async def test_a_lane_without_labels_is_compared_at_little_cost(queue: Queue) -> None:
    """Each tenant may have sets in each lane; most have none."""
    for each in range(90):
        await queue.add("high", f"1000-{each}", tenant=f"t{each}")
    await queue.pull("w1", 0, stage_entries=100)
    await queue.broker.compare(Lane.LOW, True)
    await queue.command("CONFIG", "RESETSTAT")
    assert await queue.broker.compare(Lane.LOW, True) == []
    rows = (await queue.command("INFO", "commandstats")).split()
    (asked,) = [row for row in rows if row.startswith(b"cmdstat_zcard:")]
    assert int(asked.partition(b"calls=")[2].partition(b",")[0]) < 40


@fails_without("reconcile: what nobody holds waits on")
async def test_what_nobody_holds_stays_ready(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    await queue.pull("w1", 0)
    async with queue.unchanged():
        await queue.command("XCLAIM", queue.keys.lane("high"), GROUP, "~", 0, "1000-0", "FORCE")
        assert await queue.broker.examine(Lane.HIGH, "", True) == ("", [Damage("twice", "high:1000-0")])


@fails_without("reconcile: what stands in a set by mistake goes")
@fails_without("reconcile: the next call goes on where this one ended")
async def test_the_sets_of_a_lane_are_made_anew_in_parts_beside_pulls(queue: Queue) -> None:
    big = queue.with_limits(lane_limit=10_000)
    number = 2 * ENTRIES + 10
    for each in range(number):
        await big.add("high", f"1000-{each}", tenant=f"t{each % 3}")
    while (await big.pull("w1", 0)).staged:
        pass
    before = {name: value for name, value in (await queue.dump()).items() if name.startswith("ready:")}
    await queue.command("ZADD", f"{queue.keys.ready('high')}:t:t0", 1, ready_member("1-1") + f" {SIZE}")
    await queue.broker.begin(Lane.HIGH)
    assert await queue.command("KEYS", f"{queue.keys.ready('high')}*") == []
    assert (await queue.broker.go_on(Lane.HIGH))[0] == f"1000-{ENTRIES - 1}"
    assert await queue.broker.compare(Lane.HIGH, True) == [Damage("mending", "high")]
    (claim,) = (await big.pull("w1", 1)).claims
    await big.broker.release("w1", [claim.lease])
    assert [(await queue.broker.go_on(Lane.HIGH))[0] for _ in range(3)] == [f"1000-{2 * ENTRIES - 1}", "", ""]
    assert {name: value for name, value in (await queue.dump()).items() if name.startswith("ready:")} == before
    assert await queue.broker.compare(Lane.HIGH, False) == []


@fails_without("reconcile: it is known that ids are ahead of the clock")
async def test_times_of_staging_are_used_again_once_the_lanes_are_lost(queue: Queue) -> None:
    """Redis's clock had been set back when the entry came."""
    await queue.add("high", f"{2 * NOW}-0")
    await queue.pull("w1", 0)
    async with queue.unchanged():
        later = queue.at(NOW + 5_000)
        await queue.command("DEL", queue.keys.lane_states)
        await later.broker.sweep("entries", "", True)
        await later.broker.examine(Lane.HIGH, "", True)
        assert await queue.command("HGET", queue.keys.lane_states, "ahead:high") == f"{2 * NOW}-0".encode()


@fails_without("compare: what was staged ahead of a clock that was set back is ranked anew")
async def test_what_was_staged_before_the_clock_was_set_back_is_ranked_anew_at_once(queue: Queue) -> None:
    await queue.add("high", f"{NOW}-0")
    await queue.pull("w1", 0)
    before = queue.at(NOW - 5_000).broker
    assert await before.compare(None, True) == []
    assert await before.compare(None, True) == [Damage("mending", "high")]
    assert (await before.go_on(Lane.HIGH))[0] == ""
    assert await queue.command("ZRANGE", queue.keys.ready("high"), 0, 0, "WITHSCORES") == [
        ready_member(f"{NOW}-0").encode(),
        str(NOW - 5_000 + PATIENCE).encode(),
    ]
    assert await before.compare(None, True) == []


def test_every_key_says_what_it_is_made_of() -> None:
    keys = Keys("q")
    named = {name for name, value in vars(Keys).items() if isinstance(value, property) or callable(value)}
    named -= {"shared", "lanes", "of_shares", "typed"} | {name for name in named if name.startswith("_")}
    assert named == set(ORIGINS)
    assert {*keys.shared()} <= keys.typed().keys()
    assert {*map(keys.ready, LANES), keys.served} <= keys.typed(derived=True).keys()
    assert not {*keys.lanes, keys.tries, keys.entries, keys.tenants, keys.meta} & keys.typed(derived=True).keys()


async def test_without_sessions_a_comparison_asks_for_no_worker(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.workers, *(word for number in range(50) for word in (f"w{number}", "{}")))
    await queue.command("CONFIG", "RESETSTAT")
    assert await queue.broker.compare(Lane.HIGH, True) == []
    stats = await queue.connection.command("INFO", "commandstats")
    asked = [line for line in stats.decode().splitlines() if line.startswith("cmdstat_hget:")]
    assert all(int(line.partition("calls=")[2].partition(",")[0]) < 50 for line in asked)
