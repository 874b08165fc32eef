"""A master killed while users are at work: how long until it goes on, and what is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.ha.fleet import Scene
from tests.ha.nodes import cut, mend
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

ANSWERS = 100
PATIENCE_S = 40.0


@dataclass(frozen=True)
class Failover:
    """Seconds.

    Attributes:
        promoted_s: from the kill until a replica was master and everybody knew.
        enqueue_s: how long no enqueueing was acknowledged.
        answer_s: how long no answer came.
    """

    promoted_s: float
    enqueue_s: float
    answer_s: float

    def line(self) -> str:
        return f"promoted={self.promoted_s:.1f}s enqueue_gap={self.enqueue_s:.1f}s answer_gap={self.answer_s:.1f}s"


async def fail_over(
    scene: Scene,
    master: RedisServer,
    replicas: Sequence[RedisServer],
    promoted: Callable[[], RedisServer | None],
    cut_s: float = 0.0,
) -> Failover:
    """Kill the master, and wait until users are answered again.

    Args:
        scene: the users.
        master: to be killed.
        replicas: of this master.
        promoted: who is master now, as everybody agrees; asked again and again.
        cut_s: how long before the kill the replicas lose touch with the master.
    """
    await scene.answers(ANSWERS, time.monotonic())
    if cut_s:
        begun = time.monotonic()
        await asyncio.to_thread(cut, master, list(replicas))
        await eventually(lambda: time.monotonic() > begun + cut_s, cut_s + 5, "the cut has lasted")
    master.kill()
    killed = time.monotonic()
    if cut_s:
        await asyncio.to_thread(mend, list(replicas))

    async def another() -> bool:
        return await asyncio.to_thread(promoted) not in (None, master)

    await eventually(another, PATIENCE_S, "a replica is promoted")
    at = time.monotonic()
    await scene.answers(ANSWERS, at, PATIENCE_S)
    log = scene.log
    return Failover(at - killed, log.gap_s(log.accepted, killed), log.gap_s(log.answered_at, killed))
