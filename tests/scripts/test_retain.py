"""retain.lua: dead letters have an end of life; and how long an id is remembered."""

from __future__ import annotations

from streamfleet.common.broker.types import EnqueueCode
from streamfleet.common.protocol import Lane, Status
from tests.scripts.harness import NOW, Queue, submission
from tests.scripts.keyspace import text
from tests.scripts.mutants import fails_without

HOUR_MS = 3_600_000


async def letters(queue: Queue, *times_ms: int) -> None:
    for number, time_ms in enumerate(times_ms):
        await queue.command("XADD", queue.keys.dead, f"{time_ms}-{number}", "_id", f"r{number}", "body", "b" * 30)


async def left(queue: Queue) -> list[int]:
    return [int(text(row[0]).partition("-")[0]) for row in await queue.command("XRANGE", queue.keys.dead, "-", "+")]


@fails_without("retain: to the last one")
async def test_dead_letters_beyond_their_life_are_deleted_to_the_millisecond(queue: Queue) -> None:
    brief = queue.with_limits(dead_ttl_ms=1_000)
    await letters(queue, NOW - 5_000, NOW - 1_001, NOW - 1_000, NOW - 999, NOW)
    assert await brief.broker.retain() == 2
    assert await left(queue) == [NOW - 1_000, NOW - 999, NOW]
    assert await brief.broker.retain() == 0
    assert (await brief.broker.audit()).problems() == []


@fails_without("retain: not before their time", "now_ms() - cfg.dead_ttl_ms", "now_ms()")
async def test_nothing_is_deleted_before_its_time_nor_where_there_is_nothing(queue: Queue) -> None:
    assert await queue.broker.retain() == 0
    await letters(queue, 1, NOW)
    assert await queue.broker.retain() == 0
    assert await left(queue) == [1, NOW]


@fails_without("retain: bounded", ", DEAD, 'MINID', '~', oldest, 'LIMIT', ARGV[2]", ", DEAD, 'MINID', '~', oldest")
async def test_one_call_deletes_a_bounded_number(queue: Queue) -> None:
    brief = queue.with_limits(dead_ttl_ms=1)
    await letters(queue, *range(1, 2_001))
    deleted = [await brief.broker.retain(500) for _ in range(6)]
    assert sum(deleted) == 2_000
    assert 0 < max(deleted) <= 600
    assert deleted[-1] == 0


async def test_a_full_redis_lets_them_go(queue: Queue) -> None:
    await letters(queue, 1, 2, 3)
    async with queue.full_memory():
        assert await queue.with_limits(dead_ttl_ms=1).broker.retain() == 3


async def life_ms(queue: Queue, request_id: str = "r1") -> int:
    return int(await queue.command("PTTL", queue.keys.request(request_id)))


async def test_an_id_is_remembered_while_its_request_waits_and_for_as_long_as_its_result(queue: Queue) -> None:
    """Else the same request, enqueued again after it waited for longer than results are kept, would run twice."""
    await queue.broker.enqueue([submission("r1")])
    assert queue.limits.result_ttl_ms < await life_ms(queue) <= queue.limits.waiting_ttl_ms
    await queue.complete("w1", await queue.claim())
    assert 0 < await life_ms(queue) <= queue.limits.result_ttl_ms
    result_ms = await queue.command("PTTL", queue.keys.result("r1"))
    assert await life_ms(queue) <= result_ms


@fails_without("finish: an id goes with its result", "redis.pcall('GETEX', key, 'PX', life)", "redis.pcall('GET', key)")
@fails_without("vanish: an id goes with its result")
async def test_every_ending_gives_the_id_the_life_of_its_result(queue: Queue) -> None:
    names = ("vanished", "cancelled", "failed", "dead", "succeeded")
    first, *_ = await queue.broker.enqueue([submission(name) for name in names])
    await queue.command("XDEL", queue.keys.lane("high"), first.entry.removeprefix("high:"))
    assert await queue.broker.end_vanished(["vanished"], True) == ["vanished"]
    await queue.broker.cancel("cancelled")
    claims = {claim.lease.request_id: claim.lease for claim in (await queue.pull("w1", 4)).claims}
    await queue.complete("w1", claims["failed"], status=Status.FAILED)
    await queue.complete("w1", claims["succeeded"])
    await queue.broker.reclaim(0, 1)
    for name in names:
        assert 0 < await life_ms(queue, name) <= queue.limits.result_ttl_ms, name


