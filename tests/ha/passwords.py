"""The password of all nodes changed while users are at work: who is cut off, and what becomes of their requests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.ha.failover import ANSWERS
from tests.ha.fleet import Scene
from tests.ha.nodes import tell
from tests.ha.sentinels import SERVICE
from tests.integration.worker_process import WorkerProcess
from tests.passwords import ORDERS, USERS, Passwords, admin_of, cut

LATE_S = 5.0
"""Time between nodes and files. The workers' leases are shorter."""


@dataclass(frozen=True)
class Changes:
    """Attributes: ``refused`` logins and commands at all nodes, ``ended`` workers, and ``answer_s`` the longest time
    without an answer."""

    refused: int
    ended: int
    answer_s: float

    def line(self) -> str:
        return f"refused={self.refused} workers_ended={self.ended} answer_gap={self.answer_s:.1f}s"


async def change_passwords(
    scene: Scene,
    passwords: Passwords,
    workers: Sequence[WorkerProcess],
    nodes: Sequence[int],
    sentinels: Sequence[int] = (),
) -> Changes:
    """Change it for each user, the files before, with and after the nodes; then there is none again.

    Args:
        scene: the users.
        passwords: what they and the workers read.
        workers: they are to live on.
        nodes: ports of all masters and replicas.
        sentinels: ports of those that watch them.
    """

    async def to_nodes(old: str) -> None:
        for port in sentinels:
            tell(port, "SENTINEL", "SET", SERVICE, "auth-pass", passwords.password)
        for port in nodes:
            async with admin_of(port, old) as admin:
                await admin.config_set("masterauth", passwords.password)
                await passwords.set_on(admin)
        for port in nodes:
            async with admin_of(port, passwords.password) as admin:
                await cut(admin)

    begun, before = time.monotonic(), [await passwords.refused(port) for port in nodes]
    for order, user in itertools.product(ORDERS, USERS):
        await passwords.change(order, user, LATE_S, to_nodes)
        await scene.answers(ANSWERS, time.monotonic())
    await passwords.change("with", "", 0.0, to_nodes, none=True)
    await scene.answers(ANSWERS, time.monotonic())
    refused = sum([await passwords.refused(port) for port in nodes]) - sum(before)
    ended = sum(not worker.alive for worker in workers)
    return Changes(refused, ended, scene.log.gap_s(scene.log.answered_at, begun))
