"""Ended requests of API keys (`bounded`): by tenant they take a bounded part of Redis, and the oldest go first."""

from __future__ import annotations

from itertools import accumulate

from streamfleet.common.broker.types import Completion, Lease, Submission, TokenGroup
from streamfleet.common.protocol import Lane, Status
from tests.scripts.harness import BODY, NOW, Queue
from tests.scripts.mutants import fails_without

BOUND = 100_000
GRACE_MS = 60_000
SHORT_MS = 10_000


def with_little_room(queue: Queue) -> Queue:
    return queue.with_limits(tenant_result_bytes=BOUND, lane_limit=1_000)


def asked(name: str, tenant: str = "a", bounded: bool = True, **fields: str) -> Submission:
    """A request as a gateway hands it to the broker."""
    given = {"body": BODY, "id": name, "tenant": tenant} | ({"bounded": "1"} if bounded else {}) | fields
    return Submission(name, Lane.HIGH, {key: value.encode() for key, value in given.items()}, "d1", "")


async def enqueue(queue: Queue, *some: Submission) -> None:
    assert all(answer.entry for answer in await queue.broker.enqueue(some))


async def claimed(queue: Queue, *some: Submission) -> list[Lease]:
    await enqueue(queue, *some)
    return [claim.lease for claim in (await queue.pull("w1", len(some))).claims]


async def end(queue: Queue, lease: Lease, status: Status = Status.SUCCEEDED, *, reply: str = "", **values: str) -> int:
    """Complete a request of tenant `a`, as its worker does."""
    carried = {"tenant": "a", "bounded": "1", "response": "x"} | values
    (code,) = await queue.broker.complete("w1", [Completion(lease, status, carried, reply)])
    return code


async def answer(queue: Queue, *some: Submission, size: int = 3_000) -> None:
    """Let requests end with an answer of this size, one after the other."""
    for each in some:
        (lease,) = await claimed(queue, each)
        tenant, bounded = (each.fields.get(name, b"").decode() for name in ("tenant", "bounded"))
        assert await end(queue, lease, tenant=tenant, bounded=bounded, response="x" * size) == 1


async def stays(queue: Queue, name: str) -> bool:
    """True if a result lives as long as any; False if it is about to go."""
    left_ms = await queue.command("PTTL", queue.keys.result(name))
    assert left_ms > 0, f"{name} has ended"
    return int(left_ms) > GRACE_MS


async def bytes_that_stay(queue: Queue, tenant: str = "a") -> int:
    total = 0
    for raw in await queue.command("KEYS", queue.keys.result(f"{tenant}*")):
        name = raw.decode().removeprefix(queue.keys.result(""))
        if await stays(queue, name):
            total += await bytes_of(queue, name)
    return total


async def bytes_of(queue: Queue, name: str) -> int:
    """Bytes that Redis says a request takes that has ended."""
    keys = (queue.keys.result(name), queue.keys.request(name), queue.keys.tokens(name))
    return sum([await queue.command("MEMORY", "USAGE", key, "SAMPLES", 0) or 0 for key in keys])


@fails_without("bounded: by its tenant")
@fails_without("bounded: what ended first goes")
@fails_without("bounded: the list goes with its results")
async def test_the_oldest_go_first_and_those_of_others_stay(queue: Queue) -> None:
    small = with_little_room(queue)
    await answer(small, asked("b1", "b"), asked("free", bounded=False), asked("nobody", ""))
    await answer(small, *(asked(f"a{number}") for number in range(60)))
    found = [await stays(small, f"a{number}") for number in range(60)]
    assert found == sorted(found), "the oldest are about to go, the newest stay"
    assert not found[0]
    assert BOUND * 0.8 < await bytes_that_stay(small) <= BOUND
    for name in ("b1", "free", "nobody"):
        assert await stays(small, name)
    assert await small.command("LLEN", small.keys.ended("a")) == sum(found)
    assert 0 < await small.command("PTTL", small.keys.ended("a")) <= 2 * small.limits.result_ttl_ms


