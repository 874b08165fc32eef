"""enqueue.lua: while others use the queue, one tenant has at most a share of a lane waiting, staged or not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from streamfleet.common.broker.types import TOO_MANY_BYTES, EnqueueCode, Lease, RetryCode, Submission
from streamfleet.common.connection import Connection
from streamfleet.common.protocol import Lane
from tests.scripts.harness import LIMITS, Queue, submission
from tests.scripts.mutants import fails_without
from tests.shifted_clock import ShiftedServer

LIMIT = 40
SHARE = LIMIT // 2
FULL, USED, ACCEPTED = EnqueueCode.FULL, EnqueueCode.SHARE_USED, EnqueueCode.ACCEPTED


class Tenants:
    """Enqueues requests of tenants into a queue with narrow lanes."""

    def __init__(self, queue: Queue, **limits: int) -> None:
        self.queue, self._made = queue.with_limits(**({"lane_limit": LIMIT} | limits)), 0

    def request(self, tenant: str, lane: Lane = Lane.HIGH, body: str = '{"prompt":"hi"}') -> Submission:
        self._made += 1
        one = submission(f"r{self._made}", lane, body=body)
        return replace(one, fields={**one.fields, "tenant": tenant.encode()} if tenant else one.fields)

    async def enqueue(self, *requests: Submission) -> list[EnqueueCode]:
        return [answer.code for answer in await self.queue.broker.enqueue(requests)]

    async def flood(self, tenant: str, number: int = 2 * LIMIT, lane: Lane = Lane.HIGH, at_once: int = 1) -> int:
        """Number of requests that were accepted, out of so many that were tried."""
        codes: list[EnqueueCode] = []
        for _ in range(0, number, at_once):
            codes += await self.enqueue(*(self.request(tenant, lane) for _ in range(at_once)))
        return codes.count(ACCEPTED)

    async def stage(self, most: int = 1_000) -> None:
        await self.queue.pull("w1", 0, stage_entries=most)


@fails_without("enqueue: a tenant has a share of a lane", argument="1")
@pytest.mark.parametrize("at_once", [1, 7, 200])
async def test_without_any_worker_one_tenant_fills_half_of_a_lane(queue: Queue, at_once: int | str) -> None:
    tenants = Tenants(queue)
    assert await tenants.flood("b", 1) == 1
    assert await tenants.flood("a", 2 * LIMIT, at_once=int(at_once)) == SHARE
    assert await tenants.enqueue(tenants.request("a")) == [USED]
    assert await tenants.flood("a", 4, Lane.LOW) == 4
    assert await tenants.flood("b", 2 * LIMIT, at_once=int(at_once)) == SHARE - 1
    assert await tenants.enqueue(tenants.request("c"), tenants.request("")) == [FULL, FULL]


@fails_without("enqueue: what is staged counts once")
async def test_half_counts_what_is_ready_and_what_is_not_staged(queue: Queue) -> None:
    tenants = Tenants(queue)
    await tenants.flood("b", 1)
    assert await tenants.flood("a", 8) == 8
    await tenants.stage()
    assert await tenants.flood("a", 8) == 8
    await tenants.stage(2)
    assert await tenants.flood("b", 16) == 16
    assert await tenants.flood("a", LIMIT) == SHARE - 16
    await tenants.stage()
    assert await tenants.enqueue(tenants.request("a")) == [USED]


async def test_what_a_worker_took_waits_no_more(queue: Queue) -> None:
    tenants = Tenants(queue)
    await tenants.flood("b", 3)
    assert await tenants.flood("a") == SHARE
    taken = Counter(claim.fields[b"tenant"].decode() for claim in (await tenants.queue.pull("w1", 10)).claims)
    assert await tenants.flood("a") == taken["a"] > 0


@fails_without("enqueue: no more is unstaged than the lane has left", "  if fresh > left then", "  if false then")
async def test_what_was_cancelled_before_it_was_staged_waits_no_more(queue: Queue) -> None:
    tenants = Tenants(queue)
    await tenants.flood("b", SHARE)
    await tenants.stage()
    assert await tenants.flood("a", SHARE) == SHARE
    for number in range(SHARE + 1, 2 * SHARE + 1):
        assert await tenants.queue.broker.cancel(f"r{number}")
    assert await tenants.enqueue(tenants.request("a")) == [ACCEPTED]


@fails_without("enqueue: alone, a tenant has the whole lane")
async def test_alone_a_tenant_has_the_whole_lane(queue: Queue) -> None:
    tenants = Tenants(queue)
    assert await tenants.flood("a", lane=Lane.LOW) == LIMIT
    assert await tenants.enqueue(tenants.request("", Lane.LOW)) == [FULL]
    assert await tenants.enqueue(tenants.request("b", Lane.LOW)) == [FULL]  # but it was seen
    assert await tenants.flood("a") == SHARE
    assert await tenants.enqueue(tenants.request("a", Lane.LOW)) == [USED]


async def test_requests_without_a_tenant_have_the_whole_lane(queue: Queue) -> None:
    tenants = Tenants(queue)
    await tenants.flood("a", 1)
    await tenants.flood("b", 1)
    assert await tenants.flood("") == LIMIT - 2


async def test_the_share_is_a_setting(queue: Queue) -> None:
    narrow = Tenants(queue, lane_tenant_percent=10)
    await narrow.flood("b", 1)
    assert await narrow.flood("a") == LIMIT // 10
    assert await Tenants(queue, lane_tenant_percent=100).flood("c", lane=Lane.LOW) == LIMIT
    assert await Tenants(queue, lane_tenant_percent=1).flood("d", lane=Lane.NORMAL) == 1


async def test_several_brokers_count_together(queue: Queue) -> None:
    first, second = Tenants(queue), Tenants(Queue(queue.connection, queue.limits))
    second._made = 1_000_000
    await first.flood("b", 1)
    assert await first.flood("a", 12) == 12
    assert await second.flood("a") == SHARE - 12


async def test_an_hour_after_the_other_a_tenant_is_alone(shifted_clock: ShiftedServer) -> None:
    connection = Connection(shifted_clock.url)
    tenants = Tenants(Queue(connection, LIMITS, "hour"))
    await tenants.flood("b", 1)
    assert await tenants.flood("a", at_once=10) == SHARE
    shifted_clock.shift(3_500_000)
    assert await tenants.enqueue(tenants.request("a")) == [USED]
    shifted_clock.shift(3_700_000)
    assert await tenants.flood("a", at_once=10) == SHARE - 1
    await connection.close()


@fails_without("enqueue: a tenant has a share of a lane's bytes", argument="True")
@pytest.mark.parametrize("staged", [True, False])
async def test_half_of_a_lanes_bytes(queue: Queue, staged: bool) -> None:
    large, small = '{"prompt":"' + "x" * 20_000 + '"}', '{"prompt":"hi"}'
    tenants = Tenants(queue, lane_limit=1_000, lane_bytes=1_000_000, max_entry_bytes=100_000)
    await tenants.flood("b", 1)
    codes: list[EnqueueCode] = []
    for _ in range(60):
        codes += await tenants.enqueue(tenants.request("a", body=large))
        if staged:
            await tenants.stage()
    assert 23 <= codes.count(ACCEPTED) <= 26
    (refused,) = await tenants.queue.broker.enqueue([tenants.request("a", body=large)])
    assert (refused.code, refused.entry) == (USED, TOO_MANY_BYTES)
    assert await tenants.enqueue(tenants.request("a", body=small), tenants.request("b", body=large)) == [ACCEPTED] * 2
    codes = [code for _ in range(60) for code in await tenants.enqueue(tenants.request("b", body=large))]
    assert 18 <= codes.count(ACCEPTED) <= 26


@fails_without("enqueue: what is ready with a label is staged", "+ number_labelled(lane)", "")
@fails_without("enqueue: what is known of tenants is bounded")
async def test_what_is_known_of_tenants_is_bounded(queue: Queue) -> None:
    tenants = Tenants(queue)

    async def known() -> int:
        return int(await tenants.queue.command("HLEN", tenants.queue.keys.arrivals))

    wide = Tenants(tenants.queue, lane_limit=100_000)
    for first in range(0, 9_000, 200):
        assert set(await wide.enqueue(*(wide.request(f"t{first + n}") for n in range(200)))) == {ACCEPTED}
    assert await known() <= 8_500
    for _ in range(100):
        await wide.stage(100_000)
    await wide.flood("late", 1)
    assert await known() <= 3


@fails_without("enqueue: what waits for its next try is staged", "= -number(redis.pcall('ZCARD', DELAYED))", "= 0")
async def test_what_is_known_of_tenants_is_forgotten_while_requests_wait_for_their_next_try(queue: Queue) -> None:
    """Else each new tenant would share one half of the lane with all others."""
    wide = Tenants(queue, lane_limit=100_000)
    await wide.flood("first", 1)
    (claim,) = (await wide.queue.pull("w1", 1)).claims
    assert await wide.queue.retry("w1", claim.lease, 60_000) == RetryCode.DELAYED
    for first in range(0, 9_000, 200):
        assert set(await wide.enqueue(*(wide.request(f"t{first + n}") for n in range(200)))) == {ACCEPTED}
    for _ in range(100):
        await wide.stage(100_000)
    await wide.flood("late", 1)
    assert int(await wide.queue.command("HLEN", wide.queue.keys.arrivals)) <= 3


async def test_odd_names_are_one_tenant(queue: Queue) -> None:
    tenants = Tenants(queue)
    await tenants.flood("b", 1)
    assert await tenants.flood("x" * 300, 15) + await tenants.flood("y" * 300, 15) == SHARE
    await tenants.stage()
    assert await tenants.enqueue(tenants.request("z" * 300)) == [USED]


@pytest.mark.parametrize("name", ["arrivals", "ready:high:t:a", "served", "ready:high", "lanes"])
async def test_a_key_of_another_type_stops_nobody(queue: Queue, name: str) -> None:
    tenants = Tenants(queue)
    await tenants.queue.command("SET", f"{{q}}:{name}", "by hand")
    await tenants.flood("b", 1)
    assert SHARE <= await tenants.flood("a") <= LIMIT


class Model:
    """Requests that each tenant truly has waiting in the lane, by what the verbs said."""

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}
        self.leases: list[Lease] = []

    def number(self, tenant: str) -> int:
        return sum(each == tenant for each in self.waiting.values())


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_nobody_has_more_than_its_share(queue: Queue, seed: int) -> None:
    tenants = Tenants(queue)
    chance, model, names = random.Random(seed), Model(), ("a", "a", "a", "a", "a", "b")
    await tenants.flood("seen", 1, Lane.LOW)
    await tenants.flood("seen too", 1, Lane.LOW)
    refused = 0
    for _ in range(150):
        match chance.choice(("enqueue", "enqueue", "enqueue", "stage", "pull", "complete", "complete", "cancel")):
            case "enqueue":
                refused += await _enqueue_some(tenants, model, chance.choice(names), chance.choice((1, 4, 14)))
            case "stage":
                await tenants.stage(chance.choice((1, 5, 100)))
            case "pull":
                for claim in (await tenants.queue.pull("w1", chance.choice((1, 4)))).claims:
                    model.waiting.pop(claim.fields[b"id"].decode(), None)
                    model.leases.append(claim.lease)
            case "complete" if model.leases:
                await tenants.queue.complete("w1", model.leases.pop())
            case "cancel" if model.waiting:
                request_id = chance.choice([*model.waiting])
                await tenants.queue.broker.cancel(request_id)
                del model.waiting[request_id]
    assert refused


async def _enqueue_some(tenants: Tenants, model: Model, tenant: str, number: int) -> int:
    some: Sequence[Submission] = [tenants.request(tenant) for _ in range(number)]
    refused = 0
    for one, code in zip(some, await tenants.enqueue(*some), strict=True):
        if code is ACCEPTED:
            model.waiting[one.id] = tenant
        refused += code is USED
        assert model.number(tenant) <= SHARE
        # Before all is staged again, more may seem to wait than does, but never more than all that waits.
        assert code is not USED or len(model.waiting) >= SHARE
    return refused
