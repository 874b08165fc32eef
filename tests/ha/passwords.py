"""The password of all nodes changed while users are at work: who is cut off, and what becomes of their requests."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from streamfleet.producer import Chunk, Client
from tests.ha.failover import ANSWERS
from tests.ha.fleet import Scene
from tests.ha.nodes import tell
from tests.ha.sentinels import SERVICE
from tests.integration.worker_process import WorkerProcess, chat
from tests.passwords import ORDERS, USERS, Passwords, admin_of, cut

LATE_S = 5.0
"""Time between nodes and files. The workers' leases are shorter."""
STREAMS = 4
TOKENS = 150
REFUSES = "refuses the user or password"


@dataclass(frozen=True)
class Changes:
    """Figures of a round with changed passwords.

    Attributes:
        refused: how often workers say that they were refused; replicas and Sentinels are refused too.
        ended: workers that are no more.
        broken: streams that were not whole, or of another attempt than the first.
        answer_s: the longest time without an answer.
    """

    refused: int
    ended: int
    broken: int
    answer_s: float

    def line(self) -> str:
        ended, broken = f"workers_ended={self.ended}", f"streams_broken={self.broken}"
        return f"refused={self.refused} {ended} {broken} answer_gap={self.answer_s:.1f}s"


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

    begun, before, broken = time.monotonic(), _refusals(workers), 0
    for order, user in itertools.product(ORDERS, USERS):
        streams = [asyncio.create_task(streamed(scene.client)) for _ in range(STREAMS)]
        await passwords.change(order, user, LATE_S, to_nodes)
        await scene.answers(ANSWERS, time.monotonic())
        broken += sum([await stream != (TOKENS, 1) for stream in streams])
    await passwords.change("with", "", 0.0, to_nodes, none=True)
    await scene.answers(ANSWERS, time.monotonic())
    ended = sum(not worker.alive for worker in workers)
    return Changes(_refusals(workers) - before, ended, broken, scene.log.gap_s(scene.log.answered_at, begun))


def _refusals(workers: Sequence[WorkerProcess]) -> int:
    return sum(worker.printed().count(REFUSES) for worker in workers)


async def streamed(client: Client) -> tuple[int, int]:
    """The number of words of one streamed answer, and the attempt that made it; 0 words if the stream broke."""
    handle = await client.enqueue(chat(TOKENS / 100), stream=True)
    async with aclosing(handle.stream(restarts="tell")) as events:
        found = [event async for event in events]
    result = await handle.result(timeout=30)
    chunks = [event.text for event in found if isinstance(event, Chunk)]
    return len("".join(chunks).split()) if len(chunks) == len(found) else 0, result.attempt
