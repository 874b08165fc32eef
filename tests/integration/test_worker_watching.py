"""Real workers of which those that watch are killed: another one comes for the next request, and some watch again."""

from __future__ import annotations

import time

from streamfleet.worker.pull import WATCHER_MS
from tests.integration.worker_process import Fleet
from tests.waiting import eventually

REPLACED_S = 1.5
"""The housekeeping comes each second, and some processes share a CPU here."""


async def test_watchers_that_are_killed_are_replaced(fleet: Fleet) -> None:
    names = ["w1", "w2", "w3", "w4"]
    workers = {name: fleet.start(name) for name in names}
    for worker in workers.values():
        await worker.ready()
    keys = fleet.broker.keys

    async def watching(*dead: str) -> list[str]:
        there = await fleet.redis.zrange(keys.watch, 0, -1)
        return [] if len(there) < 2 or set(there) & set(dead) else sorted(there)

    async def all_wait() -> bool:
        return sorted(await fleet.redis.zrange(keys.waiting, 0, -1)) == names and bool(await watching())

    await eventually(all_wait, what="all wait, and two watch")
    killed = await watching()
    for name in killed:
        workers[name].destroy()
    began = time.monotonic()
    assert (await fleet.result(await fleet.add(), 10.0)).ok
    assert time.monotonic() - began <= REPLACED_S
    # They watch at once if a wake-up was not heard; when the watches end, if housekeeping woke one that waited.
    await eventually(lambda: watching(*killed), WATCHER_MS / 1000 + 3, "the others watch")
    # Those that watch hear of the next one at once.
    began = time.monotonic()
    assert (await fleet.result(await fleet.add())).ok
    assert time.monotonic() - began <= REPLACED_S / 3
