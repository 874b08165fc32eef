"""audit.lua: everything counted at one instant, and nothing changed by counting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamfleet.common.protocol import LANES
from streamfleet.common.replies import mapping
from streamfleet.operator.snapshot import take_snapshot
from tests.scripts.breaking import build_labelled
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without


async def a_bit_of_everything(queue: Queue) -> None:
    """high: one undelivered, handed out, ready, delayed, running, expired, and one duplicate of a finished one."""
    await queue.complete("w1", await queue.running("high", "1000-0", id="done"))
    await queue.running("high", "1000-1")
    await queue.retry("w1", await queue.running("high", "1000-2"), 50)
    await queue.add("high", "1000-3", id="done")
    await queue.add("high", "1000-4", deadline=1)
    await queue.pull("w1")
    await queue.add("high", "1000-5")
    await queue.pull("w1", 0)
    await queue.add("high", "1000-6")
    await queue.hand_out()
    await queue.add("high", "1000-7")


async def test_everything_adds_up(queue: Queue) -> None:
    await a_bit_of_everything(queue)
    async with queue.unchanged():
        audit = await queue.broker.audit()
    high = audit.lanes[1]
    assert (high.lane, high.length, high.ready, high.running, high.handed_out, high.undelivered) == (
        "high",
        5,
        1,
        1,
        1,
        1,
    )
    assert high.ever_added in (8, None)
    assert (audit.delayed, audit.tries, audit.dead_letters) == (1, 1, 1)
    assert audit.counts == {"staged": 6, "succeeded": 1, "expired": 1, "duplicate": 1}
    assert (audit.accepted, audit.outstanding, sum(audit.ended.values())) == (7, 5, 2)
    assert audit.problems() == []
    assert audit.line() == "accepted=7 = succeeded=1 + failed=0 + expired=1 + cancelled=0 + dead=0 + outstanding=5"


async def test_what_waits_with_a_label_is_ready(queue: Queue) -> None:
    scene = await build_labelled(queue)
    audit = await scene.queue.broker.audit()
    high = audit.lanes[1]
    assert (high.length, high.ready, high.running, high.undelivered, audit.delayed) == (13, 10, 1, 1, 1)
    assert audit.problems() == []


@fails_without("audit: entries are bounded", "most + 1, 4194304,", "1e9, 4194304,")
async def test_too_many_undelivered_entries_are_not_counted_and_no_problem(queue: Queue) -> None:
    await a_bit_of_everything(queue)
    for number in range(300):
        await queue.add("high", f"2000-{number}")
    audit = await queue.broker.audit(bound=100)
    assert audit.lanes[1].undelivered is None
    assert (audit.accepted, audit.outstanding) == (307, 305)
    assert audit.problems() == []
    assert (await queue.broker.audit(bound=301)).lanes[1].undelivered == 301


@fails_without("audit: bytes are bounded", "most + 1, 4194304,", "most + 1, 1e9,")
async def test_counting_copies_a_bounded_number_of_bytes(queue: Queue) -> None:
    for number in range(10):
        await queue.add("high", f"1000-{number}", body="b" * 1_000_000)
    audit = await queue.broker.audit()
    assert (audit.lanes[1].undelivered, audit.accepted, audit.problems()) == (None, 10, [])


async def test_an_empty_and_a_missing_queue_have_no_problems(queue: Queue) -> None:
    assert (await queue.broker.audit()).problems() == []
    await queue.command("FLUSHALL")
    audit = await queue.broker.audit()
    assert (audit.problems(), audit.accepted) == ([], 0)
    assert await queue.dump() == {}


async def test_entries_before_the_first_worker_are_undelivered(queue: Queue) -> None:
    await queue.command("FLUSHALL")
    await queue.add("low", "1000-0")
    audit = await queue.broker.audit()
    assert (audit.lanes[3].undelivered, audit.accepted, audit.problems()) == (1, 1, [])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (("HINCRBY", "counts", "succeeded", 1), "accepted 7 is not ended 3 + outstanding 5"),
        (("ZREM", "ready:high", "D1000-A5"), "lanes hold 5 entries, but undelivered"),
        (("ZADD", "delayed", NOW, "2|1000-1"), "lanes hold 5 entries, but undelivered"),
        (("XDEL", "lane:high", "1000-5"), "accepted 7 is not ended 2 + outstanding 4"),
        (("HINCRBY", "counts", "staged", 1), "accepted 8 is not ended 2 + outstanding 5"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
async def test_what_does_not_add_up_is_said(queue: Queue, damage: tuple[str, ...], words: str) -> None:
    await a_bit_of_everything(queue)
    verb, key, *rest = damage
    assert await queue.command(verb, f"{queue.keys.base}{key}", *rest) == 1 or verb == "HINCRBY"
    assert any(words in problem for problem in (await queue.broker.audit()).problems())


@pytest.mark.every_release
async def test_entries_lost_before_they_were_seen_are_missed(queue: Queue) -> None:
    await queue.add("high", "1000-0")
    await queue.command("XDEL", queue.keys.lane("high"), "1000-0")
    audit = await queue.broker.audit()
    # Redis 6.2 does not count what was ever added.
    told = audit.lanes[1].ever_added is not None
    assert audit.problems() == (["the lanes were given 1 entries, but 0 were seen"] if told else [])


async def test_an_audit_says_nothing_where_the_server_cannot_tell(queue: Queue) -> None:
    await a_bit_of_everything(queue)
    audit = await queue.broker.audit()
    blind = replace(audit, lanes=[replace(lane, ever_added=None, undelivered=None) for lane in audit.lanes])
    assert [lane.lane for lane in blind.lanes] == list(LANES)
    assert blind.problems() == []
    assert blind.accepted == audit.accepted


async def test_the_lag_of_the_group_is_not_the_backlog(queue: Queue) -> None:
    """As docs/operate.md says: what is in order has been read, although nobody runs it. The length counts it."""
    for number in range(128):
        await queue.add("high", f"{1_000 + number}-0")
    await queue.pull("w1")
    command, lane = queue.broker.connection.command, queue.broker.keys.lane(LANES[1])
    (group,) = [mapping(row) for row in await command("XINFO", "GROUPS", lane)]
    assert group.get(b"lag", 0) in (0, None)  # Redis 6.2 tells none
    assert await command("XLEN", lane) == 128


async def test_the_mean_wait_is_of_requests_all_over_the_lane(queue: Queue) -> None:
    now_ms = await queue.broker.now_ms()
    for number in range(101):
        await queue.add("high", f"{now_ms - 100_000 + number * 1_000}-0")
    await queue.pull("w1", 0)
    snapshot = await take_snapshot(queue.broker)
    assert snapshot.lanes[1].mean_wait_s == pytest.approx(50, abs=10)
    assert snapshot.lanes[0].mean_wait_s is None
