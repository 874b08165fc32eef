"""Even filling with real workers: requests that come one by one go to all workers that wait."""

from __future__ import annotations

from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually


async def test_requests_that_come_one_by_one_fill_all_workers(fleet: Fleet) -> None:
    workers = ["w1", "w2", "w3", "w4"]
    for name in workers:
        await fleet.worker(name)

    async def all_wait() -> bool:
        return sorted(await fleet.redis.zrange(fleet.broker.keys.waiting, 0, -1)) == workers

    for number in range(1, 17):
        await eventually(all_wait, what="all workers wait for work")
        await fleet.add("", "normal", chat(20.0))

        async def taken(number: int = number) -> bool:
            return sum((await fleet.running()).values()) == number

        await eventually(taken, what=f"request {number} was taken")
    held = await fleet.running()
    assert sorted(held) == workers, held
    assert max(held.values()) - min(held.values()) <= 3, held