async def test_an_id_outlives_results_while_its_request_waits(queue: Queue) -> None:
    brief = queue.with_limits(result_ttl_ms=1, waiting_ttl_ms=60_000)
    await brief.broker.enqueue([submission("r1")])
    await queue.command("PEXPIRE", queue.keys.result("r1"), 1)
    (again,) = await brief.broker.enqueue([submission("r1")])
    assert again.code is EnqueueCode.EXISTING
    assert (await brief.broker.audit()).outstanding == 1


async def test_results_that_live_longer_than_that_lengthen_it(queue: Queue) -> None:
    longer = queue.with_limits(result_ttl_ms=HOUR_MS, waiting_ttl_ms=1_000)
    await longer.broker.enqueue([submission("r1", Lane.LOW)])
    assert 1_000 < await life_ms(queue) <= HOUR_MS


# -- dead letters in bytes -----------------------------------------------------------------------------------

PART = 16 * 1024 * 1024
LARGE = 1_000_000


async def end_large(queue: Queue, numbers: range) -> None:
    """Requests of a megabyte that end with dead letters of about that size."""
    for number in numbers:
        await queue.add("high", f"1000-{number}", id=f"r{number}", deadline=NOW - 1, body="b" * LARGE)
        await queue.pull()


async def kept(queue: Queue) -> list[int]:
    """Numbers of the requests whose dead letters are there."""
    letters = await queue.broker.dead_letters(1_000)
    return [int(fields[b"_id"].decode().removeprefix("r")) for _, fields in letters][::-1]


@fails_without("dead letters: bounded in bytes")
@fails_without("dead letters: only what is a whole cap ago goes", " - math.ceil(cfg.dead_bytes / DEAD_PART)", "")
async def test_dead_letters_are_bounded_in_bytes(queue: Queue) -> None:
    small = queue.with_limits(max_entry_bytes=1_064_960, dead_bytes=2 * PART)
    await end_large(small, range(100))
    found = await kept(queue)
    assert found == [*range(found[0], 100)], "the newest"
    assert 2 * PART - LARGE <= len(found) * LARGE <= 3 * PART + LARGE
    assert (await queue.broker.audit()).problems() == []
    assert await queue.command("HLEN", queue.keys.dead_parts) < 20, "what is past is forgotten"


@fails_without("dead letters: what is past is forgotten", "for number = from, past do", "for number = past, past do")
async def test_a_smaller_bound_holds_from_the_next_part_on_and_a_larger_one_drops_nothing(queue: Queue) -> None:
    wide = queue.with_limits(max_entry_bytes=1_064_960, dead_bytes=4 * PART)
    await end_large(wide, range(50))
    assert len(await kept(queue)) == 50
    await end_large(wide.with_limits(dead_bytes=PART), range(50, 52))
    names = [text(name) for name in await queue.command("HKEYS", queue.keys.dead_parts)]
    assert sorted(names) == ["3", "bytes", "from"]
    found = len(await kept(queue))
    assert PART - LARGE <= found * LARGE <= 2 * PART + LARGE
    await end_large(wide.with_limits(dead_bytes=100 * PART), range(52, 70))
    assert len(await kept(queue)) == found + 18


@fails_without("dead letters: their count holds up no ending", "redis.pcall('HINCRBY',", "call('HINCRBY',")
async def test_a_count_that_somebody_wrote_by_hand_holds_up_no_ending(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1")
    await queue.command("SET", queue.keys.dead_parts, "by hand")
    assert await queue.complete("w1", lease, status=Status.FAILED) == [1]
    assert await kept(queue) == [1]