@fails_without("bounded: only what asks for it", "[i] == 'bounded' and values[i + 1] == '1' and", "[i] == 'tenant' and")
async def test_who_does_not_ask_for_it_is_not_bounded(queue: Queue) -> None:
    small = with_little_room(queue)
    await answer(small, *(asked(f"a{number}", bounded=False) for number in range(60)))
    await answer(small, *(asked(f"n{number}", tenant="") for number in range(60)))
    assert all([await stays(small, f"{kind}{number}") for number in range(60) for kind in "an"])


@fails_without("bounded: an id goes with its result")
@fails_without("bounded: tokens go with their result")
async def test_a_result_that_goes_takes_its_id_and_tokens_along(queue: Queue) -> None:
    small = with_little_room(queue)
    (lease,) = await claimed(small, asked("a0", stream="1"))
    await small.broker.publish_tokens([TokenGroup("a0", 1, "w1:1", 0, b"{}", lasting=True)], 100)
    assert await end(small, lease, streamed="1") == 1
    await answer(small, *(asked(f"a{number}") for number in range(1, 60)))
    for key in (small.keys.result("a0"), small.keys.request("a0"), small.keys.tokens("a0")):
        assert 0 < await small.command("PTTL", key) <= GRACE_MS, key


async def test_tokens_count(queue: Queue) -> None:
    small = with_little_room(queue)
    for number in range(20):
        (lease,) = await claimed(small, asked(f"a{number}", stream="1"))
        groups = [TokenGroup(f"a{number}", 1, "w1:1", seq, b"y" * 5_000, lasting=True) for seq in range(4)]
        await small.broker.publish_tokens(groups, 100)
        assert await end(small, lease, streamed="4") == 1
    assert BOUND * 0.5 < await bytes_that_stay(small) <= BOUND


@fails_without("bounded: large ones go sooner", "id and tonumber(own) > 65536 and 10000 or 60000", "60000")
@fails_without("bounded: the newest stays", " or total <= tonumber(upto)) then return end", ") then return end")
async def test_a_large_answer_takes_the_place_of_many_small_ones_and_stays(queue: Queue) -> None:
    small = with_little_room(queue)
    await answer(small, *(asked(f"a{number}") for number in range(40)), size=10)
    await answer(small, asked("a99"), size=2 * BOUND)
    assert await stays(small, "a99")
    assert not any([await stays(small, f"a{number}") for number in range(40)])
    await answer(small, asked("a100"))
    assert [await stays(small, name) for name in ("a99", "a100")] == [False, True]
    assert await small.command("PTTL", small.keys.result("a99")) <= SHORT_MS < GRACE_MS / 2
    assert await small.command("PTTL", small.keys.result("a39")) > SHORT_MS


async def end_in_every_way(queue: Queue) -> list[str]:
    """Ids of requests of a tenant that end in each of the ways in which a request can end."""
    await enqueue(queue, asked("waiting"), asked("late", ttl="0"))
    await queue.broker.cancel("waiting")
    assert not (await queue.at(NOW + 1).pull("w1")).claims
    names = ("succeeded", "failed", "dropped", "cancelled", "dead", "retried", "expired")
    leases = {lease.request_id: lease for lease in await claimed(queue, *map(asked, names))}
    await end(queue, leases["succeeded"])
    for name, status in (("failed", Status.FAILED), ("expired", Status.EXPIRED), ("dropped", Status.CANCELLED)):
        await end(queue, leases[name], status)
    await queue.broker.cancel("cancelled")
    await end(queue, leases["cancelled"], Status.CANCELLED)
    await queue.retry("w1", leases["retried"], most=1)
    await queue.broker.reclaim(0, 1)
    return ["waiting", "late", *names]


@fails_without("bounded: cancelled ones too")
async def test_every_ending_counts_once(queue: Queue) -> None:
    small = with_little_room(queue)
    names = await end_in_every_way(small)
    assert (await small.broker.audit()).problems() == []
    rows = await small.command("LRANGE", small.keys.ended("a"), 0, -1)
    totals, sizes, found = zip(*(row.decode().split(" ") for row in rows), strict=True)
    assert sorted(found) == sorted(names)
    assert [int(total) for total in totals] == list(accumulate(map(int, sizes)))
    assert await bytes_that_stay(small, "") <= int(totals[-1])


