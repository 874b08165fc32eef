"""renew.lua: leases renewed, and what became of them."""

from __future__ import annotations

from streamfleet.common.broker.types import RenewCode
from streamfleet.common.keys import GROUP
from tests.scripts.harness import Queue
from tests.scripts.mutants import fails_without


async def idle_ms(queue: Queue, lane: str = "high") -> list[int]:
    return [row[2] for row in await queue.command("XPENDING", queue.keys.lane(lane), GROUP, "-", "+", 10)]


async def test_a_renewed_lease_is_young_again_and_nothing_else_changes(queue: Queue) -> None:
    leases = [await queue.running("high", "1000-0"), await queue.running("low", "1000-0")]
    for lease in leases:
        await queue.age(lease.lane, lease.stream_id, "w1")
    async with queue.unchanged():
        assert await queue.broker.renew("w1", leases) == [RenewCode.RENEWED, RenewCode.RENEWED]
        assert max(await idle_ms(queue) + await idle_ms(queue, "low")) < 60_000
    assert (await queue.broker.reclaim(60_000, 3)).ready == 0


@fails_without("fence: the attempt", "if holds[lane][id] ~= attempt then return", "if not holds[lane][id] then return")
async def test_of_several_leases_one_of_another_attempt_is_lost(queue: Queue) -> None:
    mine, other = await queue.running("high", "1000-0"), await queue.running("high", "1000-1")
    codes = await queue.broker.renew("w1", [mine, other._replace(attempt=2)])
    assert codes == [RenewCode.RENEWED, RenewCode.LOST]


@fails_without("fence: the worker", "first, last, #ids * 2, worker)", "first, last, #ids * 2)")
async def test_leases_that_another_worker_has_in_the_same_attempt_are_lost(queue: Queue) -> None:
    leases = [await queue.running("high", "1000-0"), await queue.running("high", "1000-1")]
    assert await queue.broker.release("w1", leases) == 2  # counts no attempt
    assert len((await queue.pull("w2", 2)).claims) == 2
    assert await queue.broker.renew("w1", leases) == [RenewCode.LOST, RenewCode.LOST]


@fails_without("fence: the worker, of each entry", "GROUP, id, id, 1, worker)[1]", "GROUP, id, id, 1)[1]")
@fails_without("fence: a range of more entries than one command reads")
async def test_leases_among_many_others_are_renewed_and_no_others(queue: Queue) -> None:
    """Of the same worker there are more between two leases than one command reads; another's lie there too."""
    leases = [await queue.running("high", f"1000-{number}") for number in range(12)]
    lost = leases[5]
    await queue.age("high", lost.stream_id, "w2")
    for lease in leases:
        await queue.age("high", lease.stream_id, "w2" if lease == lost else "w1")
    codes = await queue.broker.renew("w1", [leases[11], lost, leases[0], leases[0]])
    assert codes[:3] == [RenewCode.RENEWED, RenewCode.LOST, RenewCode.RENEWED]
    rows = await queue.command("XPENDING", queue.keys.lane("high"), GROUP, "-", "+", 20)
    assert [row[0].decode() for row in rows if row[2] < 60_000] == ["1000-0", "1000-11"]
    await queue.broker.reclaim(60_000, 3)
    assert (await queue.dump())["lane:high"]["pending"] == {"1000-0": ("w1", 1), "1000-11": ("w1", 1)}
