"""A queue's slot moved to another node while users are at work."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from tests.ha.clusters import ClusterDeployment
from tests.ha.fleet import Scene
from tests.waiting import eventually

ANSWERS = 100
FIRST_KEYS = 20


@dataclass(frozen=True)
class Migration:
    """Attributes: ``keys`` moved, ``took_s`` between first and last command, ``answer_s`` the longest time without an
    answer since it began."""

    keys: int
    took_s: float
    answer_s: float

    def line(self) -> str:
        return f"keys_moved={self.keys} took={self.took_s:.1f}s answer_gap={self.answer_s:.1f}s"


async def migrate(scene: Scene, cluster: ClusterDeployment, slot: int, half_s: float) -> Migration:
    """Move the slot in two halves, and wait until users are answered again.

    Args:
        scene: the users.
        cluster: it has the slot on one node, and will have it on another.
        slot: which.
        half_s: how long the slot stays on both nodes, with some keys here and some there.
    """
    await scene.answers(ANSWERS, time.monotonic())
    source = await asyncio.to_thread(cluster.owner, slot)
    assert source is not None
    target = await asyncio.to_thread(cluster.other_master, slot)
    begun = time.monotonic()
    await asyncio.to_thread(cluster.begin_migration, slot, source, target)
    keys = await asyncio.to_thread(cluster.move_keys, slot, source, target, FIRST_KEYS)
    halfway = time.monotonic()
    await eventually(lambda: time.monotonic() > halfway + half_s, half_s + 5, "the slot was on two nodes for a while")
    keys += await asyncio.to_thread(cluster.move_keys, slot, source, target)
    await asyncio.to_thread(cluster.end_migration, slot, source, target)
    ended = time.monotonic()
    await scene.answers(ANSWERS, ended)
    return Migration(keys, ended - begun, scene.log.gap_s(scene.log.answered_at, begun))