FIELDS = {
    **dict.fromkeys(("queued_ms", "total_ms", "waited_ms", "first_token_ms", "http_status", "passed_ms"), "12345"),
    "finish_reason": "stop",
    "usage": '{"completion_tokens":100,"prompt_tokens":10,"total_tokens":110}',
    "session": "s" * 30,
    "meta": "m" * 300,
    "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
}
SIZES = (1, 65, 100, 500, 1_025, 2_500, 4_097, 5_200, 20_481, 70_000, 300_000)


@fails_without("bounded: a result counts", "{result, record_key(request_id),", "{record_key(request_id),")
@fails_without("bounded: an id counts", ", record_key(request_id), tokens_key(request_id)", ", tokens_key(request_id)")
@fails_without("bounded: what was streamed counts", "(request_id), tokens_key(request_id)}", "(request_id)}")
async def test_no_less_is_counted_than_redis_takes(queue: Queue) -> None:
    """Only the server knows how far it rounds up: with glibc's allocator that depends on what was freed before."""
    roomy = queue.with_limits(tenant_result_bytes=10**9, lane_limit=1_000)
    names = await end_in_every_way(roomy)
    for number, size in enumerate(SIZES * 4):
        name = f"a{number}".ljust((3, 20, 60, 128)[number // len(SIZES)], "x")
        (lease,) = await claimed(roomy, asked(name, stream="1"))
        if number % 2:
            await roomy.broker.publish_tokens([TokenGroup(name, 1, "w1:1", 0, b"y" * size, lasting=True)], 100)
        values = dict(list(FIELDS.items())[: 5 * number % (len(FIELDS) + 1)])
        values |= {"streamed": "1", "response": "x" * size}
        assert await end(roomy, lease, Status.SUCCEEDED, reply="r" * (number % 3 * 30), **values) == 1
        names.append(name)
    rows = [row.decode().split(" ") for row in await roomy.command("LRANGE", roomy.keys.ended("a"), 0, -1)]
    counted = {name: int(own) for _, own, name in rows}
    assert sorted(counted) == sorted(names)
    in_list = await roomy.command("MEMORY", "USAGE", roomy.keys.ended("a"), "SAMPLES", 0) / len(rows)
    for name in names:
        taken = await bytes_of(roomy, name)
        assert taken + in_list <= counted[name] <= 1.5 * taken + 1_200, name


@fails_without(
    "bounded: the list stays while its results do", " or math.floor(before / 32768) ~= math.floor(total / 32768) ", " "
)
async def test_the_list_stays_while_requests_end(queue: Queue) -> None:
    """Also where as many go as come, so that its length stays the same."""
    small = with_little_room(queue)
    await answer(small, *(asked(f"a{number}") for number in range(40)))
    length = await small.command("LLEN", small.keys.ended("a"))
    await small.command("PEXPIRE", small.keys.ended("a"), 60_000)
    await answer(small, *(asked(f"b{number}") for number in range(60)))
    assert await small.command("LLEN", small.keys.ended("a")) == length
    assert await small.command("PTTL", small.keys.ended("a")) > small.limits.result_ttl_ms


@fails_without("bounded: a request that was sent again keeps its id", "id), grace_ms) == 1 then", "id), grace_ms) then")
async def test_a_request_that_is_sent_again_and_waits_keeps_its_id(queue: Queue) -> None:
    small = with_little_room(queue)
    await answer(small, asked("a0"))
    await small.command("DEL", small.keys.result("a0"), small.keys.request("a0"))  # as after their time
    await enqueue(small, asked("a0", ttl="3600000"))
    (again,) = (await small.pull("w1")).claims
    await answer(small, *(asked(f"a{number}") for number in range(1, 60)))
    assert await small.command("PTTL", small.keys.request("a0")) > small.limits.result_ttl_ms
    assert await end(small, again.lease) == 1
    assert await stays(small, "a0")


@fails_without("bounded: a list that was overwritten by hand is begun anew")
async def test_a_list_of_another_type_stops_nobody_and_is_begun_anew(queue: Queue) -> None:
    small = with_little_room(queue)
    await small.command("SET", small.keys.ended("a"), "by hand")
    await answer(small, *(asked(f"a{number}") for number in range(60)))
    assert not await stays(small, "a0")
    await small.command("RPUSH", small.keys.ended("b"), "by hand")
    await answer(small, *(asked(f"b{number}", "b") for number in range(60)))
    assert not await stays(small, "b0")
